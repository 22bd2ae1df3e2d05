// The tiny Pi0.5: strategies x ranks x accumulation x what is gathered when x frozen parts x
// dtypes, 20 steps each, against the single process and against each other.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "pi05_runs.h"

namespace longship::dist {
namespace {

constexpr double kLossBound = 2e-5, kWireBound = 2e-3, kBf16Bound = 2e-2;

void expect_close(const std::string& what, const std::vector<double>& a,
                  const std::vector<double>& b, double floor, double bound) {
  const double error = worst_error(a, b, floor);
  fmt::print("{}: {:.2g} of at most {:g}\n", what, error, bound);
  EXPECT_LE(error, bound) << what;
}

class Pi05Full : public ::testing::TestWithParam<int> {
 protected:
  static std::vector<int64_t> micro_batches() {
    std::vector<int64_t> out{1};
    const int64_t share = 12 / GetParam();
    out.push_back(share % 2 == 0 ? 2 : 3);
    return out;
  }
};

TEST_P(Pi05Full, EveryStrategyFollowsTheSingleProcess) {
  const TrainResult reference = train_pi05(1, {});
  for (const int64_t micro : micro_batches()) {
    Pi05RunOptions options;
    options.micro_batches = micro;
    options.strategy = Strategy::kDdp;
    const TrainResult ddp = train_pi05(GetParam(), options);
    expect_close("losses, ddp", ddp.losses, reference.losses, 1e-3, kLossBound);
    options.strategy = Strategy::kZero1;
    const TrainResult zero1 = train_pi05(GetParam(), options);
    expect_close("losses, zero1 and ddp", zero1.losses, ddp.losses, 1e-3, kLossBound);
    options.strategy = Strategy::kFsdp;
    for (const Reshard reshard :
         {Reshard::kAfterForward, Reshard::kNever, Reshard::kAfterOptimizerStep}) {
      options.reshard = reshard;
      const TrainResult fsdp = train_pi05(GetParam(), options);
      expect_close("losses, fsdp and ddp", fsdp.losses, ddp.losses, 1e-3, kLossBound);
      expect_close("weights, fsdp and ddp", fsdp.weights, ddp.weights, 0.1, 10 * kLossBound);
    }
  }
}

TEST_P(Pi05Full, FrozenPartsRecomputedUnitsAndFusedOperators) {
  for (const char* freeze : {"", "vision", "expert_only"}) {
    for (const bool fused : {false, true}) {
      Pi05RunOptions options;
      if (*freeze != '\0') options.freeze = {freeze};
      options.fused = fused;
      const TrainResult reference = train_pi05(1, options);
      options.strategy = Strategy::kFsdp;
      options.recompute = {"full"};
      options.micro_batches = micro_batches().back();
      const TrainResult fsdp = train_pi05(GetParam(), options);
      expect_close(fmt::format("losses, freeze '{}', fused {}", freeze, fused), fsdp.losses,
                   reference.losses, 1e-3, kLossBound);
    }
  }
}

TEST_P(Pi05Full, Bf16AndItsWire) {
  Pi05RunOptions options;
  options.reduce_dtype = at::kBFloat16;
  const TrainResult single = train_pi05(1, options);
  options.strategy = Strategy::kFsdp;
  expect_close("losses, bf16 wire", train_pi05(GetParam(), options).losses, single.losses, 1e-3,
               kWireBound);
  options.dtype = at::kBFloat16;
  options.strategy = Strategy::kNone;
  const TrainResult reference = train_pi05(1, options);
  for (const auto reduce : {at::kFloat, at::kBFloat16}) {
    for (const Strategy strategy : {Strategy::kDdp, Strategy::kFsdp}) {
      options.strategy = strategy;
      options.reduce_dtype = reduce;
      options.fused = strategy == Strategy::kFsdp;
      const TrainResult run = train_pi05(GetParam(), options);
      expect_close("losses, bf16", first_half(run), first_half(reference), 1e-3, kBf16Bound);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Pi05Full, ::testing::Values(1, 2, 3, 4));

TEST(Pi05Hsdp, TwoTimesTwoRanks) {
  const TrainResult reference = train_pi05(1, {});
  Pi05RunOptions options;
  options.strategy = Strategy::kHsdp;
  options.shard_size = 2;
  for (const Reshard reshard :
       {Reshard::kAfterForward, Reshard::kNever, Reshard::kAfterOptimizerStep}) {
    options.reshard = reshard;
    options.micro_batches = 3;
    expect_close("losses, hsdp", train_pi05(4, options).losses, reference.losses, 1e-3, kLossBound);
  }
  options.reduce_dtype = at::kBFloat16;
  options.fused = true;
  expect_close("losses, hsdp, bf16 wire", train_pi05(4, options).losses, reference.losses, 1e-3,
               kWireBound);
}

}  // namespace
}  // namespace longship::dist
