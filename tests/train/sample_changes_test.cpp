// Augmentation, state dropout and relative actions in whole runs: repeatable, resumable, recorded,
// and absent from evaluation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "data/stats.h"
#include "support/paths.h"
#include "tiny_pi05.h"
#include "train/open_loop_run.h"
#include "train/session.h"
#include "train/trainer.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SampleChanges : public testing::TinyPi05 {
 protected:
  std::vector<double> losses(const std::string& name, const std::vector<std::string>& overrides) {
    return run(name, overrides).losses;
  }
};

std::vector<std::string> with(std::vector<std::string> base, const std::vector<std::string>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

const std::vector<std::string> kAll = {"train.steps=4", "data.augment.preset=openpi",
                                       "data.state_dropout=0.5", "data.delta_actions=[1, -1]"};

TEST_F(SampleChanges, RepeatWithOtherWorkersAndAfterAResume) {
  const auto whole = losses("whole", with(kAll, {"data.workers=0"}));
  auto joined = losses("parts", with(kAll, {"train.stop_after=2", "data.workers=1"}));
  for (const double loss : losses("parts", with(kAll, {"data.workers=3"}))) joined.push_back(loss);
  EXPECT_EQ(whole, joined);
  // Each of the three changes the samples.
  for (const char* off :
       {"data.augment={preset: none}", "data.state_dropout=0", "data.delta_actions=[]"}) {
    EXPECT_NE(whole, losses("other", with(kAll, {off, "checkpoint.resume=never"}))) << off;
    fs::remove_all(root_ / "other");
  }
}

TEST_F(SampleChanges, TheOperatorOfTheModelGivesTheWorkersPictures) {
  const std::vector<std::string> base = {"train.steps=2", "data.augment.preset=lerobot",
                                         "perf.cpu_oracles=true"};
  const auto host = losses("host", with(base, {"data.augment.on=host"}));
  const auto device = losses("device", with(base, {"data.augment.on=device"}));
  ASSERT_EQ(host.size(), device.size());
  for (size_t i = 0; i < host.size(); ++i) EXPECT_NEAR(host[i], device[i], 1e-4 * host[i]);
  EXPECT_NE(host, losses("plain", {"train.steps=2", "perf.cpu_oracles=true"}));
}

TEST_F(SampleChanges, ADeviceThatDoesNotTrainIsRefused) {
  try {
    losses("x", {"data.augment.preset=openpi", "data.augment.on=device", "train.device=cpu"});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("data.augment.on: device needs training on a CUDA device"));
  }
  EXPECT_FALSE(fs::exists(root_ / "x"));
}

TEST_F(SampleChanges, TheResolvedRecipeSaysEveryTransform) {
  const Recipe r = recipe("x", {"data.augment.preset=lerobot"});
  const std::string text = dump(r);
  for (const char* part : {"name: affine", "translate: [0.05, 0.05]", "max_transforms: 3",
                           "interpolation: nearest", "colour: torchvision"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const Recipe again = with_overrides(r, {}, &models::find_family);
  EXPECT_EQ(flatten(again), flatten(r));
  // A list of one's own replaces the preset's.
  const Recipe own =
      recipe("x", {"data.augment={preset: custom, transforms: [{name: hue, range: [-0.1, 0.1]}]}"});
  EXPECT_EQ(own.model->data.augment.transforms.size(), 1u);
  for (const char* bad : {"data.augment.random_order=true", "data.augment={preset: custom}",
                          "data.augment={preset: openpi, max_transforms: 6}"}) {
    EXPECT_THROW(recipe("x", {bad}), ConfigError) << bad;
  }
  EXPECT_THROW(recipe("x", {"data.delta_actions=[1]", "data.delta_exclude=[y]"}), ConfigError);
  EXPECT_THAT(recipe("x", {"data.delta_exclude=[y]"}).model->data.delta.exclude, ElementsAre("y"));
}

TEST_F(SampleChanges, ACheckpointKeepsTheStatisticsOfItsChunks) {
  losses("run", kAll);
  const auto stats = parse_json_file(root_ / "run/latest/stats.json");
  const std::string key = "action relative(1) horizon(8)";
  ASSERT_TRUE(stats.contains(key));
  EXPECT_NE(stats.at(key).at("q99"), stats.at("action").at("q99"));
  // The absolute dimension: every action stands in some chunk, and nothing else does.
  const auto dataset = open_dataset(recipe("run", kAll));
  const data::FeatureStats rows = data::compute_stats(*dataset, "action");
  EXPECT_EQ(stats.at(key).at("min").at(1).get<double>(), rows.min[1]);
  EXPECT_EQ(stats.at(key).at("max").at(1).get<double>(), rows.max[1]);
  OpenLoopRequest request;
  request.checkpoint = root_ / "run";
  request.episodes = "23";
  request.draws = 2;
  request.device = "cpu";
  request.out = root_ / "judged";
  log::init(log::Level::kError);
  const OpenLoopReport report = run_open_loop(request, &models::find_family);
  // Relative predictions are added to the state: even an untrained model stays near the recorded
  // positions (0 .. 512), which lie far from the relative numbers.
  double recorded = 0, predicted = 0;
  for (const EpisodeTrace& trace : report.episodes) {
    for (size_t i = 0; i < trace.recorded.size(); i += 2) {
      recorded += trace.recorded[i];
      predicted += trace.predicted[i];
    }
  }
  EXPECT_GT(recorded, 0);
  EXPECT_NEAR(predicted / recorded, 1.0, 0.35);
}

}  // namespace
}  // namespace longship::train
