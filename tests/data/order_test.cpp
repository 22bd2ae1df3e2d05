// Orders of samples: ranges, blocks of episodes, weighted mixtures, ranks, digests.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/sha256.h"
#include "data/golden_arrays.h"
#include "data/rank_view.h"
#include "data/sampler.h"
#include "support/expect_error.h"

namespace longship::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<IdRange> episodes_of(const std::vector<int64_t>& lengths, int64_t from = 0) {
  std::vector<IdRange> out;
  for (const int64_t length : lengths) {
    out.push_back({from, from + length});
    from += length;
  }
  return out;
}

IdRanges all_of(const std::vector<IdRange>& episodes) {
  IdRanges out;
  for (const IdRange& range : episodes) out.append(range);
  return out;
}

std::vector<int64_t> ids_of(const SampleOrder& order, int64_t first, int64_t count) {
  std::vector<int64_t> out(static_cast<size_t>(count));
  order.fill(first, out);
  return out;
}

std::vector<int64_t> sorted(std::vector<int64_t> ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

using longship::testing::message_of;

TEST(IdRanges, JoinsNeighboursAndKeepsTheOrder) {
  const IdRanges ids(std::vector<int64_t>{5, 6, 7, 2, 3, 9});
  EXPECT_THAT(ids.ranges(), ElementsAre(IdRange{5, 8}, IdRange{2, 4}, IdRange{9, 10}));
  EXPECT_THAT(ids, ElementsAre(5, 6, 7, 2, 3, 9));
  EXPECT_THAT(ids.to_vector(), ElementsAre(5, 6, 7, 2, 3, 9));
  EXPECT_THROW(ids[6], InternalError);
}

TEST(IdRanges, LeavesOutWhatIsNamed) {
  IdRanges ids;
  ids.append({0, 5});
  ids.append({10, 13});
  const std::vector<int64_t> out = {0, 3, 7, 12, 40};
  EXPECT_THAT(ids.without(out), ElementsAre(1, 2, 4, 10, 11));
  EXPECT_EQ(ids.without({}), ids);
}

class BlockTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(BlockTest, EveryEpochVisitsEveryIdOnce) {
  const std::vector<IdRange> episodes = episodes_of({12, 7, 9, 0, 1, 30, 2, 2, 5}, 100);
  const BlockShuffle order(episodes, GetParam(), 42);
  const std::vector<int64_t> all = all_of(episodes).to_vector();
  ASSERT_EQ(order.epoch_size(), 68);
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    EXPECT_EQ(sorted(ids_of(order, epoch * 68, 68)), all) << "epoch " << epoch;
  }
  EXPECT_NE(ids_of(order, 0, 68), ids_of(order, 68, 68));
  // In pieces, late positions first: the same ids.
  const std::vector<int64_t> whole = ids_of(order, 0, 200);
  for (const int64_t begin : {150, 67, 0, 199, 68}) {
    EXPECT_EQ(order.at(begin), whole[static_cast<size_t>(begin)]);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, BlockTest, ::testing::Values(1, 2, 3, 8, 100));

TEST(BlockShuffle, ReadsFewEpisodesAtATime) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 200; ++i) lengths.push_back(20 + i % 7);
  const std::vector<IdRange> episodes = episodes_of(lengths);
  const BlockShuffle order(episodes, 4, 7);
  const std::vector<int64_t> ids = ids_of(order, 0, order.epoch_size());
  std::vector<int64_t> owner;
  for (const int64_t id : ids) {
    const auto next =
        std::upper_bound(episodes.begin(), episodes.end(), id,
                         [](int64_t value, const IdRange& range) { return value < range.begin; });
    owner.push_back(next - episodes.begin() - 1);
  }
  // Any 32 neighbours come from one block, or from two.
  size_t most = 0, runs = 0;
  for (size_t i = 0; i + 32 <= owner.size(); ++i) {
    most = std::max(most, std::set<int64_t>(owner.begin() + static_cast<std::ptrdiff_t>(i),
                                            owner.begin() + static_cast<std::ptrdiff_t>(i) + 32)
                              .size());
  }
  for (size_t i = 1; i < owner.size(); ++i) runs += owner[i] != owner[i - 1] ? 1 : 0;
  EXPECT_LE(most, 8u);
  // Inside a block samples are mixed: with four episodes three of four neighbours differ.
  EXPECT_GT(runs, owner.size() / 2);
}

TEST(BlockShuffle, RefusesNonsense) {
  EXPECT_THAT(message_of<ConfigError>([] {
                BlockShuffle({{0, 0}}, 4, 1);
              }),
              HasSubstr("no samples"));
  EXPECT_THAT(message_of<ConfigError>([] {
                BlockShuffle({{0, 3}}, 0, 1);
              }),
              HasSubstr("data.block_episodes"));
}

std::vector<std::shared_ptr<const SampleOrder>> three_parts(uint64_t seed) {
  std::vector<std::shared_ptr<const SampleOrder>> parts;
  parts.push_back(std::make_shared<FullShuffle>(all_of({{0, 28}}), seed, 0));
  parts.push_back(std::make_shared<FullShuffle>(all_of({{28, 1028}}), seed, 1));
  parts.push_back(std::make_shared<BlockShuffle>(episodes_of({5, 6, 7}, 1028), 2, seed, 2));
  return parts;
}

TEST(WeightedMix, SharesAreExactOverAPeriodAndEachPartKeepsItsOrder) {
  const auto parts = three_parts(42);
  const WeightedMix mix(parts, {0.5, 0.3, 0.2}, 42);
  EXPECT_EQ(mix.epoch_size(), 28 + 1000 + 18);
  EXPECT_EQ(mix.quotas()[0], 32768);
  EXPECT_EQ(std::accumulate(mix.quotas().begin(), mix.quotas().end(), int64_t{0}),
            WeightedMix::kPeriod);
  const std::vector<int64_t> ids = ids_of(mix, 0, 2 * WeightedMix::kPeriod);
  std::vector<std::vector<int64_t>> own(3);
  for (const int64_t id : ids) own[id < 28 ? 0 : id < 1028 ? 1 : 2].push_back(id);
  for (size_t p = 0; p < 3; ++p) {
    ASSERT_EQ(static_cast<int64_t>(own[p].size()), 2 * mix.quotas()[p]);
    EXPECT_EQ(own[p], ids_of(*parts[p], 0, static_cast<int64_t>(own[p].size()))) << "part " << p;
  }
  // No long run of one part: any 1000 neighbours hold each share within five deviations.
  for (size_t begin = 0; begin + 1000 <= ids.size(); begin += 777) {
    int64_t first = 0;
    for (size_t k = begin; k < begin + 1000; ++k) first += ids[k] < 28 ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(first), 500, 5 * std::sqrt(250.0));
  }
}

TEST(WeightedMix, AnyPositionCanBeAskedForFirst) {
  const WeightedMix straight(three_parts(1), {1, 1, 1}, 1), late(three_parts(1), {3, 3, 3}, 1);
  const int64_t far = 5 * WeightedMix::kPeriod + 123;
  const std::vector<int64_t> end = ids_of(late, far, 64);
  ids_of(straight, 0, 70000);
  EXPECT_EQ(ids_of(straight, far, 64), end);
  EXPECT_NE(ids_of(WeightedMix(three_parts(2), {1, 1, 1}, 2), far, 64), end);
}

TEST(WeightedMix, RefusesWeightsThatGiveNothing) {
  EXPECT_THAT(message_of<ConfigError>([] {
                WeightedMix(three_parts(1), {1, 0, 1}, 1);
              }),
              HasSubstr("data.datasets.1.weight is 0"));
  EXPECT_THAT(message_of<ConfigError>([] {
                WeightedMix(three_parts(1), {1, 1, -2}, 1);
              }),
              HasSubstr("data.datasets.2.weight is -2"));
  EXPECT_THAT(message_of<ConfigError>([] {
                WeightedMix(three_parts(1), {1e9, 1, 1}, 1);
              }),
              HasSubstr("less than one sample in 65536"));
}

// Two and three ranks, global batches that they divide and that they do not: the union of the ranks
// is the batch of one rank, in its order, and every rank has a share of every step.
TEST(RankView, TheRanksTogetherAreOneRank) {
  const ShuffledStream stream(all_of({{0, 28}}), 42, 8);
  for (const int64_t world : {1, 2, 3, 8}) {
    for (int64_t step = 0; step < 11; ++step) {
      std::vector<int64_t> joined;
      for (int64_t rank = 0; rank < world; ++rank) {
        const std::vector<int64_t> own = RankView(stream, rank, world).batch(step);
        EXPECT_GE(static_cast<int64_t>(own.size()), 8 / world);
        EXPECT_LE(static_cast<int64_t>(own.size()), (8 + world - 1) / world);
        joined.insert(joined.end(), own.begin(), own.end());
      }
      EXPECT_EQ(joined, stream.batch(step)) << world << " ranks, step " << step;
    }
  }
  // 28 samples in batches of 64: two or three of each, on every number of ranks.
  const ShuffledStream large(all_of({{0, 28}}), 42, 64);
  EXPECT_EQ(RankView(large, 1, 2).batch(3).size(), 32u);
  EXPECT_THAT(message_of<ConfigError>([&] { RankView(stream, 0, 9); }),
              HasSubstr("fewer than the 9 ranks"));
  EXPECT_THAT(message_of<ConfigError>([&] { RankView(stream, 2, 2); }), HasSubstr("rank 2 of 2"));
}

TEST(RankView, BalancesCostWithoutChangingTheBatch) {
  const ShuffledStream stream(all_of({{0, 1000}}), 3, 32);
  const SampleCost cost = [](int64_t id) { return static_cast<double>(1 + id % 37); };
  double plain_worst = 0, balanced_worst = 0;
  for (int64_t step = 0; step < 40; ++step) {
    std::vector<int64_t> places, plain(4), balanced(4);
    for (int64_t rank = 0; rank < 4; ++rank) {
      const RankView view(stream, rank, 4, cost);
      const std::vector<int64_t> own = view.batch(step);
      ASSERT_EQ(own.size(), 8u);
      const std::vector<int64_t> at = view.places(step);
      EXPECT_TRUE(std::is_sorted(at.begin(), at.end()));
      places.insert(places.end(), at.begin(), at.end());
      for (const int64_t id : own) balanced[static_cast<size_t>(rank)] += 1 + id % 37;
      for (const int64_t id : RankView(stream, rank, 4).batch(step)) {
        plain[static_cast<size_t>(rank)] += 1 + id % 37;
      }
    }
    std::vector<int64_t> all(32);
    std::iota(all.begin(), all.end(), int64_t{0});
    EXPECT_EQ(sorted(places), all);
    plain_worst += static_cast<double>(*std::max_element(plain.begin(), plain.end()));
    balanced_worst += static_cast<double>(*std::max_element(balanced.begin(), balanced.end()));
  }
  EXPECT_LT(balanced_worst, 0.9 * plain_worst);
  EXPECT_THAT(message_of<ConfigError>([&] { RankView(stream, 0, 3, cost); }),
              HasSubstr("multiple of the 3"));
}

TEST(Balanced, OrderOfTheReference) {
  const nlohmann::json cases = testing::golden_json("lingbot_va/sampler_cost/sampler.json");
  ASSERT_GE(cases.size(), 10u);
  for (const auto& golden : cases) {
    const auto costs = golden.at("costs").get<std::vector<double>>();
    auto order = std::vector<int64_t>(costs.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    if (golden.at("shuffle").get<bool>()) order = golden.at("randperm").get<std::vector<int64_t>>();
    const int64_t world = golden.at("num_replicas"), group = golden.at("balance_group_size");
    const auto per_rank = balanced_epoch(
        order, [&](int64_t id) { return costs.at(static_cast<size_t>(id)); }, world, group);
    const std::string name = golden.at("tag").get<std::string>();
    EXPECT_EQ(per_rank, golden.at("per_rank").get<std::vector<std::vector<int64_t>>>()) << name;
    EXPECT_EQ(balanced_sha256(per_rank, group, golden.at("seed"), golden.at("epoch"),
                              static_cast<int64_t>(costs.size())),
              golden.at("order_sha256"))
        << name;
  }
}

TEST(OrderSha256, IsThatOfTheIdsAsLittleEndianIntegers) {
  const FullShuffle order(all_of({{0, 28}}), 42);
  const std::vector<int64_t> ids = ids_of(order, 28, 28);
  std::string bytes;
  for (const int64_t id : ids) {
    for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>((id >> shift) & 0xFF);
  }
  EXPECT_EQ(order_sha256(order, 1), sha256_hex(bytes));
  EXPECT_NE(order_sha256(order, 0), order_sha256(order, 1));
  EXPECT_EQ(order_sha256(order, 0, [] { return true; }), "");
}

// Numbers that seeds give are part of what resume promises.
TEST(OrderSha256, OrdersOfASeedAreFrozen) {
  EXPECT_EQ(order_sha256(FullShuffle(all_of({{0, 20000}}), 42), 3),
            "839ce332f419a59d20378f2bd72806cadcd3488776ad2201ce9d88bf86659c8e");
  EXPECT_EQ(order_sha256(BlockShuffle(episodes_of({12, 7, 9, 40, 1}), 2, 42), 3),
            "ce2f7aeb15cd5c6f61b976b9147757770f30ba4110bef1a5f762c959ec77cb56");
  EXPECT_EQ(order_sha256(WeightedMix(three_parts(42), {0.5, 0.3, 0.2}, 42), 3),
            "c38de4cbe5448155b8345466486e978f9632f30b07897f0dc076ad57da49f350");
}

int64_t peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// 1,000,000 episodes, 300,000,000 frames: memory by the episode, nothing by the frame.
TEST(HugeSet, OrdersCostMemoryByTheEpisode) {
  const int64_t before = peak_kib();
  const auto start = std::chrono::steady_clock::now();
  std::vector<IdRange> episodes;
  IdRanges subset;
  for (int64_t e = 0; e < 1'000'000; ++e) {
    episodes.push_back({300 * e, 300 * (e + 1)});
    if (e % 2 == 0) subset.append(episodes.back());  // as scattered as it gets
  }
  const ShuffledStream full(subset, 42, 256);
  const ShuffledStream blocks(std::make_shared<BlockShuffle>(episodes, 16, 42), 256);
  EXPECT_EQ(full.num_samples(), 150'000'000);
  EXPECT_EQ(blocks.num_samples(), 300'000'000);
  std::set<int64_t> seen;
  for (const int64_t step : {0, 1, 500'000}) {
    for (const int64_t id : full.batch(step)) {
      EXPECT_EQ(id / 300 % 2, 0);
      seen.insert(id);
    }
    EXPECT_LT(*std::max_element(seen.begin(), seen.end()), 300'000'000);
    EXPECT_EQ(blocks.batch(step).size(), 256u);
  }
  EXPECT_EQ(seen.size(), 3u * 256u);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(seconds, 5);
  EXPECT_LT(peak_kib() - before, 160 * 1024);
}

}  // namespace
}  // namespace longship::data
