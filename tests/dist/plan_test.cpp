#include "dist/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "base/error.h"
#include "dist/process_group.h"

namespace longship::dist {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kF32 = c10::ScalarType::Float;
constexpr auto kBf16 = c10::ScalarType::BFloat16;

ParamSpec spec(const std::string& name, int64_t numel, c10::ScalarType dtype = kF32,
               const std::string& unit = "", GradSource source = GradSource::kBackward) {
  return {name, numel, dtype, unit, source};
}

// Uneven sizes, two dtypes, everything that a parameter can be.
std::vector<ParamSpec> mixed() {
  return {spec("embed", 101, kBf16, "", GradSource::kExternal),
          spec("a.w", 35, kBf16, "a"),
          spec("a.norm", 7, kF32, "a"),
          spec("b.w", 35, kBf16, "b"),
          spec("b.dead", 9, kBf16, "b", GradSource::kNone),
          spec("b.unused", 3, kBf16, "b", GradSource::kUnused),
          spec("b.norm", 7, kF32, "b"),
          spec("head", 1, kF32)};
}

std::vector<int64_t> params_of(const Bucket& bucket) {
  std::vector<int64_t> out;
  for (const BucketSlot& slot : bucket.slots) out.push_back(slot.param);
  return out;
}

TEST(Plan, BucketsAreInReverseOrderOfUse) {
  PlanOptions options;
  options.world_size = 2;
  options.first_bucket_bytes = 16;
  options.bucket_bytes = 256;
  const std::vector<ParamSpec> params = {spec("p0", 10), spec("p1", 20), spec("p2", 30),
                                         spec("p3", 40), spec("p4", 5)};
  const BucketPlan plan = plan_buckets(params, options);
  ASSERT_EQ(plan.buckets.size(), 3u);
  // 5 elements exceed the small first bucket and have it for themselves; 40 + 30 exceed 256 bytes.
  EXPECT_THAT(params_of(plan.buckets[0]), ElementsAre(4));
  EXPECT_THAT(params_of(plan.buckets[1]), ElementsAre(3));
  EXPECT_THAT(params_of(plan.buckets[2]), ElementsAre(2, 1, 0));
  EXPECT_THAT(plan.bucket_index, ElementsAre(2, 2, 2, 1, 0));
  // Offsets at multiples of 4 fp32 elements, sizes at multiples of 4 for each of two ranks.
  EXPECT_EQ(plan.buckets[2].slots[1].offset, 32);
  EXPECT_EQ(plan.buckets[2].slots[2].offset, 52);
  EXPECT_EQ(plan.buckets[2].numel, 64);
  EXPECT_EQ(plan.buckets[0].numel, 8);
  EXPECT_EQ(plan, plan_buckets(params, options));
}

// Members of a stack lie behind each other, ascending and without gaps, wherever they are in the
// list, even where they are no multiples of 16 bytes and exceed a bucket together.
TEST(Plan, StacksStayTogether) {
  std::vector<ParamSpec> params = {spec("q.w", 33), spec("q.b", 3), spec("k.w", 11), spec("k.b", 1),
                                   spec("v.w", 11), spec("v.b", 1), spec("after", 9)};
  for (const size_t i : {0, 2, 4}) params[i].stack = 7;
  for (const size_t i : {1, 3, 5}) params[i].stack = 2;
  params[3].source = GradSource::kNone;  // a frozen member is in no bucket
  for (const int64_t bytes : {64, 4096}) {
    PlanOptions options;
    options.world_size = 2;
    options.first_bucket_bytes = options.bucket_bytes = bytes;
    const BucketPlan plan = plan_buckets(params, options);
    std::map<int64_t, std::pair<int64_t, BucketSlot>> slots;
    for (size_t b = 0; b < plan.buckets.size(); ++b) {
      for (const BucketSlot& slot : plan.buckets[b].slots) {
        slots[slot.param] = {static_cast<int64_t>(b), slot};
      }
    }
    ASSERT_EQ(slots.size(), 6u);
    for (const std::vector<int64_t>& stack : {std::vector<int64_t>{0, 2, 4}, {1, 5}}) {
      EXPECT_EQ(slots[stack[0]].second.offset % 4, 0);
      for (size_t k = 1; k < stack.size(); ++k) {
        EXPECT_EQ(slots[stack[k]].first, slots[stack[0]].first);
        EXPECT_EQ(slots[stack[k]].second.offset, slots[stack[k - 1]].second.end());
      }
    }
    // Every element belongs to one rank, also inside a stack.
    std::map<int64_t, int64_t> covered;
    for (const int64_t rank : {0, 1}) {
      for (const OwnedSlice& slice : owned_slices(plan, rank)) {
        covered[slice.param] += slice.end - slice.begin;
      }
    }
    for (const auto& [param, count] : covered) {
      EXPECT_EQ(count, params[static_cast<size_t>(param)].numel);
    }
  }
}

TEST(Plan, ExternalGradientsComeLastAndFrozenOnesNowhere) {
  PlanOptions options;
  options.world_size = 3;
  const BucketPlan plan = plan_buckets(mixed(), options);
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_TRUE(plan.buckets.back().external);
  EXPECT_THAT(params_of(plan.buckets.back()), ElementsAre(0));
  EXPECT_EQ(plan.bucket_of(4), -1);
  for (const Bucket& bucket : plan.buckets) {
    const int64_t align = alignment_elements(bucket.dtype);
    EXPECT_EQ(bucket.numel % (3 * align), 0);
    int64_t end = 0;
    for (const BucketSlot& slot : bucket.slots) {
      const ParamSpec& p = plan.params[static_cast<size_t>(slot.param)];
      EXPECT_EQ(p.dtype, bucket.dtype);
      EXPECT_EQ(slot.offset % align, 0);
      EXPECT_GE(slot.offset, end);
      EXPECT_EQ(slot.numel, p.numel);
      end = slot.end();
    }
    EXPECT_LE(end, bucket.numel);
  }
}

TEST(Plan, SlicesCoverEveryElementOnce) {
  for (const int64_t world : {1, 2, 3, 4, 7}) {
    PlanOptions options;
    options.world_size = world;
    options.bucket_bytes = 100;
    options.first_bucket_bytes = 30;
    const BucketPlan plan = plan_buckets(mixed(), options);
    std::vector<std::vector<int>> hits;
    for (const ParamSpec& p : plan.params) hits.emplace_back(static_cast<size_t>(p.numel), 0);
    for (int64_t r = 0; r < world; ++r) {
      for (const OwnedSlice& s : owned_slices(plan, r)) {
        const int64_t part = plan.buckets[static_cast<size_t>(s.bucket)].numel / world;
        EXPECT_GE(s.shard_offset, 0);
        EXPECT_LE(s.shard_offset + s.end - s.begin, part);
        for (int64_t i = s.begin; i < s.end; ++i) {
          ++hits[static_cast<size_t>(s.param)][static_cast<size_t>(i)];
        }
      }
    }
    for (size_t p = 0; p < hits.size(); ++p) {
      const int wanted = plan.params[p].source == GradSource::kNone ? 0 : 1;
      for (const int hit : hits[p]) EXPECT_EQ(hit, wanted) << plan.params[p].name << " " << world;
    }
  }
}

TEST(Plan, UnitsHaveTheirDtypesAndFrozenPartsApart) {
  const std::vector<UnitShard> units = plan_units(mixed(), 4);
  std::vector<std::string> names;
  for (const UnitShard& u : units) {
    names.push_back(u.unit + (u.dtype == kF32 ? ":fp32" : ":bf16") +
                    (u.trainable ? "" : ":frozen"));
    EXPECT_EQ(u.numel % (4 * alignment_elements(u.dtype)), 0);
  }
  // The table's gradient comes from outside: a space of its own.
  EXPECT_TRUE(units.front().external);
  EXPECT_THAT(names, ElementsAre(":bf16", "a:bf16", "a:fp32", "b:bf16", "b:bf16:frozen", "b:fp32",
                                 ":fp32"));
}

TEST(Plan, BadInputsAreNamed) {
  const auto error = [](std::vector<ParamSpec> params, PlanOptions options) -> std::string {
    try {
      plan_buckets(std::move(params), options);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(error({spec("x", 0)}, {}), HasSubstr("'x' has 0 elements"));
  EXPECT_THAT(error({spec("x", 1), spec("x", 2)}, {}), HasSubstr("'x' is listed twice"));
  EXPECT_THAT(error({spec("x", 1, c10::ScalarType::Long)}, {}), HasSubstr("'x' is Long"));
  PlanOptions options;
  options.reduce_dtype = c10::ScalarType::Half;
  EXPECT_THAT(error({spec("x", 1)}, options), HasSubstr("parallel.reduce_dtype: Half"));
  options = {};
  options.bucket_bytes = 0;
  EXPECT_THAT(error({spec("x", 1)}, options), HasSubstr("at least 1"));
  EXPECT_THROW(parse_strategy("zero3"), ConfigError);
  EXPECT_THROW(parse_reshard("sometimes"), ConfigError);
}

// Written out by hand: two units of 1000 fp32 elements and a root of 8, four ranks.
TEST(Plan, FsdpTraffic) {
  const std::vector<ParamSpec> params = {spec("r", 8), spec("u", 1000, kF32, "u"),
                                         spec("v", 1000, kF32, "v")};
  PlanOptions options;
  options.world_size = 4;
  const BucketPlan plan = plan_buckets(params, options);
  CostOptions cost;
  cost.strategy = Strategy::kFsdp;
  cost.micro_batches = 3;
  const int64_t unit = 1008 * 4 * 3 / 4, root = 16 * 4 * 3 / 4;  // sent by one rank
  auto traffic = predict_communication(plan, cost);
  // The root once, u for both passes, v once a micro-batch: its backward pass comes next.
  EXPECT_EQ(traffic["params"].count, 1 + 6 + 3);
  EXPECT_EQ(traffic["params"].wire_bytes, root + (6 + 3) * unit);
  EXPECT_EQ(traffic["grad"].wire_bytes, 3 * (root + 2 * unit));
  cost.reshard = Reshard::kNever;
  EXPECT_EQ(predict_communication(plan, cost)["params"].count, 1 + 3 + 3);
  cost.reshard = Reshard::kAfterOptimizerStep;
  EXPECT_EQ(predict_communication(plan, cost)["params"].count, 3);
  cost.strategy = Strategy::kHsdp;
  cost.shard_size = 2;
  traffic = predict_communication(plan, cost);
  EXPECT_EQ(traffic["params"].wire_bytes, (8 + 2 * 1000) * 4 / 2);
  EXPECT_EQ(traffic["grad replicas"].wire_bytes, (8 + 2 * 1000) / 2 * 4);
  for (const int64_t size : {3, 1}) {
    cost.shard_size = size;
    EXPECT_THROW(predict_communication(plan, cost), ConfigError) << size;
  }
}

TEST(Plan, Shards) {
  std::vector<ParamSpec> params = {spec("pre", 8, kF32, "p", GradSource::kNone),
                                   spec("k", 8, kF32, "u"),
                                   spec("other", 8, kF32, "u"),
                                   spec("q", 8, kF32, "u"),
                                   spec("root", 8),
                                   spec("dead", 8, kF32, "unread", GradSource::kNone)};
  params[0].forward_only = true;
  EXPECT_THAT(keep_stacks_together(params, {{"q", "k", "absent"}}), ElementsAre(0, 3, 1, 2, 4, 5));
  const ShardPlan plan = plan_shards(params, 2);
  ASSERT_EQ(plan.units.size(), 3u);
  EXPECT_EQ(plan.units[0].name, "");
  EXPECT_EQ(plan.units[1].name, "p");
  EXPECT_FALSE(plan.units[1].backward);
  EXPECT_EQ(plan.units[2].name, "u");
  EXPECT_THAT(plan.unit_of, ElementsAre(1, 2, 2, 2, 0, -1));
  EXPECT_EQ(plan.spaces[1].slots[1].offset, 8);  // k behind q
  params[0].source = GradSource::kBackward;
  EXPECT_THROW(plan_shards(params, 2), ConfigError);
  params[0].source = GradSource::kNone;
  params.back().source = GradSource::kUnused;
  EXPECT_THROW(plan_shards(params, 2), ConfigError);
}

TEST(Plan, MemoryByHand) {
  const std::vector<ParamSpec> params = {spec("w", 1000, kBf16, "u"), spec("n", 8, kF32, "u"),
                                         spec("f", 100, kBf16, "u", GradSource::kNone)};
  PlanOptions options;
  options.world_size = 2;
  const BucketPlan plan = plan_buckets(params, options);
  CostOptions cost;
  cost.ema = true;
  MemoryForecast m = predict_memory(plan, cost);  // ddp
  EXPECT_EQ(m.parameters, 1000 * 2 + 8 * 4 + 100 * 2);
  EXPECT_EQ(m.gradients, 1008 * 4 + 8 * 4);
  EXPECT_EQ(m.reduce_buffers, 0);
  EXPECT_EQ(m.masters, 1000 * 4);
  EXPECT_EQ(m.moments, 1008 * 8);
  EXPECT_EQ(m.ema, 1008 * 4);
  cost.gradients_stay = true;
  m = predict_memory(plan, cost);
  EXPECT_EQ(m.gradients, 1008 * 2 + 8 * 4);
  EXPECT_EQ(m.reduce_buffers, 1008 * 4);
  cost.gradients_stay = false;
  cost.strategy = Strategy::kZero1;
  m = predict_memory(plan, cost);
  EXPECT_EQ(m.parameters, 1008 * 2 + 8 * 4 + 100 * 2);
  EXPECT_EQ(m.gradients, 1008 * 4 + 8 * 4);
  EXPECT_EQ(m.reduce_buffers, (504 + 4) * 4);
  EXPECT_EQ(m.masters, 504 * 4);
  EXPECT_EQ(m.moments, (504 + 4) * 8);
  cost.strategy = Strategy::kFsdp;
  m = predict_memory(plan, cost);
  EXPECT_EQ(m.parameters, 1008 / 2 * 2 + 4 * 4 + 112 / 2 * 2);
  EXPECT_EQ(m.gradients, (504 + 4) * 4);
  EXPECT_EQ(m.gathered, 1008 * 2 + 8 * 4 + 112 * 2);  // one unit: one buffer
  EXPECT_EQ(m.reduce_buffers, (1008 + 8) * 4);
  cost.reshard = Reshard::kNever;
  EXPECT_EQ(predict_memory(plan, cost).gathered, m.gathered);
  EXPECT_EQ(m.total(), m.parameters + m.gradients + m.reduce_buffers + m.masters + m.moments +
                           m.ema + m.gathered);
}

TEST(Plan, RingBytes) {
  EXPECT_EQ(ring_bytes(CollectiveKind::kAllReduce, 4, 1000), 1500);
  EXPECT_EQ(ring_bytes(CollectiveKind::kReduceScatter, 4, 1000), 750);
  EXPECT_EQ(ring_bytes(CollectiveKind::kAllGather, 1, 1000), 0);
  EXPECT_EQ(ring_bytes(CollectiveKind::kBarrier, 4, 1000), 0);
}

TEST(Plan, HsdpGroups) {
  const HsdpGroups groups = hsdp_groups(5, 8, 4);
  EXPECT_THAT(groups.shard, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(groups.replicate, ElementsAre(1, 5));
  EXPECT_THROW(hsdp_groups(0, 8, 3), ConfigError);
  EXPECT_EQ(describe_ranks({1, 2, 3, 7}), "ranks 1-3, 7");
  EXPECT_EQ(describe_ranks({2}), "rank 2");
}

}  // namespace
}  // namespace longship::dist
