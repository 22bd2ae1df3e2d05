#pragma once
// A configuration with every kind of field, shared by the tests of base/config and by the fuzz
// target.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/config/visitor.h"

namespace longship::testing {

struct SampleDataset {
  std::string path;
  double weight = 1;
  void reflect(config::Visitor& v) {
    v.field("path", path, {.doc = "Folder of the dataset.", .required = true});
    v.field("weight", weight, {.doc = "Share of the samples.", .min = 0, .max = 100});
  }
};

struct SampleData {
  std::vector<SampleDataset> datasets;
  config::CountOrList val_episodes;
  std::vector<std::pair<std::string, std::string>> cameras;
  int64_t horizon = 50;
  void reflect(config::Visitor& v) {
    v.list("datasets", datasets, "What to train on.");
    v.field("val_episodes", val_episodes, {.doc = "Held out episodes."});
    v.field("cameras", cameras, {.doc = "Camera slots of the model and cameras of the dataset."});
    v.field("horizon", horizon,
            {.doc = "Length of an action chunk.", .unit = "frames", .min = 1, .max = 1000});
  }
};

struct SampleOptim {
  std::string name = "adamw";
  double lr = 2.5e-5;
  std::vector<double> betas = {0.9, 0.95};
  std::optional<double> ema;
  int64_t warmup = 1000;
  void reflect(config::Visitor& v) {
    v.choice("name", name, {"adamw", "sgd"}, {.doc = "Algorithm."});
    v.field("lr", lr, {.doc = "Peak learning rate.", .min = 0, .max = 1});
    v.field("betas", betas, {.doc = "Decay of both moments.", .min = 0, .max = 1});
    v.field("ema", ema, {.doc = "Decay of the averaged weights.", .min = 0, .max = 1});
    v.field("warmup", warmup, {.doc = "Length of the ramp.", .unit = "steps", .min = 0});
  }
};

struct SampleConfig {
  SampleData data;
  SampleOptim optim;
  int64_t steps = 30000;
  bool deterministic = false;
  std::optional<int64_t> keep_every;
  std::optional<std::string> checkpoint;
  std::vector<int64_t> shape;
  std::vector<std::string> freeze;
  std::string output_dir = "runs/x";
  void reflect(config::Visitor& v) {
    v.section("data", data, "Datasets and windows.");
    v.section("optim", optim, "Optimizer.");
    v.field("steps", steps, {.doc = "Optimizer steps.", .unit = "steps", .min = 1});
    v.field("deterministic", deterministic, {.doc = "Kernels that repeat bit for bit."});
    v.field("keep_every", keep_every,
            {.doc = "Checkpoints kept for good.", .unit = "steps", .min = 1});
    v.field("checkpoint", checkpoint, {.doc = "Weights to start from."});
    v.field("shape", shape, {.doc = "A list of whole numbers.", .min = 0});
    v.field("freeze", freeze, {.doc = "Parts that stay as they are."});
    v.field("output_dir", output_dir, {.doc = "Where the run goes."});
  }
};

}  // namespace longship::testing
