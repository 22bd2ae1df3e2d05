#include "dist/scaling_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace longship::dist {
namespace {

using ::testing::ElementsAre;

constexpr auto kF32 = c10::ScalarType::Float;
constexpr auto kBf16 = c10::ScalarType::BFloat16;

ParamSpec spec(const std::string& name, int64_t numel, c10::ScalarType dtype,
               const std::string& unit, GradSource source = GradSource::kBackward) {
  return {name, numel, dtype, unit, source};
}

BucketPlan plan_of(std::vector<ParamSpec> params, int64_t world, c10::ScalarType wire = kF32,
                   int64_t bucket_bytes = 25 << 20) {
  PlanOptions options;
  options.world_size = world;
  options.reduce_dtype = wire;
  options.bucket_bytes = bucket_bytes;
  return plan_buckets(std::move(params), options);
}

CostOptions cost(Strategy strategy, int64_t shard = 0, int64_t micro_batches = 1) {
  CostOptions out;
  out.strategy = strategy;
  out.shard_size = shard;
  out.micro_batches = micro_batches;
  return out;
}

// A root with a table, two units, and a part that is frozen.
std::vector<ParamSpec> small() {
  return {spec("table", 4096, kBf16, "", GradSource::kExternal), spec("a", 1024, kBf16, "u0"),
          spec("frozen", 2048, kBf16, "u0", GradSource::kNone), spec("b", 1024, kBf16, "u1"),
          spec("head", 512, kF32, "u1")};
}

// ---- Time of one collective. ------------------------------------------------------------------

TEST(Scaling, RingInsideOneNode) {
  ScalingConstants c;
  c.nvlink_gb_s = 200;
  // 2 * 1/2 * 1 GB at 200 GB/s; 8.4 us + 2 steps of 3.4 us.
  EXPECT_NEAR(collective_ms(CollectiveKind::kAllReduce, 1'000'000'000, {2, 2}, c), 5.0152, 1e-9);
  EXPECT_NEAR(collective_ms(CollectiveKind::kAllGather, 1'000'000'000, {2, 2}, c), 2.5118, 1e-9);
  EXPECT_EQ(collective_ms(CollectiveKind::kAllReduce, 1'000'000'000, {1, 1}, c), 0);
}

TEST(Scaling, RingOverNodesUsesEveryAdapter) {
  ScalingConstants c;
  c.nvlink_gb_s = 400;
  // 1.5 GB at 8 * 50 * 0.9 GB/s; 8.4 us + 14 steps of 3.4 us + one of 14 us.
  const auto kind = CollectiveKind::kReduceScatter;
  EXPECT_NEAR(collective_ms(kind, 1'600'000'000, {16, 8}, c), 1500.0 / 360 + 0.070, 1e-9);
  c.nvlink_gb_s = 200;  // the slower of both
  EXPECT_NEAR(collective_ms(kind, 1'600'000'000, {16, 8}, c), 1500.0 / 200 + 0.070, 1e-9);
  // One rank a node: its adapter alone, and no NVLink. 6 MB at 45 * 0.92; 14 us + 6 steps of 4 us.
  EXPECT_NEAR(collective_ms(CollectiveKind::kAllReduce, 4'000'000, {4, 1}, c),
              6.0 / (45 * 0.92) + 0.038, 1e-9);
}

TEST(Scaling, SmallSumsOfManyRanksTakeATree) {
  // 14 us + 2 * (7 ranks * 1.25 us + 7 doublings * 8.5 us).
  EXPECT_NEAR(collective_ms(CollectiveKind::kAllReduce, 8, {1024, 8}, {}), 0.1505, 1e-5);
  // A reduce-scatter has only the ring: 14 us + 896 * 1.9 us + 127 * 4 us.
  EXPECT_NEAR(collective_ms(CollectiveKind::kReduceScatter, 1024, {1024, 8}, {}), 2.2244, 1e-5);
}

TEST(Scaling, CopyEnginesServeGroupsOfOneNode) {
  ScalingConstants c;
  c.peer = true;
  c.peer_gb_s = 250;
  // 2 * 1/2 * 1 GB at 250 GB/s and 55 us; a gather sends half and waits once.
  EXPECT_NEAR(collective_ms(CollectiveKind::kAllReduce, 1'000'000'000, {2, 2}, c), 4.055, 1e-9);
  EXPECT_NEAR(collective_ms(CollectiveKind::kAllGather, 1'000'000'000, {2, 2}, c), 2.022, 1e-9);
  EXPECT_NEAR(collective_ms(CollectiveKind::kReduceScatter, 1'000'000'000, {8, 8}, c), 3.535, 1e-9);
  // Over nodes they are NCCL's.
  ScalingConstants nccl = c;
  nccl.peer = false;
  for (const auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather}) {
    EXPECT_EQ(collective_ms(kind, 1'000'000, {16, 8}, c),
              collective_ms(kind, 1'000'000, {16, 8}, nccl));
  }
}

TEST(Scaling, GroupsFillNodes) {
  EXPECT_EQ(whole_group(4, 8), (RankGroup{4, 4}));
  EXPECT_EQ(whole_group(64, 8), (RankGroup{64, 8}));
  EXPECT_EQ(whole_group(64, 8).nodes(), 8);
  EXPECT_THROW(whole_group(12, 8), ConfigError);
  EXPECT_THROW(whole_group(0, 8), ConfigError);
}

// ---- What is exchanged. -----------------------------------------------------------------------

TEST(Scaling, ExchangesAreThoseOfThePlan) {
  const Strategy all[] = {Strategy::kNone, Strategy::kDdp, Strategy::kZero1, Strategy::kFsdp,
                          Strategy::kHsdp};
  for (const int64_t world : {2, 8, 32}) {
    for (const auto wire : {kF32, kBf16}) {
      for (const Strategy strategy : all) {
        for (const Reshard reshard :
             {Reshard::kAfterForward, Reshard::kNever, Reshard::kAfterOptimizerStep}) {
          const BucketPlan plan = plan_of(small(), world, wire, 2048);
          CostOptions options = cost(strategy, std::min<int64_t>(world, 8), 3);
          options.reshard = reshard;
          std::map<std::string, CollectiveCounter> sums;
          for (const Exchange& e : exchanges(plan, options, 8)) {
            sums[e.name].count += e.times;
            sums[e.name].wire_bytes += e.times * ring_bytes(e.kind, e.group.ranks, e.num_bytes);
          }
          const auto planned = predict_communication(plan, options);
          ASSERT_EQ(sums.size(), planned.size());
          for (const auto& [name, counter] : planned) {
            EXPECT_EQ(sums[name].count, counter.count) << name;
            EXPECT_EQ(sums[name].wire_bytes, counter.wire_bytes) << name;
          }
        }
      }
    }
  }
}

std::vector<std::string> exposed(const std::vector<Exchange>& all) {
  std::vector<std::string> out;
  for (const Exchange& e : all) {
    if (!e.hidden) out.push_back(e.name + " " + std::to_string(e.num_bytes));
  }
  return out;
}

TEST(Scaling, WhatNothingHides) {
  // Buckets: b, head, a (1024 * 4 bytes as sent), table.
  const BucketPlan plan = plan_of(small(), 2, kF32, 2048);
  EXPECT_THAT(exposed(exchanges(plan, cost(Strategy::kDdp), 8)),
              ElementsAre("grad 4096", "grad 16384"));
  EXPECT_THAT(exposed(exchanges(plan, cost(Strategy::kZero1), 8)),
              ElementsAre("grad 4096", "grad 16384", "params 8192", "params 2048", "params 2048",
                          "params 2048", "norm 8"));
  CostOptions replayed = cost(Strategy::kDdp);
  replayed.gradients_stay = true;
  EXPECT_EQ(exposed(exchanges(plan, replayed, 8)).size(), plan.buckets.size());
  // The table of the root and the first unit; the table's gradient, the first unit's.
  EXPECT_THAT(exposed(exchanges(plan, cost(Strategy::kFsdp), 8)),
              ElementsAre("params 8192", "grad 16384", "params 2048", "grad 4096", "params 4096",
                          "norm 8"));
}

TEST(Scaling, HsdpSendsReplicasOverTheNetwork) {
  const BucketPlan plan = plan_of(small(), 32);
  for (const Exchange& e : exchanges(plan, cost(Strategy::kHsdp, 8), 8)) {
    const bool replicas = e.name == "grad replicas";
    EXPECT_EQ(e.group, replicas ? (RankGroup{4, 1}) : (RankGroup{8, 8})) << e.name;
  }
  // Two copies in a node.
  for (const Exchange& e : exchanges(plan, cost(Strategy::kHsdp, 4), 8)) {
    if (e.name != "grad replicas") continue;
    EXPECT_EQ(e.group, (RankGroup{8, 2}));
  }
}

// ---- Bytes in memory. -------------------------------------------------------------------------

TEST(Scaling, ConversionByHand) {
  const std::vector<ParamSpec> params = {spec("t", 1024, kBf16, "", GradSource::kExternal),
                                         spec("w", 4096, kBf16, "u")};
  const BucketPlan wide = plan_of(params, 2), narrow = plan_of(params, 2, kBf16);
  EXPECT_EQ(conversion_bytes(wide, cost(Strategy::kNone)), 0);
  // Read 2, write 4; the table there and back.
  EXPECT_EQ(conversion_bytes(wide, cost(Strategy::kDdp)), 4096 * 6 + 2 * 1024 * 6);
  EXPECT_EQ(conversion_bytes(wide, cost(Strategy::kZero1)), 4096 * 6 + 1024 * 6);
  EXPECT_EQ(conversion_bytes(narrow, cost(Strategy::kDdp)), 4096 * 4);
  // A second micro-batch is added to 4 bytes instead of 2.
  EXPECT_EQ(conversion_bytes(wide, cost(Strategy::kDdp, 0, 2)), 4096 * (6 + 4) + 2 * 1024 * 6);
  // What is widened on the way has been written where it is sent from.
  CostOptions widened = cost(Strategy::kDdp);
  widened.widened = true;
  EXPECT_EQ(conversion_bytes(wide, widened), 2 * 1024 * 6);
  // The mean of the own half is copied.
  EXPECT_EQ(conversion_bytes(wide, cost(Strategy::kFsdp)), 4096 * 6 + 1024 * 6 + (2048 + 512) * 8);
}

TEST(Scaling, UpdateByHand) {
  const std::vector<ParamSpec> params = {spec("t", 1024, kBf16, "", GradSource::kExternal),
                                         spec("w", 4096, kBf16, "u"), spec("n", 512, kF32, "u"),
                                         spec("f", 512, kF32, "u", GradSource::kNone)};
  const BucketPlan plan = plan_of(params, 2);
  // bf16: gradient 2 * 2, moments 16, master 8, weight 2. fp32: gradient 2 * 4, moments 16,
  // weight 8.
  EXPECT_EQ(update_bytes(plan, cost(Strategy::kNone)), 4096 * 30 + 512 * 32);
  EXPECT_EQ(update_bytes(plan, cost(Strategy::kDdp)), 4096 * 34 + 512 * 32);
  EXPECT_EQ(update_bytes(plan, cost(Strategy::kZero1)), ((4096 + 1024) * 34 + 512 * 32) / 2);
  EXPECT_EQ(update_bytes(plan, cost(Strategy::kFsdp)), ((4096 + 1024) * 34 + 512 * 32) / 2);
}

// ---- The step. --------------------------------------------------------------------------------

TEST(Scaling, StepByHand) {
  ScalingConstants c;
  c.nvlink_gb_s = 100;
  c.slowdown_ms_per_gb = 2;
  c.convert_tb_s = 2;
  c.update_tb_s = 4;
  StepWork work;
  work.compute_ms = 300;
  work.conversion_bytes = 20'000'000'000;  // 10 ms
  work.update_bytes = -40'000'000'000;     // -10 ms
  const auto kind = CollectiveKind::kAllReduce;
  std::vector<Exchange> all = {{"grad", kind, 2'000'000'000, {2, 2}, 1, Pass::kBackward, true},
                               {"grad", kind, 1'000'000'000, {2, 2}, 1, Pass::kBackward, false}};
  StepForecast step = forecast(work, all, c);
  EXPECT_NEAR(step.communication_ms, 30, 0.1);
  EXPECT_NEAR(step.slowdown_ms, 4, 1e-9);
  EXPECT_NEAR(step.exposed_ms, 10, 0.1);
  EXPECT_NEAR(step.step_ms(), 300 + 10 - 10 + 4 + 10, 0.1);
  EXPECT_NEAR(step.efficiency(), 300 / step.step_ms(), 1e-9);
  // 40 GB take 400 ms, of which the backward pass of 200 ms hides half; 20 GB slow it down.
  all.front().num_bytes = 40'000'000'000;
  step = forecast(work, all, c);
  EXPECT_NEAR(step.exposed_ms, 200 + 10, 0.1);
  EXPECT_NEAR(step.slowdown_ms, 40, 0.1);
  // Four micro-batches: the last one's backward pass has 50 ms.
  work.micro_batches = 4;
  EXPECT_NEAR(forecast(work, all, c).exposed_ms, 350 + 10, 0.1);
  work.every_pass = true;
  EXPECT_NEAR(forecast(work, all, c).exposed_ms, 200 + 10, 0.1);
}

TEST(Scaling, OneGpuIsTheMeasuredStep) {
  const BucketPlan plan = plan_of(small(), 1);
  const StepForecast step = predict_step(plan, cost(Strategy::kDdp), 8, 123, {});
  EXPECT_EQ(step.step_ms(), 123);
  EXPECT_EQ(step.efficiency(), 1);
  EXPECT_THROW(predict_step(plan, cost(Strategy::kDdp), 8, 0, {}), ConfigError);
  ScalingConstants broken;
  broken.nvlink_gb_s = 0;
  EXPECT_THROW(predict_step(plan, cost(Strategy::kDdp), 8, 100, broken), ConfigError);
}

// ---- Against what was measured. ---------------------------------------------------------------

// Units and sizes of Pi0.5 at full size, bf16 (configs/pi05/full.yaml), in order of use; a unit is
// one to three tensors here.
// `touched`: of the table, in a step of one rank.
std::vector<ParamSpec> pi05_full(int64_t touched) {
  std::vector<ParamSpec> out = {spec("time", 3'254'944, kF32, "")};
  for (int l = 0; l < 37; ++l) {
    out.push_back(spec("modulation." + std::to_string(l), 3'145'728, kF32, ""));
  }
  out.push_back(spec("dead", 109'056'000, kBf16, "unread", GradSource::kNone));
  for (int l = 0; l < 27; ++l) {
    const std::string unit = "vision." + std::to_string(l);
    out.push_back(spec(unit, 15'239'504, kBf16, unit));
  }
  out.push_back(spec("projector", 2'363'648, kBf16, ""));
  out.push_back(spec("table", 526'647'296, kBf16, "", GradSource::kExternal));
  out.back().row_length = 2048;
  out.back().touched_rows = touched;
  for (int l = 0; l < 17; ++l) {
    const std::string unit = "prefix." + std::to_string(l);
    out.push_back(spec(unit + ".attention", 9'437'184, kBf16, unit));
    out.push_back(spec(unit + ".up", 67'108'864, kBf16, unit));
    out.push_back(spec(unit + ".down", 33'554'432, kBf16, unit));
    out.push_back(spec(unit + ".norms", 4'096, kF32, unit));
  }
  out.push_back(spec("prefix.17", 1'048'576, kBf16, "prefix.17"));
  for (int l = 0; l < 18; ++l) {
    const std::string unit = "expert." + std::to_string(l);
    out.push_back(spec(unit, 17'301'504, kBf16, unit));
  }
  return out;
}

struct Measured {
  const char* name;
  Strategy strategy;
  c10::ScalarType wire;
  double nvlink_gb_s, convert_tb_s;  // of that setting
  double compute_ms, step_ms;        // one GPU, two GPUs
  double sent_mb;
  Reshard reshard = Reshard::kAfterForward;
  bool peer = false;  // over copy engines
  bool lean = false;  // rows of the table, bf16 gradients sent as they are
};

constexpr double kNvlink = ScalingConstants{}.nvlink_gb_s, kFewBlocks = 91;  // NCCL_MAX_CTAS=8
constexpr double kConvert = ScalingConstants{}.convert_tb_s, kOldConvert = 1.25;

// docs/scaling.md has the same table.
const Measured kMeasured[] = {
    {"A ddp", Strategy::kDdp, kF32, kNvlink, kConvert, 477.4, 522.1, 12977.8},
    {"A ddp 8 blocks", Strategy::kDdp, kF32, kFewBlocks, kConvert, 477.4, 535.1, 12977.8},
    {"A ddp bf16 8 blocks", Strategy::kDdp, kBf16, kFewBlocks, kConvert, 477.4, 509.7, 6489.0},
    {"A zero1 8 blocks", Strategy::kZero1, kF32, kFewBlocks, kConvert, 477.4, 532.9, 9852.9},
    {"A fsdp 8 blocks", Strategy::kFsdp, kF32, kFewBlocks, kConvert, 477.4, 535.1, 12431.3},
    {"B ddp", Strategy::kDdp, kF32, kNvlink, kOldConvert, 481.9, 531.4, 12977.8},
    {"B ddp bf16", Strategy::kDdp, kBf16, kNvlink, kConvert, 481.9, 514.4, 6489.0},
    {"B zero1", Strategy::kZero1, kF32, kNvlink, kOldConvert, 481.9, 530.4, 9852.9},
    {"B fsdp", Strategy::kFsdp, kF32, kNvlink, kOldConvert, 481.9, 528.8, 12431.3},
    {"C ddp", Strategy::kDdp, kF32, kNvlink, kConvert, 474.2, 519.4, 12977.8},
    {"C ddp bf16", Strategy::kDdp, kBf16, kNvlink, kConvert, 474.2, 506.4, 6489.0},
    {"C zero1", Strategy::kZero1, kF32, kNvlink, kConvert, 474.2, 520.3, 9852.9},
    {"C fsdp", Strategy::kFsdp, kF32, kNvlink, kConvert, 474.2, 520.3, 12431.3},
    {"C fsdp never", Strategy::kFsdp, kF32, kNvlink, kConvert, 474.2, 512.0, 9852.9,
     Reshard::kNever},
    {"D ddp", Strategy::kDdp, kF32, kNvlink, kConvert, 480.6, 515.7, 12977.8,
     Reshard::kAfterForward, true},
    {"D zero1", Strategy::kZero1, kF32, kNvlink, kConvert, 480.6, 510.2, 9852.9,
     Reshard::kAfterForward, true},
    {"D fsdp never", Strategy::kFsdp, kF32, kNvlink, kConvert, 482.9, 517.4, 9852.9,
     Reshard::kNever, true},
    {"D ddp bf16", Strategy::kDdp, kBf16, kNvlink, kConvert, 482.9, 508.1, 6489.0,
     Reshard::kAfterForward, true},
    {"E ddp bf16", Strategy::kDdp, kBf16, kNvlink, kConvert, 469.7, 494.6, 6489.0,
     Reshard::kAfterForward, true},
    {"E zero1 bf16", Strategy::kZero1, kBf16, kNvlink, kConvert, 469.7, 491.1, 6608.5,
     Reshard::kAfterForward, true},
    {"F ddp", Strategy::kDdp, kF32, kNvlink, kConvert, 469.0, 508.8, 12977.8,
     Reshard::kAfterForward, true},
    {"F zero1", Strategy::kZero1, kF32, kNvlink, kConvert, 469.0, 501.8, 9852.9,
     Reshard::kAfterForward, true},
    {"F fsdp", Strategy::kFsdp, kF32, kNvlink, kConvert, 469.0, 513.6, 12431.3,
     Reshard::kAfterForward, true},
    {"F fsdp never", Strategy::kFsdp, kF32, kNvlink, kConvert, 469.0, 506.0, 9852.9,
     Reshard::kNever, true},
    {"F ddp bf16", Strategy::kDdp, kBf16, kNvlink, kConvert, 469.0, 497.9, 6489.0,
     Reshard::kAfterForward, true},
    {"F zero1 bf16", Strategy::kZero1, kBf16, kNvlink, kConvert, 469.0, 494.6, 6608.5,
     Reshard::kAfterForward, true},
    {"G ddp", Strategy::kDdp, kF32, kNvlink, kConvert, 467.6, 488.8, 8299.2, Reshard::kAfterForward,
     true, true},
    {"G zero1", Strategy::kZero1, kF32, kNvlink, kConvert, 467.6, 487.7, 6227.8,
     Reshard::kAfterForward, true, true},
    {"G fsdp", Strategy::kFsdp, kF32, kNvlink, kConvert, 467.6, 492.6, 8806.3,
     Reshard::kAfterForward, true, true},
};

TEST(Scaling, AgreesWithMeasuredSteps) {
  for (const Measured& m : kMeasured) {
    const BucketPlan plan = plan_of(pi05_full(m.lean ? 32 * 200 : 0), 2, m.wire);
    ScalingConstants c;
    c.nvlink_gb_s = m.nvlink_gb_s;
    c.convert_tb_s = m.convert_tb_s;
    c.peer = m.peer;
    CostOptions options = cost(m.strategy);
    options.reshard = m.reshard;
    options.widened = m.lean;
    double sent = 0;
    for (const auto& [name, counter] : predict_communication(plan, options)) {
      sent += 1e-6 * static_cast<double>(counter.wire_bytes);
    }
    EXPECT_NEAR(sent / m.sent_mb, 1, 1e-3) << m.name;
    const StepForecast step = predict_step(plan, options, 8, m.compute_ms, c);
    // Of the whole step. The loss by the other GPU alone, 7 to 12 % of it, is within a third.
    EXPECT_NEAR(step.step_ms() / m.step_ms, 1, 0.025) << m.name << ": " << step.step_ms();
    const double lost = step.step_ms() - m.compute_ms, measured = m.step_ms - m.compute_ms;
    EXPECT_NEAR(lost / measured, 1, 1.0 / 3) << m.name << ": " << lost << " for " << measured;
  }
}

}  // namespace
}  // namespace longship::dist
