// Strategies x ranks x accumulation x dtypes, 20 steps each, against the single process.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "mlp.h"

namespace longship::dist {
namespace {

// See train_test.cpp. A bf16 wire rounds each gradient to 8 bits, once (2e-3 of it, at random);
// bf16 weights round activations and gradients besides, in another order when a batch is split.
constexpr double kLossBound = 2e-6, kWireBound = 3e-4, kBf16Bound = 5e-3;

// The measured error beside the bound, for the record.
void expect_close(const std::string& what, const std::vector<double>& a,
                  const std::vector<double>& b, double floor, double bound) {
  const double error = worst_error(a, b, floor);
  fmt::print("{}: {:.2g} of at most {:g}\n", what, error, bound);
  EXPECT_LE(error, bound) << what;
}

class TrainFull : public ::testing::TestWithParam<int> {};

TEST_P(TrainFull, Fp32FollowsTheSingleProcess) {
  const TrainResult reference = train_ranks(1, {});
  for (const int64_t micro : {1, 2, 3}) {
    if (24 / GetParam() % micro != 0) continue;
    TrainOptions options;
    options.micro_batches = micro;
    options.strategy = Strategy::kDdp;
    const TrainResult ddp = train_ranks(GetParam(), options);
    options.strategy = Strategy::kZero1;
    const TrainResult zero1 = train_ranks(GetParam(), options);
    options.strategy = Strategy::kFsdp;
    for (const Reshard reshard :
         {Reshard::kAfterForward, Reshard::kNever, Reshard::kAfterOptimizerStep}) {
      options.reshard = reshard;
      options.recompute = micro == 2;
      const TrainResult fsdp = train_ranks(GetParam(), options);
      expect_close("losses, fsdp and ddp", fsdp.losses, ddp.losses, 1e-3, kLossBound);
      expect_close("weights, fsdp and ddp", fsdp.weights, ddp.weights, 0.1, 10 * kLossBound);
    }
    expect_close("losses, ddp", ddp.losses, reference.losses, 1e-3, kLossBound);
    expect_close("weights, ddp", ddp.weights, reference.weights, 0.1, 10 * kLossBound);
    expect_close("losses, zero1 and ddp", zero1.losses, ddp.losses, 1e-3, kLossBound);
    expect_close("weights, zero1 and ddp", zero1.weights, ddp.weights, 0.1, 10 * kLossBound);
  }
}

TEST_P(TrainFull, ReducedInBf16) {
  const TrainResult reference = train_ranks(1, {});
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kFsdp}) {
    TrainOptions options;
    options.strategy = strategy;
    options.reduce_dtype = at::kBFloat16;
    const TrainResult run = train_ranks(GetParam(), options);
    expect_close("losses", run.losses, reference.losses, 1e-3, kWireBound);
    if (GetParam() > 1) {
      EXPECT_GT(worst_error(run.losses, reference.losses, 1e-3), 1e-7) << "the wire was not bf16";
    }
  }
}

TEST_P(TrainFull, Bf16WeightsWithMasters) {
  TrainOptions options;
  options.dtype = at::kBFloat16;
  const TrainResult reference = train_ranks(1, options);
  for (const auto reduce : {at::kFloat, at::kBFloat16}) {
    for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kFsdp}) {
      options.strategy = strategy;
      options.reduce_dtype = reduce;
      options.micro_batches = 2;
      const TrainResult run = train_ranks(GetParam(), options);
      expect_close("losses", run.losses, reference.losses, 1e-3, kBf16Bound);
    }
  }
}

TEST(TrainHsdp, TwoTimesTwoRanksAndOneTimesFour) {
  const TrainResult reference = train_ranks(1, {});
  for (const int64_t shard_size : {2, 4}) {
    for (const int64_t micro : {1, 3}) {
      TrainOptions options;
      options.strategy = Strategy::kHsdp;
      options.shard_size = shard_size;
      options.micro_batches = micro;
      const TrainResult run = train_ranks(4, options);
      expect_close("losses, hsdp", run.losses, reference.losses, 1e-3, kLossBound);
      expect_close("weights, hsdp", run.weights, reference.weights, 0.1, 10 * kLossBound);
      options.reduce_dtype = at::kBFloat16;
      expect_close("losses, hsdp, bf16 wire", train_ranks(4, options).losses, reference.losses,
                   1e-3, kWireBound);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, TrainFull, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace longship::dist
