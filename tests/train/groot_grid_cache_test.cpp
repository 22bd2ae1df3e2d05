// Tables of pictures that batches share: the same bits as fresh ones, bounded, written by nobody.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "models/groot/batch.h"
#include "models/groot/layout_cache.h"
#include "models/groot/policy.h"
#include "models/groot/spec.h"
#include "runtime/device.h"
#include "support/paths.h"
#include "train/session.h"
#include "train/trainer.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using models::GrootConfig;
using models::GrootGridCache;
using models::GrootGrids;
using models::GrootLayout;
using models::GrootLayoutRequest;
using models::GrootSizes;
using models::GrootVersion;

GrootConfig demo_config(GrootVersion version) {
  GrootConfig config(version);
  config.size = "demo";
  config.data.horizon = 16;
  config.action_dim = config.state_dim = 2;
  config.shortest_edge = version == GrootVersion::kN17 ? 96 : 84;
  return config;
}

/// One sample for each grid: its placeholders and `words` tokens behind them.
GrootLayoutRequest request_of(const GrootGrids& grids, const GrootSizes& sizes, int64_t words = 5) {
  GrootLayoutRequest out;
  out.grids = grids;
  for (const auto& [rows, columns] : grids) {
    out.pictures.push_back(1);
    out.lengths.push_back(rows * columns / 4 + words);
  }
  out.token_ids = at::full({std::accumulate(out.lengths.begin(), out.lengths.end(), int64_t{0})},
                           sizes.text.image_token, at::kLong);
  int64_t end = 0;
  for (const int64_t length : out.lengths) {
    end += length;
    out.token_ids.narrow(0, end - words, words).fill_(20);
  }
  return out;
}

void expect_equal(GrootLayout a, GrootLayout b) {
  const auto left = a.tensors(), right = b.tensors();
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(left[i].first, right[i].first);
    EXPECT_EQ(left[i].second->scalar_type(), right[i].second->scalar_type()) << left[i].first;
    EXPECT_TRUE(left[i].second->equal(*right[i].second)) << left[i].first;
  }
  EXPECT_EQ(a.signature(), b.signature());
  EXPECT_EQ(a.longest_picture, b.longest_picture);
  EXPECT_EQ(a.uniform_pictures, b.uniform_pictures);
  EXPECT_EQ(a.longest_window, b.longest_window);
}

std::vector<GrootSizes> all_sizes() {
  GrootSizes windows = demo_config(GrootVersion::kN16).sizes();
  windows.vision.windows = windows.vision.rope = true;
  windows.vision.window_size = 4;
  return {demo_config(GrootVersion::kN16).sizes(), windows,
          demo_config(GrootVersion::kN17).sizes()};
}

const std::vector<GrootGrids>& all_grids() {
  static const std::vector<GrootGrids> grids = {
      {{6, 6}, {6, 6}}, {{6, 6}}, {{6, 10}, {4, 8}, {6, 10}}, {{4, 8}, {6, 10}, {6, 10}}};
  return grids;
}

TEST(GrootGridCache, SharesTablesWithTheBitsOfFreshOnes) {
  for (const GrootSizes& sizes : all_sizes()) {
    GrootGridCache cache(/*pin=*/false);
    for (int64_t round = 0; round < 3; ++round) {
      for (const GrootGrids& grids : all_grids()) {
        // Other texts with the same pictures.
        const GrootLayoutRequest request = request_of(grids, sizes, 5 + round);
        const GrootLayout kept = make_groot_layout(request, sizes, &cache);
        expect_equal(kept, make_groot_layout(request, sizes));
        const GrootLayout again = make_groot_layout(request, sizes, &cache);
        EXPECT_EQ(kept.patch_rows.data_ptr(), again.patch_rows.data_ptr());
      }
    }
    EXPECT_EQ(cache.counters().misses, 4);
    EXPECT_EQ(cache.counters().hits, 20);
    EXPECT_EQ(cache.counters().entries, 4U);
  }
}

TEST(GrootGridCache, LeastRecentlyUsedGoesFirst) {
  const GrootSizes sizes = demo_config(GrootVersion::kN17).sizes();
  GrootGridCache cache(false, {.entries = 2});
  const auto ask = [&](size_t i) {
    const int64_t misses = cache.counters().misses;
    make_groot_layout(request_of(all_grids()[i], sizes), sizes, &cache);
    return cache.counters().misses > misses;
  };
  EXPECT_TRUE(ask(0));
  EXPECT_TRUE(ask(1));
  EXPECT_FALSE(ask(0));
  EXPECT_TRUE(ask(2));  // 1 goes
  EXPECT_FALSE(ask(0));
  EXPECT_TRUE(ask(1));
  EXPECT_EQ(cache.counters().entries, 2U);
}

TEST(GrootGridCache, BytesAreBounded) {
  const GrootSizes sizes = demo_config(GrootVersion::kN16).sizes();
  GrootGridCache unbounded(false);
  const auto use = [&](GrootGridCache& cache, const GrootGrids& grids) {
    return make_groot_layout(request_of(grids, sizes), sizes, &cache);
  };
  use(unbounded, all_grids()[2]);
  const int64_t bytes = unbounded.counters().bytes;
  GrootLayout one = use(unbounded, all_grids()[2]);
  int64_t counted = 0;
  for (const auto& [name, tensor] : one.picture_tensors()) {
    counted += static_cast<int64_t>(tensor->nbytes());
  }
  EXPECT_EQ(bytes, counted);
  // Both orders of the three pictures have the same size: one of them fits.
  GrootGridCache cache(false, {.entries = 8, .bytes = bytes + 1});
  use(cache, all_grids()[2]);
  use(cache, all_grids()[3]);
  EXPECT_EQ(cache.counters().entries, 1U);
  EXPECT_EQ(cache.counters().bytes, bytes);
  // What is larger than the bound is made and not kept; the rest stays.
  expect_equal(use(cache, GrootGrids(4, {10, 10})),
               make_groot_layout(request_of(GrootGrids(4, {10, 10}), sizes), sizes));
  EXPECT_EQ(cache.counters().entries, 1U);
  use(cache, all_grids()[3]);
  EXPECT_EQ(cache.counters().hits, 1);
}

TEST(GrootGridCache, ServesManyThreads) {
  const GrootSizes sizes = demo_config(GrootVersion::kN16).sizes();
  GrootGridCache cache(false, {.entries = 3});  // one too few: tables come and go meanwhile
  std::vector<GrootLayout> fresh;
  for (const GrootGrids& grids : all_grids()) {
    fresh.push_back(make_groot_layout(request_of(grids, sizes), sizes));
  }
  std::vector<int> wrong(6);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 100; ++i) {
        const size_t which = (i * (t + 1) + t) % all_grids().size();
        const GrootLayout got =
            make_groot_layout(request_of(all_grids()[which], sizes), sizes, &cache);
        wrong[t] += got.position_weight.equal(fresh[which].position_weight) &&
                            got.merge_index.equal(fresh[which].merge_index)
                        ? 0
                        : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(6));
  const GrootGridCache::Counters counters = cache.counters();
  EXPECT_EQ(counters.hits + counters.misses, 600);
  EXPECT_LE(counters.entries, 3U);
}

// Forward and backward passes and sampling leave the shared tables as they are.
TEST(GrootGridCache, PassesWriteIntoNoTable) {
  for (const GrootVersion version : {GrootVersion::kN16, GrootVersion::kN17}) {
    const GrootConfig config = demo_config(version);
    const models::ModelFamily& family =
        version == GrootVersion::kN17 ? models::groot_n17_family() : models::groot_n16_family();
    models::GrootPolicy policy(config, {.seed = 3});
    const auto given =
        family.synthetic_batch(config, {.batch = 2, .images = 2, .tokens = 6}, /*seed=*/1);
    models::GrootBatch& batch = models::groot_batch(*given);
    const GrootLayoutRequest request{batch.grids, batch.pictures, batch.lengths, batch.token_ids};
    const GrootSizes sizes = config.sizes();
    GrootGridCache cache(false);
    batch.layout = make_groot_layout(request, sizes, &cache);
    policy.prepare(batch, {.seed = 1, .step = 0});
    policy.loss(batch).loss.backward();
    policy.sample(batch, {.seed = 1, .step = 0});
    expect_equal(make_groot_layout(request, sizes, &cache), make_groot_layout(request, sizes));
    EXPECT_EQ(cache.counters().hits, 1);
  }
}

// Pinning a batch leaves what is pinned already where it is, and the device gets its values.
TEST(GrootGridCacheGpu, TablesArePinnedOnce) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  const GrootSizes sizes = demo_config(GrootVersion::kN16).sizes();
  GrootGridCache cache(/*pin=*/true);
  const GrootLayoutRequest request = request_of(all_grids()[2], sizes);
  for (int round = 0; round < 2; ++round) {
    GrootLayout layout = make_groot_layout(request, sizes, &cache);
    for (const auto& [name, tensor] : layout.picture_tensors()) {
      EXPECT_TRUE(tensor->is_pinned()) << name;
      EXPECT_EQ(tensor->pin_memory().data_ptr(), tensor->data_ptr()) << name;
    }
    GrootLayout moved = layout;
    for (const auto& [name, tensor] : moved.tensors()) *tensor = tensor->to(at::kCUDA).cpu();
    expect_equal(moved, make_groot_layout(request, sizes));
  }
}

class GrootGridCacheTraining : public ::testing::TestWithParam<const char*> {};

TEST_P(GrootGridCacheTraining, LossesAreTheSameBits) {
  const fs::path source = longship::testing::source_root();
  const fs::path root = longship::testing::scratch_dir(std::string("grid_cache_") + GetParam());
  std::vector<std::vector<double>> losses;
  for (const char* value : {"true", "false"}) {
    const Recipe recipe = load_recipe(
        source / "configs" / GetParam() / "pusht_demo.yaml",
        {"output_dir=" + (root / value).string(),
         "data.datasets.0.path=" + longship::testing::dataset_path("pusht_v30").string(),
         "model.tokenizer=" + (source / "data/tokenizers/groot_demo.json").string(),
         std::string("perf.grid_cache=") + value, "train.device=cpu", "train.steps=3",
         "train.global_batch=2", "optim.schedule.warmup_steps=1", "optim.schedule.decay_steps=3",
         "data.workers=2", "checkpoint.every=null", "log.tensorboard=false",
         "eval.open_loop=false"},
        &models::find_family);
    TrainOptions options;
    options.quiet = true;
    losses.push_back(train(recipe, open_dataset(recipe), options, &models::find_family).losses);
  }
  EXPECT_EQ(losses[0].size(), 3U);
  EXPECT_EQ(losses[0], losses[1]);
  fs::remove_all(root);
}

INSTANTIATE_TEST_SUITE_P(Both, GrootGridCacheTraining, ::testing::Values("groot_n16", "groot_n17"));

}  // namespace
}  // namespace longship::train
