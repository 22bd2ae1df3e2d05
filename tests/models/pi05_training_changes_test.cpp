// What training does to samples and evaluation does not: augmentation, state dropout, relative
// actions and their inverse.

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "data/augment/picture.h"
#include "data/golden_arrays.h"
#include "models/pi05/policy.h"
#include "models/pi05/prompt.h"
#include "models/pi05/transform.h"
#include "ops/augment.h"

namespace longship::models {
namespace {

using ::testing::ElementsAre;
using testing::FakeDataset;
using ::testing::HasSubstr;

Pi05TransformOptions options() {
  Pi05TransformOptions o;
  o.image_size = 16;
  o.horizon = 4;
  o.max_action_dim = 6;
  o.max_state_dim = 5;
  o.tokenizer_path = testing::golden_path("pi05/paligemma_tokenizer/tokenizer.model");
  o.slots = {"base_0_rgb", "left_wrist_0_rgb"};
  o.cameras = {{"base_0_rgb", "top"}, {"left_wrist_0_rgb", "hand"}};
  return o;
}

data::AugmentConfig preset(const char* name) {
  data::AugmentConfig config;
  config.preset = name;
  config.resolve();
  return config;
}

FakeDataset dataset() {
  FakeDataset d;
  d.add_column("action", 3, [](int64_t e, int64_t t, int64_t i) {
    return static_cast<float>(100 * e + 10 * t + 3 * i + (i == 1 ? t * t : 0));
  });
  d.add_column("observation.state", 4, [](int64_t e, int64_t t, int64_t i) {
    return static_cast<float>(90 * e + 8 * t * (i + 1) + (t % 3));
  });
  d.add_camera("top", 20, 30);
  d.add_camera("hand", 16, 16);
  d.add_episode(9);
  d.add_episode(4);
  d.task_list = {"push", "pull"};
  return d;
}

std::unique_ptr<Pi05Batch> batch_of(const Pi05Transform& t, const FakeDataset& d,
                                    const std::vector<int64_t>& ids,
                                    std::optional<data::TrainDraw> draw) {
  std::vector<std::unique_ptr<Transform::Item>> items;
  for (const int64_t id : ids) {
    data::RawSample sample = d.get(id, t.windows());
    sample.draw = draw;
    items.push_back(t.prepare(sample));
  }
  auto batch = t.collate(items);
  return std::unique_ptr<Pi05Batch>(dynamic_cast<Pi05Batch*>(batch.release()));
}

TEST(TrainingChanges, EvaluationSeesThePicturesAsTheyAre) {
  const FakeDataset d = dataset();
  Pi05TransformOptions o = options();
  const auto plain = batch_of(Pi05Transform(o, d), d, {0, 5}, std::nullopt);
  o.augment = preset("openpi");
  o.state_dropout = 1;
  const Pi05Transform t(o, d);
  const auto evaluated = batch_of(t, d, {0, 5}, std::nullopt);
  EXPECT_TRUE(at::equal(evaluated->images, plain->images));
  EXPECT_TRUE(at::equal(evaluated->token_ids, plain->token_ids));
  EXPECT_TRUE(at::equal(evaluated->state, plain->state));
  EXPECT_FALSE(evaluated->augment.defined());
  const auto trained = batch_of(t, d, {0, 5}, data::TrainDraw{1, 0});
  EXPECT_FALSE(at::equal(trained->images, plain->images));
  EXPECT_FALSE(trained->augment.defined()) << "the host has done it";
}

TEST(TrainingChanges, PicturesDependOnSampleAndStepNotOnThreadsOrNeighbours) {
  const FakeDataset d = dataset();
  Pi05TransformOptions o = options();
  o.augment = preset("lerobot");
  const Pi05Transform t(o, d);
  const data::TrainDraw draw{5, 17};
  const auto want = batch_of(t, d, {0, 3, 7, 10}, draw);
  const auto alone = batch_of(t, d, {7}, draw);
  EXPECT_TRUE(at::equal(alone->images, want->images.narrow(0, 4, 2)));
  const auto turned = batch_of(t, d, {10, 0}, draw);
  EXPECT_TRUE(at::equal(turned->images.narrow(0, 0, 2), want->images.narrow(0, 6, 2)));
  std::vector<std::unique_ptr<Pi05Batch>> got(4);
  std::vector<std::thread> threads;
  for (auto& b : got) threads.emplace_back([&] { b = batch_of(t, d, {0, 3, 7, 10}, draw); });
  for (auto& thread : threads) thread.join();
  for (const auto& b : got) EXPECT_TRUE(at::equal(b->images, want->images));
  EXPECT_FALSE(
      at::equal(batch_of(t, d, {0, 3, 7, 10}, data::TrainDraw{5, 18})->images, want->images));
}

TEST(TrainingChanges, TheWristCameraKeepsItsGeometryAndParametersGoToTheDevice) {
  const FakeDataset d = dataset();
  Pi05TransformOptions o = options();
  o.augment = preset("openpi");
  const data::TrainDraw draw{5, 1};
  const auto host = batch_of(Pi05Transform(o, d), d, {2, 9}, draw);
  o.augment_on_device = true;
  const auto device = batch_of(Pi05Transform(o, d), d, {2, 9}, draw);
  ASSERT_TRUE(device->augment.defined());
  EXPECT_EQ(device->augment.sizes(), (std::vector<int64_t>{4, 20}));
  const float* rows = device->augment.const_data_ptr<float>();
  for (int64_t picture = 0; picture < 4; ++picture) {
    const bool wrist = picture % 2 == 1;
    EXPECT_EQ(rows[picture * 20 + 8], wrist ? 16.0F : 15.0F);  // the crop's width
    EXPECT_EQ(rows[picture * 20 + 1] == 0.0F, wrist);          // the rotation's sine
  }
  const at::Tensor changed = ops::augment_pictures(device->images, device->augment, 16, 16);
  EXPECT_LE((changed - host->images).abs().max().item<float>(), 1e-5F);
  EXPECT_TRUE(at::equal(device->token_ids, host->token_ids));
  EXPECT_EQ(host->tensors().size() + 1, device->tensors().size());
}

TEST(TrainingChanges, TheLossOfTheModelSeesTheChangedPictures) {
  Pi05Config config;
  config.size = "tiny";
  config.data.horizon = 4;
  config.action_dim = 3;
  Pi05Policy policy(config, {.seed = 3});
  Pi05Batch batch;
  batch.images = at::empty({2, 3, 21, 21}, at::kFloat).uniform_(-1, 1);
  batch.token_ids = at::empty({4}, at::kLong).fill_(5);
  batch.state = at::empty({2, 12}, at::kFloat).fill_(0.1);
  batch.actions = at::empty({2, 4, 12}, at::kFloat).uniform_(-1, 1);
  batch.action_is_pad = at::empty({2, 4}, at::kBool).fill_(false);
  batch.sample_ids = {0, 1};
  batch.images_per_sample = {1, 1};
  batch.tokens_per_sample = {2, 2};
  const data::AugmentConfig augment = preset("openpi");
  Pi05Batch given = batch, by_hand = batch;
  given.augment = at::empty({2, 20}, at::kFloat);
  by_hand.images = batch.images.clone();
  constexpr int64_t kPixels = 3 * 21 * 21;
  for (int64_t i = 0; i < 2; ++i) {
    const auto change = data::draw_augment(augment, {1, 2}, i, "base_0_rgb", "top", 21, 21);
    data::write_augment(change, {given.augment.mutable_data_ptr<float>() + i * 20, 20});
    data::apply_augment(change, {by_hand.images.mutable_data_ptr<float>() + i * kPixels, kPixels},
                        21, 21);
  }
  const at::Tensor before = given.images.clone();
  Policy& p = policy;
  const auto loss = [&](const Pi05Batch& b) { return p.loss(b, {7, 0}).loss.item<float>(); };
  EXPECT_NEAR(loss(given), loss(by_hand), 1e-5);
  EXPECT_NE(loss(given), loss(batch));
  EXPECT_TRUE(at::equal(given.images, before)) << "the batch keeps its pictures";
  policy.prepare(given, {7, 0});
  policy.prepare(batch, {7, 0});
  EXPECT_NE(given.signature(), batch.signature());
}

TEST(TrainingChanges, DroppedStatesAreZeroAndAreDrawnPerSampleAndStep) {
  const FakeDataset d = dataset();
  Pi05TransformOptions o = options();
  o.state_dropout = 0.3;
  const Pi05Transform t(o, d);
  const auto plain = batch_of(t, d, {4}, std::nullopt);
  int dropped = 0;
  const int n = 400;
  for (int step = 0; step < n; ++step) {
    const auto b = batch_of(t, d, {4}, data::TrainDraw{9, static_cast<uint64_t>(step)});
    const bool zero = b->state.abs().max().item<float>() == 0;
    dropped += zero ? 1 : 0;
    const std::vector<int64_t> ids(b->token_ids.const_data_ptr<int64_t>(),
                                   b->token_ids.const_data_ptr<int64_t>() + b->token_ids.numel());
    const auto want = zero ? t.prompt_tokens("push", std::vector<float>(4, 0.0F))
                           : std::vector<int64_t>(plain->token_ids.const_data_ptr<int64_t>(),
                                                  plain->token_ids.const_data_ptr<int64_t>() +
                                                      plain->token_ids.numel());
    EXPECT_EQ(ids, want) << step;
  }
  EXPECT_NEAR(dropped, n * 0.3, 4 * std::sqrt(n * 0.21));
  Pi05TransformOptions always = options();
  always.state_dropout = 1;
  const auto none = batch_of(Pi05Transform(always, d), d, {0, 1, 2, 3}, data::TrainDraw{9, 0});
  EXPECT_EQ(none->state.abs().max().item<float>(), 0.0F);
}

TEST(RelativeActions, AreNormalisedByChunkStatisticsAndComeBackAbsolute) {
  const FakeDataset d = dataset();
  for (const auto mode :
       {data::NormMode::kQuantiles, data::NormMode::kMeanStd, data::NormMode::kMinMax}) {
    Pi05TransformOptions o = options();
    o.action_norm = mode;
    o.delta.runs = {2, -1};
    const Pi05Transform t(o, d);
    EXPECT_THAT(t.delta_mask(), ElementsAre(1, 1));
    const auto own = t.own_stats();
    ASSERT_EQ(own.size(), 1u);
    EXPECT_EQ(own.begin()->first, "action relative(2) horizon(4)");
    const auto b = batch_of(t, d, {0, 7, 10}, std::nullopt);
    // Frame 7: action[t][0] = 10 t, state[0] = 8 t + t % 3; rows past the end repeat frame 8.
    std::vector<float> row = {70 - 57.0F, 70 + 3 + 49 - (16 * 7 + 1.0F), 76}, want(3);
    t.action_normalizer().normalise(row, want);
    const float* a = b->actions.const_data_ptr<float>() + 1 * 4 * 6;
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(a[i], want[i]) << i;
    const at::Tensor raw = t.denormalise_actions(b->actions, b.get());
    for (int64_t s = 0; s < 3; ++s) {
      const auto sample = d.get_columns(b->sample_ids[static_cast<size_t>(s)], t.windows());
      const auto& recorded = sample.columns.at("action").values;
      for (size_t i = 0; i < recorded.size(); ++i) {
        EXPECT_NEAR(raw.const_data_ptr<float>()[s * 12 + static_cast<int64_t>(i)], recorded[i],
                    2e-4);
      }
    }
    // Several draws behind each other belong to the same samples.
    const at::Tensor twice = t.denormalise_actions(at::cat({b->actions, b->actions}), b.get());
    EXPECT_TRUE(at::equal(twice.narrow(0, 0, 3), raw));
    EXPECT_TRUE(at::equal(twice.narrow(0, 3, 3), raw));
    EXPECT_THROW(t.denormalise_actions(b->actions), InternalError);
    EXPECT_THROW(t.denormalise_actions(twice.narrow(0, 0, 4).contiguous(), b.get()), ShapeError);
  }
}

TEST(RelativeActions, NeedTheStateEvenWhereTheModelDoesNotReadIt) {
  const FakeDataset d = dataset();
  Pi05TransformOptions o = options();
  o.discrete_state = false;
  o.delta.runs = {3};
  const Pi05Transform t(o, d);
  EXPECT_EQ(t.windows().columns.count("observation.state"), 1u);
  const auto b = batch_of(t, d, {0}, std::nullopt);
  EXPECT_EQ(b->raw_state.size(), 4u);
  const at::Tensor raw = t.denormalise_actions(b->actions, b.get());
  EXPECT_NEAR(raw.const_data_ptr<float>()[0], 0, 1e-4);
}

TEST(RelativeActions, TheExportedConfigurationSaysThem) {
  Pi05Config config;
  const auto named = pi05_relative_actions({1, 0, 1}, 4, {"pan", "lift", "elbow", "gripper"});
  EXPECT_THAT(named.excluded, ElementsAre("lift", "gripper"));
  const auto text = pi05_export_config(config, 4, 4, {"base_0_rgb"}, named);
  const auto doc = nlohmann::json::parse(text);
  EXPECT_EQ(doc.at("use_relative_actions"), true);
  EXPECT_THAT(doc.at("relative_exclude_joints"), ElementsAre("lift", "gripper"));
  EXPECT_THAT(doc.at("action_feature_names"), ElementsAre("pan", "lift", "elbow", "gripper"));
  // Names that stand in for missing ones are no part of each other.
  const auto bare = pi05_relative_actions({1}, 12, {});
  EXPECT_EQ(bare.excluded.size(), 11u);
  EXPECT_EQ(bare.names[1], "action[1]");
  EXPECT_EQ(bare.names[11].find(bare.names[1]), std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(pi05_export_config(config, 4, 4, {"base_0_rgb"}))
                   .contains("use_relative_actions"));
}

}  // namespace
}  // namespace longship::models
