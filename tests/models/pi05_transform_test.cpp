#include "models/pi05/transform.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "base/error.h"
#include "data/golden_arrays.h"
#include "models/pi05/prompt.h"
#include "support/expect_error.h"

namespace longship::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FakeDataset;
using ::testing::HasSubstr;

Pi05TransformOptions options() {
  Pi05TransformOptions o;
  o.image_size = 8;
  o.horizon = 4;
  o.max_action_dim = 6;
  o.max_state_dim = 5;
  o.tokenizer_path = testing::golden_path("pi05/paligemma_tokenizer/tokenizer.model");
  o.slots = {"base_0_rgb"};
  return o;
}

FakeDataset dataset() {
  FakeDataset d;
  d.add_column("action", 2, [](int64_t e, int64_t t, int64_t i) {
    return static_cast<float>(100 * e + 10 * t + (i == 0 ? 0 : t * t));
  });
  d.add_column("observation.state", 3, [](int64_t e, int64_t t, int64_t i) {
    return i == 2 ? 3.0F : static_cast<float>(e + t * (i + 1));
  });
  d.add_camera("observation.image", 6, 9);
  d.add_episode(5);
  d.add_episode(3);
  d.task_list = {"pick up_the bowl", "push"};
  return d;
}

std::unique_ptr<Pi05Batch> batch_of(const Pi05Transform& transform, const FakeDataset& d,
                                    const std::vector<int64_t>& ids) {
  std::vector<std::unique_ptr<Transform::Item>> items;
  for (const int64_t id : ids) items.push_back(transform.prepare(d.get(id, transform.windows())));
  auto batch = transform.collate(items);
  return std::unique_ptr<Pi05Batch>(dynamic_cast<Pi05Batch*>(batch.release()));
}

using longship::testing::message_of;

TEST(CameraSlots, ExplicitMapInSlotOrder) {
  const CameraSlots slots =
      resolve_camera_slots({"left", "right", "top"}, {{"right", "a"}, {"left", "z"}}, {"a", "z"});
  EXPECT_EQ(slots, (CameraSlots{{"left", "z"}, {"right", "a"}, {"top", ""}}));
}

TEST(CameraSlots, NamesOfTheModelWithOrWithoutPrefix) {
  EXPECT_EQ(
      resolve_camera_slots({"base", "wrist"}, {}, {"observation.images.wrist", "base", "other"}),
      (CameraSlots{{"base", "base"}, {"wrist", "observation.images.wrist"}}));
  EXPECT_EQ(resolve_camera_slots({"base", "wrist"}, {}, {"observation.images.wrist"}),
            (CameraSlots{{"base", ""}, {"wrist", "observation.images.wrist"}}));
}

TEST(CameraSlots, OneCameraFillsTheOnlySlot) {
  EXPECT_EQ(resolve_camera_slots({"base"}, {}, {"observation.image"}),
            (CameraSlots{{"base", "observation.image"}}));
}

TEST(CameraSlots, NoAlphabeticalGuess) {
  const std::string message = message_of<ConfigError>([] {
    resolve_camera_slots({"left", "right"}, {},
                         {"observation.images.z_front", "observation.images.a_wrist"});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("left, right"), HasSubstr("z_front"), HasSubstr("a_wrist"),
                             HasSubstr("data.cameras")));
  // One name that fits and one that does not leave a guess open.
  message_of<ConfigError>([] { resolve_camera_slots({"left", "right"}, {}, {"left", "front"}); });
  message_of<ConfigError>([] { resolve_camera_slots({"left", "right"}, {}, {"front"}); });
  EXPECT_THAT(message_of<ConfigError>([] { resolve_camera_slots({"left"}, {}, {}); }),
              HasSubstr("dataset: none"));
}

TEST(CameraSlots, MapErrors) {
  const auto message = [](const CameraSlots& map) {
    return message_of<ConfigError>([&] {
      resolve_camera_slots({"left", "right"}, map, {"a", "b"});
    });
  };
  EXPECT_THAT(message({{"top", "a"}}), HasSubstr("the slot 'top', which the model does not have"));
  EXPECT_THAT(message({{"left", "c"}}), AllOf(HasSubstr("'c'"), HasSubstr("a, b")));
  EXPECT_THAT(message({{"left", "a"}, {"right", "a"}}), HasSubstr("'a' into two slots"));
  EXPECT_THAT(message({{"left", "a"}, {"left", "b"}}), HasSubstr("'left' twice"));
  EXPECT_THAT(message({{"left", ""}}), HasSubstr("every slot without a picture"));
}

TEST(Pi05Transform, WindowsAskForTheChunkTheStateAndTheUsedCameras) {
  const Pi05Transform t(options(), dataset());
  const auto w = t.windows();
  EXPECT_THAT(w.columns.at("action"), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(w.columns.at("observation.state"), ElementsAre(0));
  ASSERT_EQ(w.cameras.size(), 1U);
  EXPECT_THAT(w.cameras.at("observation.image"), ElementsAre(0));
}

TEST(Pi05Transform, BatchHoldsNormalisedPaddedValues) {
  const FakeDataset d = dataset();
  const Pi05Transform t(options(), d);
  const auto b = batch_of(t, d, {3, 6});
  EXPECT_THAT(b->sample_ids, ElementsAre(3, 6));
  EXPECT_THAT(b->images_per_sample, ElementsAre(1, 1));
  EXPECT_EQ(b->images.sizes(), (std::vector<int64_t>{2, 3, 8, 8}));
  EXPECT_EQ(b->actions.sizes(), (std::vector<int64_t>{2, 4, 6}));
  EXPECT_EQ(b->state.sizes(), (std::vector<int64_t>{2, 5}));
  // Frame 3 of 5: one more frame, then padding. Frame 1 of 3 likewise.
  const at::Tensor pad = b->action_is_pad;
  EXPECT_THAT(std::vector<bool>(pad.const_data_ptr<bool>(), pad.const_data_ptr<bool>() + 8),
              ElementsAre(false, false, true, true, false, false, true, true));
  std::vector<float> raw = {30, 39};
  std::vector<float> want(2);
  t.action_normalizer().normalise(raw, want);
  const float* a = b->actions.const_data_ptr<float>();
  EXPECT_EQ(a[0], want[0]);
  EXPECT_EQ(a[1], want[1]);
  for (int i = 2; i < 6; ++i) EXPECT_EQ(a[i], 0.0F);
  const float* s = b->state.const_data_ptr<float>();
  EXPECT_EQ(s[2], 0.0F) << "the constant column";
  EXPECT_EQ(s[3], 0.0F);
  EXPECT_EQ(s[4], 0.0F);
}

TEST(Pi05Transform, PromptHoldsTheTaskAndTheStateDigits) {
  const FakeDataset d = dataset();
  const Pi05Transform t(options(), d);
  const auto b = batch_of(t, d, {0, 7});
  ASSERT_EQ(b->tokens_per_sample.size(), 2U);
  const int64_t* ids = b->token_ids.const_data_ptr<int64_t>();
  const std::vector<int64_t> first(ids + 1, ids + b->tokens_per_sample[0]);
  EXPECT_EQ(ids[0], t.tokenizer().bos_id());
  const float* s = b->state.const_data_ptr<float>();
  const auto bins = discretise_state({s, 3});
  EXPECT_EQ(t.tokenizer().decode(first), pi05_prompt("pick up_the bowl", bins));
  EXPECT_THAT(t.tokenizer().decode(first), HasSubstr("Task: pick up the bowl, State: "));
  const std::vector<int64_t> second(ids + b->tokens_per_sample[0] + 1, ids + b->token_ids.numel());
  EXPECT_THAT(t.tokenizer().decode(second), HasSubstr("Task: push, State: "));
}

TEST(Pi05Transform, Pi0HasTheStateOutsideThePrompt) {
  const FakeDataset d = dataset();
  Pi05TransformOptions o = options();
  o.variant = "pi0";
  o.state_norm = data::NormMode::kMeanStd;
  o.action_norm = data::NormMode::kMeanStd;
  const Pi05Transform t(o, d);
  const auto b = batch_of(t, d, {0});
  const int64_t* ids = b->token_ids.const_data_ptr<int64_t>();
  EXPECT_EQ(t.tokenizer().decode(std::vector<int64_t>(ids + 1, ids + b->token_ids.numel())),
            "pick up the bowl\n");
  EXPECT_NE(b->state.const_data_ptr<float>()[0], 0.0F);
}

TEST(Pi05Transform, WithoutDiscreteStateTheStateIsNotRead) {
  FakeDataset d = dataset();
  d.feature_list.erase(d.feature_list.begin() + 1);
  Pi05TransformOptions o = options();
  o.discrete_state = false;
  const Pi05Transform t(o, d);
  EXPECT_EQ(t.state_dim(), 0);
  EXPECT_EQ(t.windows().columns.count("observation.state"), 0U);
  const auto b = batch_of(t, d, {0});
  const int64_t* ids = b->token_ids.const_data_ptr<int64_t>();
  EXPECT_EQ(t.tokenizer().decode(std::vector<int64_t>(ids + 1, ids + b->token_ids.numel())),
            "pick up the bowl\n");
}

TEST(Pi05Transform, AbsentSlotsGiveNoPictureAndOrderIsTheModels) {
  FakeDataset d = dataset();
  d.add_camera("wrist_cam", 8, 8);
  Pi05TransformOptions o = options();
  o.slots = {"base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"};
  o.cameras = {{"right_wrist_0_rgb", "wrist_cam"}, {"base_0_rgb", "observation.image"}};
  const Pi05Transform t(o, d);
  auto sample = d.get(0, t.windows());
  data::Image black{8, 8, std::vector<uint8_t>(192, 0)};
  sample.cameras["observation.image"].frames[0] = std::make_shared<data::Image>(black);
  std::vector<std::unique_ptr<Transform::Item>> items;
  items.push_back(t.prepare(sample));
  const auto batch = t.collate(items);
  const auto& b = dynamic_cast<const Pi05Batch&>(*batch);
  EXPECT_THAT(b.images_per_sample, ElementsAre(2));
  EXPECT_EQ(b.images[0].max().item<float>(), -1.0F);
  EXPECT_GT(b.images[1].max().item<float>(), -1.0F);
}

TEST(Pi05Transform, DenormaliseIsTheInverse) {
  const FakeDataset d = dataset();
  for (const auto mode :
       {data::NormMode::kQuantiles, data::NormMode::kMeanStd, data::NormMode::kMinMax}) {
    Pi05TransformOptions o = options();
    o.action_norm = mode;
    const Pi05Transform t(o, d);
    const auto b = batch_of(t, d, {0, 1, 5});
    const at::Tensor raw = t.denormalise_actions(b->actions);
    ASSERT_EQ(raw.sizes(), (std::vector<int64_t>{3, 4, 2}));
    const float* v = raw.const_data_ptr<float>();
    const std::vector<float> first = {0, 0, 10, 11, 20, 24, 30, 39};
    for (size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(v[i], first[i], 1e-4);
    EXPECT_TRUE(at::equal(raw, t.denormalise_actions(b->actions.narrow(2, 0, 2))));
    message_of<ShapeError>([&] { t.denormalise_actions(b->actions.narrow(2, 0, 3)); });
  }
}

TEST(Pi05Transform, ThreadsGiveTheSameItems) {
  const FakeDataset d = dataset();
  const Pi05Transform t(options(), d);
  const auto want = batch_of(t, d, {0, 1, 2, 3});
  std::vector<std::unique_ptr<Pi05Batch>> got(4);
  std::vector<std::thread> threads;
  for (auto& b : got) threads.emplace_back([&] { b = batch_of(t, d, {0, 1, 2, 3}); });
  for (auto& thread : threads) thread.join();
  for (const auto& b : got) {
    EXPECT_TRUE(at::equal(b->images, want->images));
    EXPECT_TRUE(at::equal(b->token_ids, want->token_ids));
    EXPECT_TRUE(at::equal(b->actions, want->actions));
  }
}

TEST(Pi05TransformErrors, WrongActionDimension) {
  Pi05TransformOptions o = options();
  o.action_dim = 7;
  EXPECT_THAT(message_of<DataError>([&] { Pi05Transform(o, dataset()); }),
              AllOf(HasSubstr("fake/dataset"), HasSubstr("wrong action dimension: 'action' has 2"),
                    HasSubstr("expects 7")));
  FakeDataset wide = dataset();
  wide.feature_list[0].shape = {40};
  EXPECT_THAT(message_of<DataError>([&] { Pi05Transform(options(), wide); }),
              AllOf(HasSubstr("'action' has 40"), HasSubstr("at most 6 (max_action_dim)")));
}

TEST(Pi05TransformErrors, WrongStateDimensionAndMissingFeatures) {
  Pi05TransformOptions o = options();
  o.max_state_dim = 2;
  EXPECT_THAT(message_of<DataError>([&] { Pi05Transform(o, dataset()); }),
              AllOf(HasSubstr("'observation.state' has 3"), HasSubstr("max_state_dim")));
  o = options();
  o.action_feature = "actions";
  EXPECT_THAT(
      message_of<DataError>([&] { Pi05Transform(o, dataset()); }),
      AllOf(HasSubstr("'actions' is not there"), HasSubstr("action [2], observation.state [3]")));
}

TEST(Pi05TransformErrors, StatisticsOfAnotherRobot) {
  FakeDataset d = dataset();
  d.stats_map["observation.state"].q01.assign(14, 0);
  d.stats_map["observation.state"].q99.assign(14, 1);
  EXPECT_THAT(message_of<DataError>([&] { Pi05Transform(options(), d); }),
              AllOf(HasSubstr("observation.state"), HasSubstr("14"), HasSubstr("3")));
}

TEST(Pi05TransformErrors, TokenizerProblems) {
  Pi05TransformOptions o = options();
  o.tokenizer_path = "no/such/tokenizer.model";
  EXPECT_THAT(message_of<CheckpointError>([&] { Pi05Transform(o, dataset()); }),
              HasSubstr("no/such/tokenizer.model"));
  o.tokenizer_path.clear();
  EXPECT_THAT(message_of<ConfigError>([&] { Pi05Transform(o, dataset()); }),
              HasSubstr("no tokenizer is configured"));
  o = options();
  o.vocab_size = 512;
  EXPECT_THAT(message_of<ConfigError>([&] { Pi05Transform(o, dataset()); }),
              HasSubstr("900 pieces, the model's embedding 512"));
}

TEST(Pi05TransformErrors, NonFiniteNumbersNameTheirPlace) {
  const FakeDataset d = dataset();
  const Pi05Transform t(options(), d);
  auto sample = d.get(6, t.windows());
  sample.columns["action"].values[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(message_of<DataError>([&] { t.prepare(sample); }),
              HasSubstr("episode 1 frame 1: action[1] at window step 1 is nan"));
}

TEST(Pi05TransformErrors, LongPromptIsFoundBeforeTheFirstStep) {
  FakeDataset d = dataset();
  d.task_list[1] = std::string(400, 'q');
  Pi05TransformOptions o = options();
  o.token_limit = 60;
  const Pi05Transform t(o, d);
  const auto needed = t.prompt_tokens(d.task_list[1], std::vector<float>{0, 0, 0}).size();
  ASSERT_GT(needed, 60U);
  const std::string message = message_of<DataError>([&] { t.check_dataset(d); });
  EXPECT_THAT(message, AllOf(HasSubstr("fake/dataset"), HasSubstr("episode 1 frame 0"),
                             HasSubstr("the limit is 60"), HasSubstr("qqqq")));
  EXPECT_THAT(
      message_of<DataError>([&] { t.prepare(d.get(5, t.windows())); }),
      AllOf(HasSubstr("episode 1 frame 0: the prompt needs"), HasSubstr("the limit is 60")));
  EXPECT_NO_THROW(t.prepare(d.get(0, t.windows())));
}

TEST(Pi05TransformErrors, PromptThatFitsExactlyIsAcceptedAndOneTokenLessIsNot) {
  const FakeDataset d = dataset();
  const Pi05Transform wide(options(), d);
  size_t most = 0;
  for (int64_t id = 0; id < d.size(); ++id) {
    const auto sample = d.get_columns(id, wide.windows());
    std::vector<float> state(3);
    wide.state_normalizer()->normalise(sample.columns.at("observation.state").values, state);
    most = std::max(most, wide.prompt_tokens(sample.task, state).size());
  }
  Pi05TransformOptions o = options();
  o.token_limit = static_cast<int64_t>(most);
  EXPECT_NO_THROW(Pi05Transform(o, d).check_dataset(d));
  --o.token_limit;
  EXPECT_THAT(message_of<DataError>([&] { Pi05Transform(o, d).check_dataset(d); }),
              HasSubstr("the prompt needs " + std::to_string(most) + " tokens"));
}

TEST(Pi05TransformErrors, MissingPicture) {
  const FakeDataset d = dataset();
  const Pi05Transform t(options(), d);
  EXPECT_THAT(message_of<DataError>([&] { t.prepare(d.get_columns(2, t.windows())); }),
              HasSubstr("episode 0 frame 2: no picture of camera 'observation.image'"));
}

TEST(Pi05TransformErrors, OptionsAreChecked) {
  Pi05TransformOptions o = options();
  o.variant = "pi1";
  EXPECT_THAT(message_of<ConfigError>([&] { Pi05Transform(o, dataset()); }), HasSubstr("'pi1'"));
  o = options();
  o.horizon = 0;
  EXPECT_THAT(message_of<ConfigError>([&] { Pi05Transform(o, dataset()); }),
              HasSubstr("horizon 0"));
}

}  // namespace
}  // namespace longship::models
