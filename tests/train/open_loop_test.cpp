// Open-loop evaluation: the errors, the two baselines, the choice of episodes, the files.
#include "train/open_loop.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/lerobot/lerobot_dataset.h"
#include "data/split.h"
#include "fake_family.h"
#include "support/paths.h"

namespace longship::train {
namespace {

using testing::fake_recipe;
using ::testing::HasSubstr;

struct Fixture {
  std::shared_ptr<const data::Dataset> dataset = testing::make_fake_dataset();
  Recipe recipe = fake_recipe("runs/x");
  std::unique_ptr<models::Transform> transform =
      recipe.family->make_transform(*recipe.model, *dataset);
  std::unique_ptr<models::Policy> policy = recipe.family->build(*recipe.model, {});
  data::Split split = data::split_by_episode(*dataset, recipe.data.val_episodes);
  OpenLoopOptions options;
  Fixture() {
    options.episodes = split.val_episodes;
    options.train_ids = split.train_ids.to_vector();
    options.draws = 3;
    options.batch = 3;
  }
  OpenLoopReport run() { return evaluate_open_loop(*policy, *transform, *dataset, options); }
};

TEST(OpenLoop, BatchSizeAndWorkersDoNotMatter) {
  Fixture s;
  const OpenLoopReport a = s.run();
  s.options.batch = 64;
  s.options.workers = 0;
  const OpenLoopReport b = s.run();
  EXPECT_EQ(a.num_frames, 8);
  EXPECT_NEAR(a.model.all_steps.total_mse, b.model.all_steps.total_mse, 1e-6);
  EXPECT_EQ(a.repeat.all_steps.total_mse, b.repeat.all_steps.total_mse);
}

TEST(OpenLoop, DrawsAreFixedByTheSeed) {
  Fixture s;
  const OpenLoopReport a = s.run(), b = s.run();
  EXPECT_EQ(a.model.all_steps.mse, b.model.all_steps.mse);
  s.options.seed = 43;
  EXPECT_NE(a.single_draw.all_steps.mse, s.run().single_draw.all_steps.mse);
}

TEST(OpenLoop, MeanOfDrawsIsNoWorseThanOneOnAverage) {
  Fixture s;
  s.options.draws = 16;
  const OpenLoopReport r = s.run();
  EXPECT_LT(r.model.all_steps.total_mse, r.single_draw.all_steps.total_mse);
}

TEST(OpenLoop, RepeatBaselineIsTheStateWhereDimensionsAreTheSame) {
  Fixture s;
  const OpenLoopReport r = s.run();
  EXPECT_THAT(r.repeat_meaning, HasSubstr("repeat the current observation.state"));
  // By hand, over the validation episode (8 frames, horizon 4).
  double sum = 0, inside = 0;
  int64_t n = 0, n_inside = 0;
  for (int64_t f = 0; f < 8; ++f) {
    for (int64_t h = 0; h < 4; ++h) {
      const int64_t at = std::min<int64_t>(f + h, 7);
      const auto value = [](int64_t t) {
        const double a = static_cast<double>(t) * 0.3 + 4;
        return std::pair{std::sin(a), std::cos(1.7 * a)};
      };
      const auto [x, y] = value(f);
      const auto [tx, ty] = value(at + 1);
      const double e = ((x - tx) * (x - tx) + (y - ty) * (y - ty)) / 2;
      sum += e;
      ++n;
      if (f + h <= 7) {
        inside += e;
        ++n_inside;
      }
    }
  }
  EXPECT_NEAR(r.repeat.all_steps.total_mse, sum / static_cast<double>(n), 1e-6);
  EXPECT_NEAR(r.repeat.inside_steps.total_mse, inside / static_cast<double>(n_inside), 1e-6);
}

TEST(OpenLoop, JsonHoldsEveryNumber) {
  Fixture s;
  OpenLoopReport r = s.run();
  r.checkpoint = "somewhere";
  const auto json = nlohmann::json::parse(to_json(r));
  EXPECT_EQ(json["draws"], 3);
  EXPECT_EQ(json["frames"], 8);
  for (const char* key :
       {"model_mean_of_draws", "model_single_draw", "baseline_repeat", "baseline_mean_chunk"}) {
    for (const char* part : {"all_steps", "inside_episode"}) {
      EXPECT_TRUE(json[key][part]["mse"].is_number()) << key << part;
      EXPECT_EQ(json[key][part]["per_dimension"].size(), 2U);
      EXPECT_EQ(json[key][part]["per_dimension"][1]["name"], "y");
    }
  }
}

TEST(OpenLoop, PictureAndSummaryNameWhatTheyShow) {
  Fixture s;
  const OpenLoopReport r = s.run();
  const std::string svg = to_svg(r);
  EXPECT_THAT(svg, HasSubstr("<svg"));
  EXPECT_THAT(svg, HasSubstr("time (s)"));
  EXPECT_THAT(svg, HasSubstr("episode 4, x"));
  EXPECT_THAT(svg, HasSubstr("recorded"));
  EXPECT_THAT(summary(r), HasSubstr("the better baseline"));
}

TEST(OpenLoop, InterruptedProgressEndsWithCode130) {
  Fixture s;
  s.options.progress = [](int64_t, int64_t) { return false; };
  try {
    s.run();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInterrupted);
  }
}

std::string episodes_error(const std::string& text) {
  try {
    parse_episodes(text, *testing::make_fake_dataset(), {});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(OpenLoop, EpisodesAreParsed) {
  const auto dataset = testing::make_fake_dataset();
  EXPECT_EQ(parse_episodes("last:2", *dataset, {}), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(parse_episodes("0, 3", *dataset, {}), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(parse_episodes("val", *dataset, {1}), std::vector<int64_t>{1});
  EXPECT_EQ(parse_episodes("all", *dataset, {}).size(), 5U);
  EXPECT_THAT(episodes_error("7"), HasSubstr("names episode 7, which the dataset does not have"));
  EXPECT_THAT(episodes_error("last:9"), HasSubstr("asks for 9 of 5 episodes"));
  EXPECT_THAT(episodes_error("first"), HasSubstr("'first'"));
  EXPECT_THAT(episodes_error("val"), HasSubstr("none are held out"));
}

// A transform over real columns without any model: its windows are what the baselines need.
class ColumnTransform : public models::Transform {
 public:
  explicit ColumnTransform(int64_t horizon) : horizon_(horizon) {}
  data::WindowSpec windows() const override {
    data::WindowSpec w;
    for (int64_t i = 0; i < horizon_; ++i) w.columns["action"].push_back(i);
    return w;
  }
  std::unique_ptr<Item> prepare(const data::RawSample& s) const override {
    auto item = std::make_unique<Item>();
    item->sample_id = s.sample_id;
    return item;
  }
  std::unique_ptr<models::Batch> collate(
      std::span<const std::unique_ptr<Item>> items) const override {
    struct Plain : models::Batch {
      std::vector<std::pair<std::string, at::Tensor*>> tensors() override { return {}; }
      std::unique_ptr<models::Batch> clone() const override {
        return std::make_unique<Plain>(*this);
      }
      std::string signature() const override { return "plain"; }
    };
    auto batch = std::make_unique<Plain>();
    for (const auto& item : items) batch->sample_ids.push_back(item->sample_id);
    return batch;
  }
  at::Tensor denormalise_actions(const at::Tensor& actions, const models::Batch*) const override {
    return actions;
  }
  void check_dataset(const data::Dataset&) const override {}

 private:
  int64_t horizon_;
};

class ZeroPolicy : public models::Policy {
 public:
  nn::Module& module() override { return module_; }
  std::vector<models::ParamInfo> parameters() override { return {}; }
  void prepare(models::Batch&, const models::DrawKey&) const override {}
  void prepare_sampling(models::Batch&, const models::DrawKey&) const override {}
  models::LossResult loss(const models::Batch&) override { return {}; }
  at::Tensor sample(const models::Batch& b, const models::DrawKey&) override {
    return at::zeros({b.size(), 16, 2});
  }
  void initialise(uint64_t, const models::PreciseSink&) override {}
  void load_weights(const std::filesystem::path&, const models::PreciseSink&) override {}
  std::vector<models::NamedTensor> export_weights(std::span<const models::NamedTensor>) override {
    return {};
  }

 private:
  struct Empty : nn::Module {
  } module_;
};

// The published figures for PushT: last three episodes, 16-step chunks, padded end steps counted.
TEST(OpenLoop, BaselinesOnPushtAreThePublishedOnes) {
  const auto dataset = data::open_lerobot(longship::testing::dataset_path("pusht_v30"));
  config::CountOrList last;
  last.count = 3;
  const data::Split split = data::split_by_episode(*dataset, last);
  OpenLoopOptions options;
  options.episodes = split.val_episodes;
  options.train_ids = split.train_ids.to_vector();
  options.draws = 1;
  ZeroPolicy policy;
  const OpenLoopReport r = evaluate_open_loop(policy, ColumnTransform(16), *dataset, options);
  EXPECT_NEAR(r.repeat.all_steps.total_mse, 4422, 1);
  EXPECT_NEAR(r.mean_chunk.all_steps.total_mse, 4382, 1);
}

}  // namespace
}  // namespace longship::train
