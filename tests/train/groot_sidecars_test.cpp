// A run's checkpoint describes its robot in the public files, and a run that starts from it needs
// no modality of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <tuple>

#include "base/error.h"
#include "models/groot/batch.h"
#include "models/groot/modality.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/checkpoint_tools.h"
#include "train/open_loop_run.h"
#include "train/session.h"
#include "train/trainer.h"
#include "train/training_data.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<std::string>;

const char* const kFiles[] = {"processor_config.json", "statistics.json", "embodiment_id.json",
                              "modality.json"};

/// Some joints of the two arms, the wrist first.
const char* const kPlaces = R"({
  "state": {"right": {"start": 7, "end": 11}, "left": {"start": 0, "end": 3},
            "gripper": {"start": 6, "end": 7}},
  "action": {"right": {"start": 7, "end": 11, "rep": "RELATIVE"},
             "gripper": {"start": 6, "end": 7}},
  "video": {"wrist": {"original_key": "observation.images.cam_right_wrist"},
            "high": {"original_key": "observation.images.cam_high"}}})";

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class GrootTuned : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    root_ = longship::testing::scratch_dir("groot_tuned");
    std::ofstream(root_ / "places.json") << kPlaces;
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string robot() const {
    return std::string(GetParam()) == "groot_n17" ? "libero_sim" : "libero_panda";
  }

  Recipe recipe(const std::string& run, const Overrides& more) const {
    Overrides all = {
        "data.datasets.0.path=" + longship::testing::dataset_path("two_cam_v30").string(),
        "data.cameras={}",
        "data.val_episodes=1",
        "data.workers=0",
        "data.horizon=6",
        "model.tokenizer=" +
            (longship::testing::source_root() / "data/tokenizers/groot_demo.json").string(),
        "model.embodiment=" + robot(),
        "model.max_action_dim=16",
        "model.max_state_dim=16",
        "train.device=cpu",
        "train.global_batch=2",
        "checkpoint.every=10",
        "eval.open_loop=false",
        "output_dir=" + (root_ / run).string()};
    all.insert(all.end(), more.begin(), more.end());
    return load_recipe(
        longship::testing::source_root() / "configs" / GetParam() / "pusht_demo.yaml", all,
        &models::find_family);
  }

  TrainOutcome run(const Recipe& r) const {
    return train(r, open_dataset(r), {.quiet = true}, &models::find_family);
  }

  /// Two steps with groups of the recipe's own and every way to normalise.
  fs::path first_run(const Overrides& more = {}) const {
    Overrides all = {"model.modality=" + (root_ / "places.json").string(),
                     "model.use_percentiles=true",
                     "model.relative_actions=true",
                     "model.mean_std_groups=[left]",
                     "model.sincos_state_groups=[gripper]",
                     "train.steps=2"};
    all.insert(all.end(), more.begin(), more.end());
    const TrainOutcome out = run(recipe("first", all));
    EXPECT_TRUE(out.finished);
    return out.checkpoint;
  }

  OpenLoopReport evaluate(const fs::path& checkpoint) const {
    OpenLoopRequest request;
    request.checkpoint = checkpoint;
    request.draws = 1;
    request.out = root_ / "open_loop";
    request.device = "cpu";
    return run_open_loop(request, &models::find_family);
  }

  fs::path root_;
};
INSTANTIATE_TEST_SUITE_P(All, GrootTuned, ::testing::Values("groot_n16", "groot_n17"));

/// The first batch that a recipe makes.
std::unique_ptr<models::Batch> batch_of(const Recipe& r) {
  const auto dataset = open_dataset(r);
  r.model->bind_dataset(*dataset);
  const auto transform = make_transform(r, *dataset);
  transform->check_dataset(*dataset);
  std::vector<std::unique_ptr<models::Transform::Item>> items;
  for (const int64_t id : {0, 3, 200}) {
    items.push_back(transform->prepare(dataset->get(id, transform->windows())));
  }
  return transform->collate(items);
}

TEST_P(GrootTuned, ACheckpointOpensWithoutItsModality) {
  const fs::path first = first_run();
  ASSERT_TRUE(fs::exists(first));
  EXPECT_THAT(verify_checkpoint(first).faults, ::testing::IsEmpty());
  const std::string manifest = text_of(first / "state" / "manifest.json");
  for (const char* file : kFiles) {
    ASSERT_TRUE(fs::exists(first / file)) << file;
    EXPECT_THAT(manifest, ::testing::HasSubstr(file));
  }
  const auto described = models::read_groot_modality(first / "processor_config.json", robot());
  EXPECT_THAT(described.views, ::testing::ElementsAre("wrist", "high"));
  EXPECT_THAT(described.state_groups, ::testing::ElementsAre("right", "left", "gripper"));
  EXPECT_EQ(described.action_offsets.size(), 6U);

  const Recipe own =
      recipe("first", {"model.modality=" + (root_ / "places.json").string(),
                       "model.use_percentiles=true", "model.relative_actions=true",
                       "model.mean_std_groups=[left]", "model.sincos_state_groups=[gripper]"});
  const Recipe again = recipe("again", {"model.checkpoint=" + first.string(), "train.steps=1"});
  const auto a = batch_of(own), b = batch_of(again);
  const models::GrootBatch &x = models::groot_batch(*a), &y = models::groot_batch(*b);
  EXPECT_EQ(std::tie(x.pictures, x.lengths, x.grids, x.raw_state),
            std::tie(y.pictures, y.lengths, y.grids, y.raw_state));
  EXPECT_EQ(x.raw_state.size(), 3U);
  const auto left = a->tensors(), right = b->tensors();
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    ASSERT_EQ(left[i].second->defined(), right[i].second->defined());
    if (!left[i].second->defined()) continue;
    EXPECT_TRUE(left[i].second->equal(*right[i].second)) << left[i].first;
  }
  const TrainOutcome out = run(again);
  ASSERT_TRUE(out.finished);
  EXPECT_TRUE(std::isfinite(out.last_loss));
  for (const char* file : kFiles) {
    EXPECT_EQ(text_of(out.checkpoint / file), text_of(first / file)) << file;
  }
  consolidate_checkpoint(out.checkpoint, root_ / "public", {});
  for (const char* file : kFiles) {
    EXPECT_EQ(text_of(root_ / "public" / file), text_of(first / file)) << file;
  }
}

// The run's own files describe its inputs, wherever the weights came from.
TEST_P(GrootTuned, EvaluationNeedsNoFirstCheckpointResumingDoes) {
  const fs::path first = first_run();
  const Overrides more = {"model.checkpoint=" + first.string(), "model.statistics=checkpoint",
                          "train.steps=1"};
  const fs::path second = run(recipe("again", more)).checkpoint;
  const OpenLoopReport with = evaluate(second);
  fs::remove_all(root_ / "first");
  const OpenLoopReport without = evaluate(second);
  EXPECT_EQ(to_json(with), to_json(without));
  Overrides longer = more;
  longer.back() = "train.steps=2";
  longship::testing::expect_error<ConfigError>([&] { run(recipe("again", longer)); },
                                               {"model.checkpoint", "is not there"});
}

TEST_P(GrootTuned, AnUnknownRobotIsNamedBeforeTheRunBegins) {
  const fs::path first = first_run();
  const Recipe r = recipe("again", {"model.checkpoint=" + first.string(), "train.steps=1",
                                    "model.embodiment=oxe_droid"});
  longship::testing::expect_error<ConfigError>(
      [&] { run(r); }, {"model.embodiment", "processor_config.json",
                        "has no 'oxe_droid'; it has: " + robot(), "model.modality"});
  EXPECT_FALSE(fs::exists(root_ / "again"));
}

// The files of the first checkpoint go into those of the run: found before a weight is loaded.
TEST_P(GrootTuned, ABrokenFileIsNamedBeforeTheRunBegins) {
  const fs::path base = root_ / "base";
  fs::create_directories(base);
  std::ofstream(base / "model.safetensors") << "no weights";
  const Recipe r = recipe("again", {"model.checkpoint=" + base.string(), "train.steps=1",
                                    "model.modality=" + (root_ / "places.json").string()});
  for (const auto& [file, text, fault] :
       {std::tuple{"statistics.json", R"({"gr1": {"state": {"arm": [0, 1]}}})",
                   "gr1.state.arm is no object"},
        std::tuple{"processor_config.json", R"({"processor_kwargs": [1]})",
                   "'processor_kwargs' is no object"}}) {
    std::ofstream(base / file) << text;
    longship::testing::expect_error<DataError>([&] { run(r); }, {(base / file).string(), fault});
    EXPECT_FALSE(fs::exists(root_ / "again"));
    fs::remove(base / file);
  }
}

}  // namespace
}  // namespace longship::train
