// The feed of batches: what its errors name and what its counters count.

#include "train/feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/split.h"
#include "fake_family.h"
#include "support/paths.h"
#include "train/session.h"

namespace longship::train {
namespace {

using ::testing::HasSubstr;

/// Another transform that refuses one sample.
class Refusing : public models::Transform {
 public:
  Refusing(const models::Transform& inner, int64_t refused) : inner_(inner), refused_(refused) {}
  data::WindowSpec windows() const override { return inner_.windows(); }
  std::unique_ptr<Item> prepare(const data::RawSample& sample) const override {
    LS_CHECK(sample.sample_id != refused_, DataError, "the prompt has 300 tokens, at most 96 fit");
    return inner_.prepare(sample);
  }
  std::unique_ptr<models::Batch> collate(
      std::span<const std::unique_ptr<Item>> items) const override {
    return inner_.collate(items);
  }
  at::Tensor denormalise_actions(const at::Tensor& actions, const models::Batch*) const override {
    return actions;
  }
  void check_dataset(const data::Dataset&) const override {}

 private:
  const models::Transform& inner_;
  int64_t refused_;
};

struct Parts {
  Recipe recipe = testing::fake_recipe("unused", {"data.workers=2", "data.prefetch=3"});
  std::shared_ptr<const data::Dataset> dataset = testing::make_fake_dataset();
  std::unique_ptr<models::Transform> transform =
      recipe.family->make_transform(*recipe.model, *dataset);
  std::unique_ptr<models::Policy> policy =
      recipe.family->build(*recipe.model, build_options(recipe, at::kCPU));
};

TEST(Feed, AnErrorOfTheTransformNamesDatasetEpisodeAndFrame) {
  const Parts parts;
  // Sample 14 is frame 2 of episode 1.
  const Refusing transform(*parts.transform, 14);
  const BatchMaker maker(*parts.dataset, transform, *parts.policy, false);
  EXPECT_EQ(maker.make(std::vector<int64_t>{3, 13, 15}, {1, 0})->size(), 3);
  try {
    maker.make(std::vector<int64_t>{3, 14}, {1, 0});
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("dataset fake_dataset: episode 1, frame 2: the prompt has"));
  }
}

TEST(Feed, CountersCoverEveryBatchAndTheQueueStaysBounded) {
  const Parts parts;
  const data::Split split = data::split_by_episode(*parts.dataset, parts.recipe.data.val_episodes);
  const data::ShuffledStream stream(split.train_ids, 1, parts.recipe.train.global_batch);
  BatchFeed feed(parts.recipe, *parts.dataset, *parts.transform, *parts.policy, stream, false, 0,
                 10);
  EXPECT_EQ(feed.capacity(), 3);
  EXPECT_EQ(feed.num_workers(), 2);
  for (int64_t step = 0; step < 10; ++step) {
    EXPECT_LE(feed.num_ready(), 3);
    feed.next_step();
  }
  const FeedCounters counters = feed.counters();
  EXPECT_EQ(counters.queue.num_taken, 10 * parts.recipe.train.num_micro());
  EXPECT_LE(counters.queue.num_starved, counters.queue.num_taken);
  double stages = 0;
  for (const Elapsed& stage : counters.stages) {
    EXPECT_GE(stage.wall_s, 0);
    EXPECT_LE(stage.cpu_s, stage.wall_s + 0.05);
    stages += stage.wall_s;
  }
  EXPECT_GT(stages, 0);
  EXPECT_LE(stages, counters.queue.work_s) << "stages are inside the work";
}

TEST(Feed, SamplesReadOneByOneGiveTheSameBatchAndDecodeMore) {
  const auto source = longship::testing::source_root();
  const Recipe recipe =
      load_recipe(source / "configs/pi05/tiny_test.yaml",
                  {"data.datasets.0.path=" + longship::testing::dataset_path("pusht_v30").string(),
                   "model.tokenizer=" + (source / "data/tokenizers/pi05_demo.model").string()},
                  &models::find_family);
  const std::vector<int64_t> ids = {47, 40, 46, 41, 45, 42, 44, 43, 40};
  std::vector<std::unique_ptr<models::Batch>> batches;
  std::vector<data::PictureStatistics> costs;
  for (const bool share : {true, false}) {
    const auto dataset = open_dataset(recipe);
    recipe.model->bind_dataset(*dataset);
    const auto transform = recipe.family->make_transform(*recipe.model, *dataset);
    models::BuildOptions shapes;
    shapes.device = at::kMeta;
    shapes.initialise = false;
    const auto policy = recipe.family->build(*recipe.model, shapes);
    const BatchMaker maker(*dataset, *transform, *policy, false, nullptr, share);
    batches.push_back(maker.make(ids, {42, 0}));
    costs.push_back(dataset->picture_statistics());
  }
  const auto together = batches[0]->tensors(), alone = batches[1]->tensors();
  ASSERT_EQ(together.size(), alone.size());
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_TRUE(together[i].second->equal(*alone[i].second)) << alone[i].first;
  }
  EXPECT_EQ(costs[0].pictures_read, 8);
  EXPECT_EQ(costs[1].pictures_read, 9) << "sample 40 is there twice";
  EXPECT_LT(costs[0].packets_decoded, costs[1].packets_decoded) << "forth and back";
}

}  // namespace
}  // namespace longship::train
