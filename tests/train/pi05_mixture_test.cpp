// The true model family on datasets of different robots: mapping, statistics, masks, prompts.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "data/broken_case.h"
#include "data/mixture.h"
#include "io/tensor_io.h"
#include "models/pi05/policy.h"
#include "models/pi05/transform.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/open_loop_run.h"
#include "train/session.h"
#include "train/trainer.h"
#include "train/training_data.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

using longship::testing::message_of;

class Pi05Mixture : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = longship::testing::scratch_dir(
        std::string("pi05_mix_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override {
    log::init(log::Level::kInfo);
    fs::remove_all(root_);
  }
  // base_v21: six dimensions, cameras top and wrist. two_cam_v30: fourteen, cam_high and
  // cam_right_wrist.
  Recipe recipe(std::vector<std::string> overrides = {}) {
    const fs::path source = longship::testing::source_root();
    const std::string six = longship::testing::dataset_path("broken/base_v21").string();
    const std::string fourteen = longship::testing::dataset_path("two_cam_v30").string();
    std::vector<std::string> all = {
        "output_dir=" + (root_ / "run").string(),
        "model.tokenizer=" + (source / "data/tokenizers/pi05_demo.model").string(),
        "model.token_limit=200",
        "model.max_action_dim=16",
        "model.max_state_dim=16",
        "data.val_episodes=0",
        "data.cameras={}",
        "data.datasets=[{path: " + six +
            ", name: six, weight: 1, cameras: {base_0_rgb: observation.images.top}, embodiment: 4},"
            " {path: " +
            fourteen +
            ", name: fourteen, weight: 3, cameras: {base_0_rgb: observation.images.cam_high, "
            "left_wrist_0_rgb: observation.images.cam_right_wrist}}]",
        "train.threads=1",
        "train.steps=3"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return load_recipe(source / "configs/pi05/tiny_test.yaml", all, &models::find_family);
  }
  struct Ready {
    Recipe recipe;
    std::shared_ptr<const data::Dataset> dataset;
    std::unique_ptr<models::Transform> transform;
    std::unique_ptr<models::Batch> batch(const std::vector<int64_t>& ids) const {
      std::vector<std::unique_ptr<models::Transform::Item>> items;
      for (const int64_t id : ids) {
        items.push_back(transform->prepare(dataset->get(id, transform->windows())));
      }
      return transform->collate(items);
    }
  };
  Ready ready(std::vector<std::string> overrides = {}) {
    Ready out{recipe(std::move(overrides)), nullptr, nullptr};
    out.dataset = open_dataset(out.recipe);
    out.recipe.model->bind_dataset(*out.dataset);
    out.transform = make_transform(out.recipe, *out.dataset);
    out.transform->check_dataset(*out.dataset);
    return out;
  }
  fs::path root_;
};

const models::Pi05Batch& own(const models::Batch& batch) {
  return dynamic_cast<const models::Pi05Batch&>(batch);
}

TEST_F(Pi05Mixture, EachRobotIsNormalisedAndPaddedByItself) {
  const Ready r = ready();
  const auto batch = r.batch({0, 28, 5});  // 28 samples of the first dataset
  const models::Pi05Batch& b = own(*batch);
  EXPECT_EQ(b.images_per_sample, (std::vector<int64_t>{1, 2, 1}));
  ASSERT_TRUE(b.dim_is_real.defined());
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t width = i == 1 ? 14 : 6;
    EXPECT_EQ(b.dim_is_real[i].sum().item<int64_t>(), width);
    EXPECT_TRUE(b.dim_is_real[i].narrow(0, 0, width).all().item<bool>());
    EXPECT_EQ(b.actions[i].narrow(1, width, 16 - width).abs().max().item<float>(), 0);
  }
  // Values are those of the dataset alone.
  const auto& mixture = dynamic_cast<const data::MixtureDataset&>(*r.dataset);
  const auto alone = make_part_transform(r.recipe, mixture, 1);
  std::vector<std::unique_ptr<models::Transform::Item>> items;
  items.push_back(alone->prepare(mixture.parts()[1].dataset->get(0, alone->windows())));
  const auto single = alone->collate(items);
  EXPECT_TRUE(own(*single).actions[0].equal(b.actions[1]));
  EXPECT_TRUE(own(*single).state[0].equal(b.state[1]));
  EXPECT_EQ(r.dataset->get(0, {}).embodiment, 4);
}

TEST_F(Pi05Mixture, PlacesOfDimensionsAreThoseOfTheRecipe) {
  const Ready r = ready({"data.datasets.0.action_dims=[9, 8, 7, 6, 5, 15]",
                         "data.datasets.0.state_dims=[1, 0, 2, 3, 4, 5]"});
  const Ready plain = ready();
  const auto moved = r.batch({3}), straight = plain.batch({3});
  const std::vector<int64_t> places = {9, 8, 7, 6, 5, 15};
  for (size_t d = 0; d < places.size(); ++d) {
    EXPECT_TRUE(own(*moved)
                    .actions[0]
                    .select(1, places[d])
                    .equal(own(*straight).actions[0].select(1, static_cast<int64_t>(d))));
  }
  EXPECT_EQ(own(*moved).dim_is_real[0].sum().item<int64_t>(), 6);
  EXPECT_EQ(own(*moved).state[0][0].item<float>(), own(*straight).state[0][1].item<float>());
  // And back into the robot's own order and units.
  const auto& mixture = dynamic_cast<const data::MixtureDataset&>(*r.dataset);
  const auto part = make_part_transform(r.recipe, mixture, 0);
  data::WindowSpec windows;
  windows.columns["action"] = {0};
  const auto raw = part->denormalise_actions(own(*moved).actions);
  const auto want = mixture.parts()[0].dataset->get_columns(3, windows).columns.at("action").values;
  ASSERT_EQ(raw.size(2), 6);
  for (int64_t d = 0; d < 6; ++d) {
    EXPECT_NEAR(raw[0][0][d].item<float>(), want[static_cast<size_t>(d)], 1e-3);
  }
}

TEST_F(Pi05Mixture, PaddedDimensionsAreOutsideTheLoss) {
  const Ready r = ready();
  const auto policy = r.recipe.family->build(*r.recipe.model, {});
  const std::vector<int64_t> ids = {0, 28, 40, 7};
  auto batch = r.batch(ids);
  policy->prepare(*batch, {1, 2});
  const double loss = policy->loss(*batch).loss.item<double>();
  // Targets of padded dimensions change by noise in them: with the mask nothing does.
  auto changed = r.batch(ids);
  policy->prepare(*changed, {1, 2});
  auto& c = dynamic_cast<models::Pi05Batch&>(*changed);
  // The target is noise - actions; shift both, so that the input of the model stays.
  const at::Tensor pad = c.dim_is_real.logical_not().unsqueeze(1).to(at::kFloat);
  const auto terms = [&](models::Batch& any) {
    auto& b = dynamic_cast<models::Pi05Batch&>(any);
    return dynamic_cast<models::Pi05Policy&>(*policy).flow(b).elem;
  };
  const at::Tensor elem = terms(*batch);  // [B, A, D]
  const at::Tensor real = own(*batch).dim_is_real.unsqueeze(1).to(at::kFloat);
  const double expected =
      ((elem * real).sum({1, 2}) / (real.sum({1, 2}) * static_cast<double>(elem.size(1))))
          .mean()
          .item<double>();
  EXPECT_NEAR(loss, expected, 1e-6 * expected);
  EXPECT_GT((elem * pad).abs().max().item<float>(), 0) << "padded terms exist and do not count";
  // Each sample counts the same whatever its robot: the loss is the mean of the samples' losses.
  double mean = 0;
  for (const int64_t id : ids) {
    auto one = r.batch({id});
    policy->prepare(*one, {1, 2});
    mean += policy->loss(*one).loss.item<double>() / 4;
  }
  EXPECT_NEAR(loss, mean, 1e-5 * mean);
}

TEST_F(Pi05Mixture, LossDimsIsAChoice) {
  const std::vector<int64_t> ids = {0, 28};
  const auto loss_of = [&](std::vector<std::string> overrides) {
    const Ready r = ready(std::move(overrides));
    const auto policy = r.recipe.family->build(*r.recipe.model, {});
    auto batch = r.batch(ids);
    policy->prepare(*batch, {1, 2});
    return policy->loss(*batch).loss.item<double>();
  };
  const double openpi = loss_of({"model.parity=openpi"});
  const double all = loss_of({"model.parity=openpi", "model.loss_dims=all"});
  const double real = loss_of({"model.parity=openpi", "model.loss_dims=real"});
  EXPECT_EQ(openpi, real);  // dimensions differ: auto masks
  EXPECT_NE(openpi, all);
}

TEST_F(Pi05Mixture, OneRobotKeepsTheFamilysRule) {
  const std::string six = longship::testing::dataset_path("broken/base_v21").string();
  const std::string one =
      "data.datasets=[{path: " + six + ", cameras: {base_0_rgb: observation.images.top}}]";
  const Ready r = ready({one, "model.parity=openpi"});
  const auto batch = r.batch({0, 3});
  EXPECT_FALSE(own(*batch).dim_is_real.defined());
  const auto loss_of = [&](const char* dims) {
    const Ready own_ready = ready({one, "model.parity=openpi", dims});
    const auto policy = own_ready.recipe.family->build(*own_ready.recipe.model, {});
    auto b = own_ready.batch({0, 3});
    policy->prepare(*b, {1, 2});
    const auto result = policy->loss(*b);
    return std::pair(result.loss.item<double>(),
                     result.metrics.empty() ? -1 : result.metrics[0].second.item<double>());
  };
  const auto automatic = loss_of("model.loss_dims=auto"), all = loss_of("model.loss_dims=all"),
             real = loss_of("model.loss_dims=real");
  EXPECT_EQ(automatic.first, all.first);
  EXPECT_NEAR(real.first, all.second, 1e-6 * real.first);  // loss_real_dims
  EXPECT_NE(real.first, all.first);
}

TEST_F(Pi05Mixture, MoreDimensionsThanTheModelHasAreAnError) {
  const auto built = longship::testing::build_broken_case("action-of-40-numbers");
  const std::string six = longship::testing::dataset_path("broken/base_v21").string();
  const std::string map = "cameras: {base_0_rgb: observation.images.top}";
  const std::string message = message_of<DataError>([&] {
    ready({"data.datasets=[{path: " + six + ", " + map + "}, {path: " + built.root.string() + ", " +
               map + "}]",
           "model.max_action_dim=32"});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("40"), HasSubstr("32"), HasSubstr("max_action_dim")));
  EXPECT_THAT(
      message_of<DataError>([&] { ready({"data.datasets.0.action_dims=[0, 1, 2, 3, 4, 16]"}); }),
      AllOf(HasSubstr("max_action_dim"), HasSubstr("16")));
  fs::remove_all(built.root);
}

TEST_F(Pi05Mixture, TrainsResumesAndIsEvaluatedByItsDatasets) {
  const auto run = [&](const std::string& name, std::vector<std::string> overrides) {
    overrides.push_back("output_dir=" + (root_ / name).string());
    const Recipe r = recipe(std::move(overrides));
    TrainOptions options;
    options.quiet = true;
    return train(r, open_dataset(r), options, &models::find_family);
  };
  const TrainOutcome whole = run("whole", {});
  const TrainOutcome first = run("parts", {"train.stop_after=1", "data.workers=1"});
  const TrainOutcome second = run("parts", {"data.workers=3"});
  std::vector<double> joined = first.losses;
  joined.insert(joined.end(), second.losses.begin(), second.losses.end());
  EXPECT_EQ(whole.losses, joined);
  log::init(log::Level::kError);
  OpenLoopRequest request;
  request.checkpoint = root_ / "whole";
  request.episodes = "0";
  request.draws = 1;
  request.device = "cpu";
  request.out = root_ / "judged";
  EXPECT_THAT(message_of<ConfigError>([&] { run_open_loop(request, &models::find_family); }),
              AllOf(HasSubstr("six, fourteen"), HasSubstr("--dataset")));
  request.dataset = "six";
  const OpenLoopReport report = run_open_loop(request, &models::find_family);
  EXPECT_EQ(report.num_frames, 12);
  EXPECT_THAT(report.dataset, HasSubstr("base_v21"));
}

TEST_F(Pi05Mixture, StatisticsOfAFileReplaceThoseOfTheDataset) {
  fs::create_directories(root_);
  const auto numbers = [](double value) {
    std::string text = "[";
    for (int d = 0; d < 6; ++d) text += (d ? "," : "") + std::to_string(value);
    return text + "]";
  };
  std::ofstream(root_ / "norm_stats.json")
      << R"({"norm_stats": {"state": {"q01": )" << numbers(-1000) << R"(, "q99": )" << numbers(1000)
      << R"(}, "actions": {"q01": )" << numbers(-500) << R"(, "q99": )" << numbers(500) << "}}}";
  const std::string stats = "data.datasets.0.stats=" + (root_ / "norm_stats.json").string();
  const Ready r = ready({stats});
  const auto batch = r.batch({3});
  const auto raw = r.dataset->get_columns(3, r.transform->windows());
  const float value = raw.columns.at("action").values[2];
  EXPECT_NEAR(own(*batch).actions[0][0][2].item<float>(), value / 500, 1e-6);
  EXPECT_THAT(message_of<DataError>([&] {
                ready({"data.datasets.1.stats=" + (root_ / "norm_stats.json").string()});
              }),
              AllOf(HasSubstr("norm_stats.json"), HasSubstr("6 numbers"), HasSubstr("has 14")));
}

TEST_F(Pi05Mixture, SkippedSamplesAreThoseThatTouchANumberThatIsNone) {
  const auto built = longship::testing::build_broken_case("nan-in-action");
  const std::string one = "data.datasets=[{path: " + built.root.string() +
                          ", cameras: {base_0_rgb: observation.images.top}}]";
  EXPECT_THAT(message_of<DataError>([&] { ready({one}); }),
              AllOf(HasSubstr("action[2], episode 1, frame 3"), HasSubstr("on_bad_sample")));
  const std::vector<std::string> skip = {one, "data.on_bad_sample=skip"};
  const auto samples_of = [&](std::vector<std::string> overrides) {
    const Ready r = ready(std::move(overrides));
    return training_samples(r.recipe, *r.dataset, r.transform->windows());
  };
  EXPECT_THAT(message_of<DataError>([&] { samples_of(skip); }),
              AllOf(HasSubstr("4 of 28"), HasSubstr("data.max_bad_fraction")));
  // Horizon 8: frames 0 .. 3 of episode 1 touch frame 3; its samples are 12 .. 18.
  const TrainingSamples samples =
      samples_of({one, "data.on_bad_sample=skip", "data.max_bad_fraction=0.2"});
  EXPECT_EQ(samples.num_bad, 4);
  EXPECT_EQ(samples.split.train_ids.ranges(), (std::vector<data::IdRange>{{0, 12}, {16, 28}}));
  std::vector<int64_t> ids(24);
  for (const char* shuffle : {"data.shuffle=full", "data.shuffle=blocks"}) {
    samples_of({one, "data.on_bad_sample=skip", "data.max_bad_fraction=0.2", shuffle})
        .order->fill(0, ids);
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(ids, samples.split.train_ids.to_vector());
  }
  const Ready r = ready({one, "data.on_bad_sample=skip", "data.max_bad_fraction=0.2"});
  EXPECT_THAT(r.dataset->stats().at("action").source, HasSubstr("27 rows"));
  fs::remove_all(built.root);
}

TEST_F(Pi05Mixture, RenamedKeysReadAsTheOriginals) {
  // The same dataset under the names of another recorder.
  const fs::path other = root_ / "renamed";
  fs::create_directories(root_);
  fs::copy(longship::testing::dataset_path("broken/base_v21"), other, fs::copy_options::recursive);
  const std::string six = longship::testing::dataset_path("broken/base_v21").string();
  // A recorder that calls its action observation.state and the other way round.
  const Ready swapped =
      ready({"data.datasets=[{path: " + six +
             ", keys: {observation.state: action, action: observation.state, front: "
             "observation.images.top}, cameras: {base_0_rgb: front}}]"});
  data::WindowSpec windows;
  windows.columns["action"] = {0};
  windows.columns["observation.state"] = {0};
  const auto sample = swapped.dataset->get_columns(5, windows);
  EXPECT_NEAR(sample.columns.at("observation.state").values[0],
              sample.columns.at("action").values[0] + 0.01, 1e-4);
  EXPECT_EQ(own(*swapped.batch({5})).images_per_sample[0], 1);
  EXPECT_THAT(message_of<ConfigError>([&] {
                ready({"data.datasets=[{path: " + six +
                       ", keys: {action: act}, cameras: {base_0_rgb: observation.images.top}}]"});
              }),
              AllOf(HasSubstr("data.datasets.0.keys"), HasSubstr("'act'"), HasSubstr("action")));
}

}  // namespace
}  // namespace longship::train
