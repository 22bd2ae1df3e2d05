// Training on several datasets: order, exact resume, what a checkpoint remembers of them, and the
// gates before the first step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "data/mixture.h"
#include "data/rank_view.h"
#include "fake_family.h"
#include "io/tensor_io.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/order_log.h"
#include "train/trainer.h"
#include "train/training_data.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::fake_families;
using testing::fake_recipe;
using ::testing::HasSubstr;
using ::testing::Not;

const char* const kThree =
    "data.datasets=[{path: a, weight: 5}, {path: b, weight: 3, val_episodes: 2}, {path: b, "
    "weight: 2}]";

std::shared_ptr<const data::Dataset> mixture(const Recipe& recipe,
                                             std::vector<std::vector<int64_t>> lengths = {
                                                 {12, 9, 15}, {11, 8, 20}, {40, 3}}) {
  const std::vector<std::string> names = recipe.data.names();
  std::vector<data::MixturePart> parts(lengths.size());
  for (size_t p = 0; p < parts.size(); ++p) {
    parts[p].dataset = testing::make_fake_dataset(lengths[p]);
    parts[p].name = names.at(p);
  }
  return std::make_shared<data::MixtureDataset>(std::move(parts), "observation.state", "action");
}

class MixtureTrain : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::set_bad_steps({});
    root_ = longship::testing::scratch_dir(
        std::string("mixture_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override {
    testing::set_unreadable_sample(-1);
    log::init(log::Level::kInfo);
    fs::remove_all(root_);
  }
  Recipe recipe(const std::string& name, std::vector<std::string> overrides = {}) {
    overrides.insert(overrides.begin(), {"data.val_episodes=0", kThree});
    return fake_recipe((root_ / name).string(), overrides);
  }
  TrainOutcome run(const std::string& name, std::vector<std::string> overrides = {}) {
    const Recipe r = recipe(name, std::move(overrides));
    return run_on(r, mixture(r));
  }
  TrainOutcome run_on(const Recipe& r, std::shared_ptr<const data::Dataset> dataset) {
    TrainOptions options;
    options.quiet = true;
    return train(r, std::move(dataset), options, fake_families());
  }
  std::string log_of(const std::string& name) {
    return read_file(root_ / name / "train.log", 1 << 24);
  }
  fs::path root_;
};

using longship::testing::message_of;

TEST_F(MixtureTrain, ResumesInTheMiddleOfAnEpochWithOtherWorkersBitwise) {
  for (const char* shuffle : {"data.shuffle=full", "data.shuffle=blocks"}) {
    const std::string tag = shuffle + 5;
    const TrainOutcome whole = run("whole" + tag, {shuffle});
    const TrainOutcome first =
        run("parts" + tag, {shuffle, "train.stop_after=7", "data.workers=4"});
    const TrainOutcome second = run("parts" + tag, {shuffle, "data.workers=1", "data.prefetch=1"});
    std::vector<double> joined = first.losses;
    joined.insert(joined.end(), second.losses.begin(), second.losses.end());
    EXPECT_EQ(whole.losses, joined);
    const auto a = io::load_tensors(root_ / ("whole" + tag) /
                                    "latest/state/optimizer.r0000-of-0001.safetensors");
    const auto b = io::load_tensors(root_ / ("parts" + tag) /
                                    "latest/state/optimizer.r0000-of-0001.safetensors");
    for (const auto& [name, tensor] : a) EXPECT_TRUE(tensor.equal(b.at(name))) << name;
  }
}

TEST_F(MixtureTrain, SamplesAreOrderedByTheWeightsAndSplitsHold) {
  const Recipe r = recipe("x");
  const auto dataset = mixture(r);
  const auto transform = make_transform(r, *dataset);
  const TrainingSamples samples = training_samples(r, *dataset, transform->windows());
  // The second dataset holds its last two episodes out, the others nothing.
  EXPECT_EQ(samples.split.val_episodes, (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(samples.order->epoch_size(), 36 + 11 + 43);
  EXPECT_THAT(samples.summary, HasSubstr("[b_2] 43 samples, 20 % of the mixture"));
  std::vector<int64_t> ids(65536);
  samples.order->fill(0, ids);
  std::vector<int64_t> count(3);
  for (const int64_t id : ids) {
    ASSERT_FALSE(id >= 47 && id < 75) << "a sample that is held out";
    ++count[id < 36 ? 0 : id < 47 ? 1 : 2];
  }
  EXPECT_EQ(count[0], 32768);
  EXPECT_NEAR(static_cast<double>(count[1]), 0.3 * 65536, 1);
}

TEST_F(MixtureTrain, WithoutWeightsAnEpochVisitsEverySampleOnce) {
  for (const char* shuffle : {"data.shuffle=full", "data.shuffle=blocks"}) {
    const Recipe r =
        recipe("x", {"data.datasets=[{path: a}, {path: b}, {path: c, name: c}]", shuffle});
    const auto dataset = mixture(r);
    const auto samples = training_samples(r, *dataset, make_transform(r, *dataset)->windows());
    ASSERT_EQ(samples.order->epoch_size(), 118);
    std::vector<int64_t> ids(118);
    samples.order->fill(118, ids);
    std::sort(ids.begin(), ids.end());
    for (int64_t id = 0; id < 118; ++id) EXPECT_EQ(ids[static_cast<size_t>(id)], id);
  }
}

// Two ranks read the halves of each global batch; what they read is what one rank reads.
TEST_F(MixtureTrain, TwoRanksReadWhatOneReads) {
  const Recipe r = recipe("x");
  const auto dataset = mixture(r);
  const auto transform = make_transform(r, *dataset);
  const TrainingSamples samples = training_samples(r, *dataset, transform->windows());
  const data::ShuffledStream stream(samples.order, 8);
  const auto tensors_of = [&](const std::vector<int64_t>& ids) {
    std::vector<std::unique_ptr<models::Transform::Item>> items;
    for (const int64_t id : ids) {
      items.push_back(transform->prepare(dataset->get(id, transform->windows())));
    }
    std::map<std::string, at::Tensor> out;
    const auto batch = transform->collate(items);
    for (auto& [name, tensor] : batch->tensors()) {
      if (tensor->defined()) out[name] = *tensor;
    }
    return out;
  };
  for (int64_t step = 0; step < 12; ++step) {
    const auto whole = tensors_of(stream.batch(step));
    for (const bool balanced : {false, true}) {
      const data::SampleCost cost = [](int64_t id) { return static_cast<double>(id % 5); };
      for (int64_t rank = 0; rank < 2; ++rank) {
        const data::RankView view(stream, rank, 2, balanced ? cost : data::SampleCost{});
        const auto own = tensors_of(view.batch(step));
        const std::vector<int64_t> places = view.places(step);
        for (const auto& [name, tensor] : own) {
          for (size_t k = 0; k < places.size(); ++k) {
            EXPECT_TRUE(tensor[static_cast<int64_t>(k)].equal(whole.at(name)[places[k]])) << name;
          }
        }
      }
    }
  }
}

TEST_F(MixtureTrain, AChangedDatasetIsNamedOnResume) {
  run("parts", {"train.stop_after=7"});
  const Recipe r = recipe("parts");
  const std::string episodes = message_of<ConfigError>([&] {
    run_on(r, mixture(r, {{12, 9, 15}, {11, 8, 20}, {40, 4}}));
  });
  EXPECT_THAT(episodes, AllOf(HasSubstr("datasets.2 episodes: 2 episodes, 43 frames"),
                              HasSubstr("-> 2 episodes, 44 frames"), HasSubstr("datasets.2 values"),
                              Not(HasSubstr("datasets.0 ")), Not(HasSubstr("datasets.2 tasks"))));
  EXPECT_EQ(run_on(r, mixture(r)).step, 20);
}

TEST_F(MixtureTrain, AChangedMappingIsNamedOnResume) {
  run("parts", {"train.stop_after=7"});
  for (const auto& [change, key] : std::vector<std::pair<std::string, std::string>>{
           {"data.datasets.0.weight=4", "data.datasets.0.weight: 5 -> 4"},
           {"data.datasets.1.keys={x: y}", "data.datasets.1.keys"},
           {"data.datasets.2.embodiment=3", "data.datasets.2.embodiment: 0 -> 3"},
           {"data.datasets.1.val_episodes=1", "data.datasets.1.val_episodes: 2 -> 1"},
           {"data.shuffle=blocks", "data.shuffle: full -> blocks"}}) {
    EXPECT_THAT(message_of<ConfigError>([&] { run("parts", {change}); }), HasSubstr(key));
  }
  // Folders may move.
  EXPECT_EQ(run("parts", {"data.datasets.0.path=elsewhere"}).step, 20);
}

TEST_F(MixtureTrain, CheckpointsKeepTheStatisticsOfEachDataset) {
  run("run", {"train.steps=2"});
  const auto stats = parse_json_file(root_ / "run/latest/stats.json");
  for (const char* name : {"a/action", "b/action", "b_2/observation.state"}) {
    EXPECT_TRUE(stats.contains(name)) << name;
  }
}

TEST_F(MixtureTrain, TheOrderIsLoggedAndCompared) {
  // 90 samples, 20 steps of 8: epochs 0 and 1.
  run("first");
  const Recipe r = recipe("x");
  const auto dataset = mixture(r);
  const auto samples = training_samples(r, *dataset, make_transform(r, *dataset)->windows());
  std::vector<std::string> hashes;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    hashes.push_back(data::order_sha256(*samples.order, epoch));
    EXPECT_THAT(log_of("first"), HasSubstr("order of epoch " + std::to_string(epoch) + ": sha256 " +
                                           hashes.back() + " (90 samples)"));
  }
  EXPECT_THAT(log_of("first"), Not(HasSubstr("order of epoch 2")));
  const std::string both = "data.expect_order_sha256=[" + hashes[0] + ", " + hashes[1] + "]";
  EXPECT_TRUE(run("second", {both}).finished);
  for (const char* change : {"train.seed=8", "data.shuffle=blocks", "data.datasets.0.weight=60",
                             "data.datasets.0.val_episodes=1"}) {
    const std::string message = message_of<ConfigError>([&] { run("third", {both, change}); });
    EXPECT_THAT(message, AllOf(HasSubstr("data.expect_order_sha256"), HasSubstr("epoch 0"),
                               HasSubstr(hashes[0]), HasSubstr("found")))
        << change;
    EXPECT_FALSE(fs::exists(root_ / "third")) << "the gate comes before the run folder";
  }
  const std::string second = "data.expect_order_sha256=[\"\", " + std::string(64, '0') + "]";
  EXPECT_THAT(message_of<ConfigError>([&] { run("fourth", {second}); }),
              AllOf(HasSubstr("epoch 1"), HasSubstr(std::string(64, '0'))));
  // An epoch that the run does not reach is not compared.
  EXPECT_TRUE(run("fifth", {second, "train.steps=5"}).finished);
  EXPECT_THAT(message_of<ConfigError>([&] { run("sixth", {"data.expect_order_sha256=[abc]"}); }),
              HasSubstr("no SHA-256"));
}

TEST_F(MixtureTrain, AResumedRunLogsTheOrderOfItsEpoch) {
  run("parts", {"train.stop_after=13"});
  run("parts");
  const std::string text = log_of("parts");
  size_t count = 0;
  for (size_t at = text.find("order of epoch 1"); at != std::string::npos;
       at = text.find("order of epoch 1", at + 1)) {
    ++count;
  }
  EXPECT_EQ(count, 2u);  // step 13 of 8 samples is inside epoch 1 of 90
}

TEST_F(MixtureTrain, AnUnreadableSampleStopsOrIsLeftOut) {
  const auto single = testing::make_fake_dataset();
  testing::set_unreadable_sample(3);
  const auto run_single = [&](const std::string& name, std::vector<std::string> overrides) {
    return run_on(fake_recipe((root_ / name).string(), overrides), single);
  };
  EXPECT_THAT(message_of<DataError>([&] { run_single("stop", {}); }), HasSubstr("sample 3"));
  EXPECT_THAT(message_of<DataError>([&] { run_single("few", {"data.on_bad_sample=skip"}); }),
              AllOf(HasSubstr("sample 3"), HasSubstr("1 of 47"), HasSubstr("0.1 %")));
  const std::vector<std::string> skip = {"data.on_bad_sample=skip", "data.max_bad_fraction=0.03",
                                         "train.micro_batch=8"};
  const TrainOutcome a = run_single("a", skip);
  EXPECT_TRUE(a.finished);
  EXPECT_THAT(log_of("a"), HasSubstr("sample 3 cannot be read and is left out"));
  std::vector<std::string> other = skip;
  other.insert(other.end(), {"data.workers=5", "data.prefetch=9"});
  EXPECT_EQ(run_single("b", other).losses, a.losses);
  // A resumed run leaves the same sample out.
  other.push_back("train.stop_after=9");
  const TrainOutcome first = run_single("c", other);
  const TrainOutcome second = run_single("c", skip);
  std::vector<double> joined = first.losses;
  joined.insert(joined.end(), second.losses.begin(), second.losses.end());
  EXPECT_EQ(joined, a.losses);
}

TEST_F(MixtureTrain, FewSamplesAreRepeated) {
  const Recipe r = fake_recipe(
      (root_ / "few").string(),
      {"data.val_episodes=0", "train.global_batch=64", "train.micro_batch=64", "train.steps=3"});
  EXPECT_TRUE(run_on(r, testing::make_fake_dataset({12, 7, 9})).finished);
  EXPECT_THAT(log_of("few"), HasSubstr("28 samples for batches of 64: samples are repeated"));
  const Recipe one =
      fake_recipe((root_ / "one").string(), {"data.val_episodes=0", "train.steps=3"});
  EXPECT_TRUE(run_on(one, testing::make_fake_dataset({1})).finished);
}

TEST_F(MixtureTrain, ALargeEpochIsHashedBesideTheTraining) {
  data::IdRanges ids;
  ids.append({0, 1'200'000});
  const data::ShuffledStream stream(ids, 42, 1000);
  fs::create_directories(root_);
  log::init(log::Level::kError, root_ / "train.log");
  const std::string line =
      "order of epoch 1: sha256 " + data::order_sha256(stream.order(), 1) + " (1200000 samples)";
  {
    OrderLog order(stream);
    order.enter(1300);  // resumed inside epoch 1
    order.enter(1301);
    for (int i = 0; i < 600 && read_file(root_ / "train.log", 1 << 24).empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      log::flush();
    }
  }
  EXPECT_THAT(log_of(""), HasSubstr(line));
  // Ends at once although nothing is hashed yet.
  const auto start = std::chrono::steady_clock::now();
  {
    data::IdRanges huge;
    huge.append({0, int64_t{1} << 33});
    const data::ShuffledStream endless(huge, 42, 1000);
    OrderLog order(endless);
    order.enter(0);
  }
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20);
}

TEST(MixtureRecipe, FaultsNameTheirKeys) {
  const auto error_of = [](std::vector<std::string> overrides) {
    return message_of<ConfigError>([&] { fake_recipe("runs/x", overrides); });
  };
  EXPECT_THAT(error_of({"data.val_episodes=0", "data.datasets=[{path: a, weight: 1}, {path: b}]"}),
              HasSubstr("1 of 2 datasets have a weight"));
  EXPECT_THAT(error_of({"data.val_episodes=0",
                        "data.datasets=[{path: a, weight: 0}, {path: b, weight: 1}]"}),
              HasSubstr("data.datasets.0.weight: 0"));
  EXPECT_THAT(error_of({"data.val_episodes=[0]", "data.datasets=[{path: a}, {path: b}]"}),
              HasSubstr("data.val_episodes: a list"));
  EXPECT_THAT(error_of({"data.datasets=[{path: a, val_episodes: 1}]"}),
              HasSubstr("data.datasets.0.val_episodes"));
  EXPECT_THAT(error_of({"data.val_episodes=0",
                        "data.datasets=[{path: a, cameras: {left: top}}, {path: b}]"}),
              AllOf(HasSubstr("data.datasets.1.cameras"), HasSubstr("slots: left")));
  EXPECT_THAT(error_of({"data.datasets=[{path: a, name: x}, {path: b, name: x}]"}),
              HasSubstr("'x' is the name of two"));
  EXPECT_THAT(error_of({"data.datasets=[{path: a}, {path: b}]", "eval.open_loop=true"}),
              HasSubstr("eval.open_loop"));
  EXPECT_THAT(error_of({"data.block_episodes=3"}), HasSubstr("data.block_episodes"));
  EXPECT_THAT(error_of({"data.max_bad_fraction=0.5"}), HasSubstr("data.max_bad_fraction"));
}

TEST(MixtureRecipe, NamesAreUnique) {
  const Recipe r = fake_recipe(
      "runs/x", {"data.datasets=[{path: x/a}, {path: y/a/}, {path: a_2}, {path: z, name: a}]"});
  EXPECT_EQ(r.data.names(), (std::vector<std::string>{"a_2", "a_3", "a_2_2", "a"}));
}

TEST(ExternalStats, ReadsTheThreeForms) {
  const fs::path folder = longship::testing::scratch_dir("external_stats");
  const auto read = [&](const std::string& text) {
    std::ofstream(folder / "s.json") << text;
    return read_external_stats(folder / "s.json", "observation.state", "action");
  };
  const auto openpi = read(
      R"({"norm_stats": {"state": {"mean": [1, 2], "std": [3, 4], "q01": [0, 0], "q99": [5, 6]},
          "actions": {"mean": [7], "std": [8], "q01": null, "q99": null}}})");
  EXPECT_EQ(openpi.at("observation.state").q99, (std::vector<double>{5, 6}));
  EXPECT_EQ(openpi.at("action").mean, (std::vector<double>{7}));
  EXPECT_TRUE(openpi.at("action").q01.empty());
  EXPECT_THAT(openpi.at("action").source, HasSubstr("s.json"));
  const auto lerobot = read(R"({"action": {"min": [0], "max": [1], "count": [28]},
          "observation.images.top": {"mean": [[[0.5]]], "min": [NaN]}})");
  EXPECT_EQ(lerobot.size(), 1u);
  EXPECT_EQ(lerobot.at("action").count, 28);
  const auto error_of = [&](const std::string& text) {
    return message_of<DataError>([&] { read(text); });
  };
  EXPECT_THAT(error_of(R"({"acton": {"min": [0]}})"),
              AllOf(HasSubstr("s.json"), HasSubstr("'action'"), HasSubstr("acton")));
  EXPECT_THAT(error_of(R"({"action": {"min": [0], "max": [1, 2]}})"), HasSubstr("1 and 2 numbers"));
  EXPECT_THAT(error_of(R"({"action": {"min": [NaN]}})"), HasSubstr("action.min holds nan"));
  EXPECT_THAT(error_of(R"({"action": {"count": 3}})"), HasSubstr("none of min"));
  EXPECT_THAT(message_of<DataError>([&] { read_external_stats(folder / "no", "s", "a"); }),
              HasSubstr("no such file"));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace longship::train
