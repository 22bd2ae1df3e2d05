#pragma once
// The recipe: everything a training run is made of, one YAML file plus overrides.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/config/visitor.h"
#include "base/config/yaml.h"
#include "data/augment/config.h"
#include "models/spec.h"
#include "train/optimizer.h"
#include "train/schedule.h"

namespace longship::train {

struct DatasetEntry {
  std::string path;
  std::optional<double> weight;
  std::optional<std::string> name;
  std::vector<std::pair<std::string, std::string>> keys, cameras;
  std::vector<int64_t> state_dims, action_dims;
  int64_t embodiment = 0;
  std::vector<int64_t> episodes;
  config::CountOrList val_episodes;
  std::optional<std::string> stats;
  void reflect(config::Visitor& visitor);
};

struct DataSection {
  std::vector<DatasetEntry> datasets;
  config::CountOrList val_episodes;
  std::vector<std::pair<std::string, std::string>> cameras;
  int64_t horizon = 50;
  std::string shuffle = "full";
  int64_t block_episodes = 16;
  std::vector<std::string> expect_order_sha256;
  std::string on_bad_sample = "error";
  double max_bad_fraction = 0.001;
  std::vector<int64_t> delta_actions;
  std::vector<std::string> delta_exclude;
  double state_dropout = 0;
  data::AugmentConfig augment;
  int64_t workers = 2;
  int64_t prefetch = 4;
  bool share_decoding = true;
  std::string decoder = "cpu";
  void reflect(config::Visitor& visitor);
  /// Several datasets, or one whose dimensions are placed: samples come through a
  /// data::MixtureDataset.
  bool is_mixture() const;
  /// Names of the datasets, unique: as given, else the last part of the path, with a number where
  /// two are the same.
  std::vector<std::string> names() const;
  /// The map from slots to cameras of a dataset: its own, else that of all.
  const std::vector<std::pair<std::string, std::string>>& cameras_of(size_t i) const;
  /// Camera slots that any map names, in order of appearance.
  std::vector<std::string> slots() const;
};

struct OptimSection {
  std::string name = "adamw";
  double lr = 2.5e-5;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.01;
  std::optional<double> clip_norm = 1.0;
  std::optional<double> ema;
  ScheduleConfig schedule;
  WeightDecayRamp weight_decay_ramp;
  std::vector<ParamGroupConfig> groups;
  void reflect(config::Visitor& visitor);
  AdamWConfig adamw() const;
};

struct TrainSection {
  int64_t steps = 30000;
  std::optional<int64_t> stop_after;
  int64_t global_batch = 32;
  std::optional<int64_t> micro_batch;
  std::string device = "auto";
  std::string dtype = "fp32";
  int64_t seed = 42;
  bool deterministic = false;
  int64_t threads = 0;
  std::string cuda_graph = "none";
  std::string recompute = "none";
  std::optional<std::string> fp8;
  bool tf32 = true;
  std::string on_nonfinite = "stop";
  std::optional<int64_t> max_skipped_steps;
  void reflect(config::Visitor& visitor);
  /// Micro-batches of one of `world_size` processes in a step, and samples in each of them.
  int64_t num_micro(int64_t world_size = 1) const {
    return micro_batch ? global_batch / (world_size * *micro_batch) : 1;
  }
  int64_t micro_size(int64_t world_size = 1) const {
    return global_batch / (world_size * num_micro(world_size));
  }
};

/// How several processes train together.
struct ParallelSection {
  std::string strategy = "none";
  std::string replicate = "auto";
  std::string shard = "auto";
  std::string reduce_dtype = "fp32";
  std::string reshard = "after_forward";
  std::string transport = "auto";
  double bucket_mb = 25;
  double timeout_s = 600;
  double setup_timeout_s = 300;
  void reflect(config::Visitor& visitor);
};

/// Switches of optimisations. Each off gives the plain way to compute the same thing.
struct PerfSection {
  bool fused_norms = true;
  bool fused_activations = true;
  bool fused_rope = true;
  bool fused_loss = true;
  bool fused_optimizer = true;
  bool sparse_embedding = true;
  bool stacked_linears = true;
  bool flash_attention = true;
  bool pack_text = true;
  bool hand_over_gradients = true;
  bool copy_ahead = true;
  bool early_launch = true;
  bool two_graphs = true;
  double feature_cache = 0;  // GiB
  int64_t token_bucket = 128;
  bool grid_cache = true;
  std::string fp8_scaling = "delayed";
  std::string fp8_gradients = "e5m2";
  bool cpu_oracles = false;
  void reflect(config::Visitor& visitor);
};

struct CheckpointSection {
  std::optional<int64_t> every = 1000;
  int64_t keep_last = 3;
  std::optional<int64_t> keep_every;
  bool async = true;
  std::string resume = "auto";
  void reflect(config::Visitor& visitor);
};

struct LogSection {
  int64_t every = 10;
  bool tensorboard = true;
  void reflect(config::Visitor& visitor);
};

struct EvalSection {
  bool open_loop = false;
  int64_t draws = 16;
  std::string episodes = "val";
  int64_t batch = 64;
  void reflect(config::Visitor& visitor);
};

/// How a family is found by name; tests give their own.
using FamilyLookup = std::function<const models::ModelFamily&(const std::string&)>;

struct Recipe {
  const models::ModelFamily* family = nullptr;
  std::unique_ptr<models::ModelConfig> model;
  DataSection data;
  OptimSection optim;
  TrainSection train;
  PerfSection perf;
  ParallelSection parallel;
  CheckpointSection checkpoint;
  LogSection log;
  EvalSection eval;
  std::string output_dir;

  void reflect(config::Visitor& visitor);
};

/// Reads a recipe file and applies the overrides "a.b=c" in order. Every problem of the file is
/// listed in one ConfigError; so are options that would have no effect.
Recipe load_recipe(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                   const FamilyLookup& lookup);
/// The same from a parsed tree.
Recipe recipe_from(const config::Node& root, const FamilyLookup& lookup);
/// A recipe of a family with every default, for help texts and the schema test.
Recipe default_recipe(const models::ModelFamily& family);

/// A copy of a recipe with overrides "a.b=c" applied, checked again.
Recipe with_overrides(const Recipe& recipe, const std::vector<std::string>& overrides,
                      const FamilyLookup& lookup);

/// The resolved recipe as YAML.
std::string dump(const Recipe& recipe);

/// ("optim.lr", "2.5e-05") for every field, in order.
std::vector<std::pair<std::string, std::string>> flatten(const Recipe& recipe);

struct Difference {
  std::string key, before, after;
  bool breaks_exactness = false;  // a run resumed with it is not the run it would have been
};
/// Fields in which two recipes differ.
std::vector<Difference> compare(const Recipe& before, const Recipe& after);

}  // namespace longship::train
