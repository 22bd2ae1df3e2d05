// The loop with the true model family on real data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "data/lerobot/lerobot_dataset.h"
#include "io/safetensors.h"
#include "io/tensor_io.h"
#include "support/paths.h"
#include "tiny_pi05.h"
#include "train/open_loop_run.h"
#include "train/session.h"
#include "train/trainer.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Pi05Run : public testing::TinyPi05 {};

TEST_F(Pi05Run, ResumeIsBitwiseOnRealData) {
  const TrainOutcome whole = run("whole", {"train.steps=4"});
  const TrainOutcome first =
      run("parts", {"train.steps=4", "train.stop_after=2", "data.workers=1"});
  const TrainOutcome second = run("parts", {"train.steps=4", "data.workers=3"});
  std::vector<double> joined = first.losses;
  joined.insert(joined.end(), second.losses.begin(), second.losses.end());
  EXPECT_EQ(whole.losses, joined);
  for (const char* file : {"model.safetensors", "state/optimizer.r0000-of-0001.safetensors"}) {
    const auto a = io::load_tensors(root_ / "whole/latest" / file);
    const auto b = io::load_tensors(root_ / "parts/latest" / file);
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, tensor] : a)
      EXPECT_TRUE(tensor.equal(b.at(name))) << file << " " << name;
  }
}

TEST_F(Pi05Run, Bf16TrainsAndResumes) {
  const TrainOutcome whole = run("whole", {"train.steps=4", "train.dtype=bf16"});
  run("parts", {"train.steps=4", "train.dtype=bf16", "train.stop_after=2"});
  const TrainOutcome second = run("parts", {"train.steps=4", "train.dtype=bf16"});
  ASSERT_EQ(second.losses.size(), 2U);
  EXPECT_EQ(whole.losses[3], second.losses[1]);
  EXPECT_TRUE(std::isfinite(whole.losses[3]));
}

TEST_F(Pi05Run, CheckpointHasPublicNamesAndLoadsForEvaluation) {
  run("run", {"train.steps=2"});
  const auto file = io::SafetensorsFile::open(root_ / "run/latest/model.safetensors");
  for (const char* name : {"action_in_proj.weight", "time_mlp_in.weight",
                           "paligemma_with_expert.gemma_expert.model.norm.dense.weight"}) {
    EXPECT_NE(file.find(name), nullptr) << name;
  }
  OpenLoopRequest request;
  request.checkpoint = root_ / "run";
  request.episodes = "23";
  request.draws = 2;
  request.device = "cpu";
  request.out = root_ / "judged";
  log::init(log::Level::kError);
  const OpenLoopReport report = run_open_loop(request, &models::find_family);
  EXPECT_EQ(report.horizon, 8);
  EXPECT_EQ(report.dim_names, (std::vector<std::string>{"x", "y"}));
  EXPECT_THAT(report.repeat_meaning, HasSubstr("observation.state"));
  const auto json = parse_json_file(request.out / "open_loop.json");
  EXPECT_EQ(json.at("frames").get<int64_t>(), report.num_frames);
  EXPECT_THAT(read_file(request.out / "open_loop.svg", 1 << 24), HasSubstr("</svg>"));
}

TEST_F(Pi05Run, EvaluationRepeatsExactly) {
  run("run", {"train.steps=1"});
  OpenLoopRequest request;
  request.checkpoint = root_ / "run/latest";
  request.episodes = "last:1";
  request.draws = 2;
  request.device = "cpu";
  request.out = root_ / "a";
  log::init(log::Level::kError);
  const OpenLoopReport a = run_open_loop(request, &models::find_family);
  const OpenLoopReport b = run_open_loop(request, &models::find_family);
  EXPECT_EQ(a.model.all_steps.mse, b.model.all_steps.mse);
  EXPECT_EQ(a.single_draw.all_steps.mae, b.single_draw.all_steps.mae);
}

TEST_F(Pi05Run, FrozenVisionTowerStaysBitwise) {
  // Without the moving average, whose rounding changes even weights that stand still.
  run("start", {"train.steps=1", "optim.lr=0", "optim.schedule={name: constant}",
                "optim.weight_decay=0", "optim.ema=null"});
  run("frozen", {"train.steps=2", "model.freeze=[vision]", "optim.ema=null"});
  const auto before = io::load_tensors(root_ / "start/latest/model.safetensors");
  const auto after = io::load_tensors(root_ / "frozen/latest/model.safetensors");
  int64_t same = 0, changed = 0;
  for (const auto& [name, tensor] : before) {
    if (name.find("vision_tower") != std::string::npos) {
      EXPECT_TRUE(tensor.equal(after.at(name))) << name;
      ++same;
    } else if (!tensor.equal(after.at(name))) {
      ++changed;
    }
  }
  EXPECT_GT(same, 10);
  EXPECT_GT(changed, 10);
}

TEST_F(Pi05Run, FaultsAreFoundBeforeTheRunFolderExists) {
  EXPECT_THROW(run("x", {"model.tokenizer=no/such.model"}), Error);
  EXPECT_THROW(run("x", {"data.cameras={base_0_rgb: observation.no_camera}"}), Error);
  EXPECT_THROW(run("x", {"data.val_episodes=[99]"}), ConfigError);
  EXPECT_FALSE(fs::exists(root_ / "x"));
  try {
    run("x", {"data.datasets.0.path=" + root_.string()});
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("info.json"));
  }
}

}  // namespace
}  // namespace longship::train
