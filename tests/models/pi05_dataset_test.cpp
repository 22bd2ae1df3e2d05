// The transform on datasets read from files: the shipped one, and damaged ones that concern it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "data/broken_case.h"
#include "data/lerobot/lerobot_dataset.h"
#include "models/pi05/transform.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace longship::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Pi05TransformOptions options() {
  Pi05TransformOptions o;
  o.image_size = 96;
  o.horizon = 16;
  o.tokenizer_path = testing::golden_path("pi05/paligemma_tokenizer/tokenizer.model");
  o.slots = {"base_0_rgb"};
  return o;
}

Pi05TransformOptions two_cameras() {
  Pi05TransformOptions o = options();
  o.image_size = 64;
  o.slots = {"base_0_rgb", "left_wrist_0_rgb"};
  o.cameras = {{"base_0_rgb", "observation.images.top"},
               {"left_wrist_0_rgb", "observation.images.wrist"}};
  return o;
}

using longship::testing::message_of;

TEST(Pi05Dataset, PushT) {
  const auto dataset = data::open_lerobot(testing::dataset_path("pusht_v30"));
  const Pi05Transform t(options(), *dataset);
  EXPECT_EQ(t.action_dim(), 2);
  EXPECT_NO_THROW(t.check_dataset(*dataset));
  std::vector<std::unique_ptr<Transform::Item>> items;
  items.push_back(t.prepare(dataset->get(100, t.windows())));
  const auto batch = t.collate(items);
  const auto& b = dynamic_cast<const Pi05Batch&>(*batch);
  EXPECT_EQ(b.images.sizes(), (std::vector<int64_t>{1, 3, 96, 96}));
  EXPECT_GT(b.images.max().item<float>(), 0.9F);
  EXPECT_GT(b.tokens_per_sample[0], 10);
  const at::Tensor raw = t.denormalise_actions(b.actions);
  const auto sample = dataset->get_columns(100, t.windows());
  const auto& want = sample.columns.at("action").values;
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(raw.const_data_ptr<float>()[i], want[i], 1e-3);
}

TEST(Pi05Dataset, CameraNamesThatAreNotTheModels) {
  const auto built = testing::build_broken_case("camera-names-not-the-models");
  const auto dataset = data::open_lerobot(built.root);
  Pi05TransformOptions o = options();
  o.slots = {"left", "right"};
  EXPECT_THAT(message_of<ConfigError>([&] { Pi05Transform(o, *dataset); }),
              AllOf(HasSubstr("left, right"), HasSubstr("z_front"), HasSubstr("a_wrist")));
  o.cameras = {{"left", "observation.images.z_front"}, {"right", "observation.images.a_wrist"}};
  EXPECT_THAT(
      Pi05Transform(o, *dataset).camera_slots(),
      ElementsAre(std::pair<std::string, std::string>("left", "observation.images.z_front"),
                  std::pair<std::string, std::string>("right", "observation.images.a_wrist")));
}

TEST(Pi05Dataset, ConstantStateColumnStaysFiniteAndIsNamed) {
  const auto built = testing::build_broken_case("state-constant-column");
  const auto dataset = data::open_lerobot(built.root);
  const Pi05Transform t(two_cameras(), *dataset);
  ASSERT_EQ(t.state_normalizer()->degenerate(), std::vector<int64_t>{3});
  EXPECT_THAT(t.state_normalizer()->notes()[0], HasSubstr("observation.state[3] is constant (3)"));
  std::vector<float> row(6, 3.001F);
  t.state_normalizer()->normalise(row, row);
  EXPECT_EQ(row[3], 0.0F);
  for (const float v : row) EXPECT_TRUE(std::isfinite(v));
  t.state_normalizer()->denormalise(row, row);
  EXPECT_EQ(row[3], 3.0F);
}

TEST(Pi05Dataset, VeryLongTaskIsRefusedBeforeTheFirstStepWithTheTokensNeeded) {
  const auto built = testing::build_broken_case("task-very-long");
  const auto dataset = data::open_lerobot(built.root);
  Pi05TransformOptions o = two_cameras();
  o.token_limit = 48;
  const Pi05Transform t(o, *dataset);
  EXPECT_THAT(
      message_of<DataError>([&] { t.check_dataset(*dataset); }),
      AllOf(HasSubstr("the prompt needs "), HasSubstr("the limit is 48"), HasSubstr("episode")));
  o.token_limit = 100000;
  const Pi05Transform wide(o, *dataset);
  EXPECT_NO_THROW(wide.check_dataset(*dataset));
}

TEST(Pi05Dataset, QuantilesMissingFromTheStatisticsComeFromTheRows) {
  const auto built = testing::build_broken_case("stats-without-quantiles");
  const auto dataset = data::open_lerobot(built.root);
  const Pi05Transform t(two_cameras(), *dataset);
  // State = 100*episode + t + d/10 over 28 rows: the 1 % quantile lies inside, not at the minimum.
  std::vector<float> low(6, 0.0F);
  t.state_normalizer()->normalise(low, low);
  EXPECT_LT(low[0], -1.0F);
}

}  // namespace
}  // namespace longship::models
