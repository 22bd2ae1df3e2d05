// The quick part: two ranks. All of it at 1 to 4 ranks is in train_full_test.cpp.
#include <gtest/gtest.h>

#include <numeric>

#include "mlp.h"

namespace longship::dist {
namespace {

// fp32: sums over ranks are taken in another order than over samples. AdamW divides a gradient by
// its own size, so rounding grows a little from step to step; over 20 steps the losses stay within
// 2e-6 (measured: 2.3e-7 at most at 1 to 4 ranks). With Gloo, zero1 and ddp give the same bits.
constexpr double kLossBound = 2e-6;

TEST(TrainTwoRanks, EveryStrategyFollowsTheSingleProcess) {
  const TrainResult reference = train_ranks(1, {});
  // The samples repeat after a few steps, so halves are compared.
  const auto middle = reference.losses.begin() + kSteps / 2;
  EXPECT_LT(std::accumulate(middle, reference.losses.end(), 0.0),
            0.95 * std::accumulate(reference.losses.begin(), middle, 0.0));
  for (const int64_t micro : {1, 2}) {
    TrainOptions options;
    options.micro_batches = micro;
    options.strategy = Strategy::kDdp;
    const TrainResult ddp = train_ranks(2, options);
    options.strategy = Strategy::kZero1;
    const TrainResult zero1 = train_ranks(2, options);
    EXPECT_LE(worst_error(ddp.losses, reference.losses, 1e-3), kLossBound) << micro;
    EXPECT_LE(worst_error(ddp.norms, reference.norms, 1e-3), 10 * kLossBound) << micro;
    EXPECT_LE(worst_error(ddp.weights, reference.weights, 0.1), 10 * kLossBound) << micro;
    EXPECT_LE(worst_error(zero1.losses, ddp.losses, 1e-3), kLossBound) << micro;
    EXPECT_LE(worst_error(zero1.weights, ddp.weights, 0.1), 10 * kLossBound) << micro;
  }
}

// Taking autograd's buffers over changes no bit against adding them to zeros.
TEST(TrainTwoRanks, GradientsThatAreHandedOverAreTheSameBits) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1}) {
    for (const int64_t micro : {1, 3}) {
      TrainOptions options;
      options.strategy = strategy;
      options.micro_batches = micro;
      const TrainResult added = train_ranks(2, options);
      options.buffers = GradientBuffers::kHandedOver;
      const TrainResult copied = train_ranks(2, options);
      EXPECT_EQ(copied.losses, added.losses) << micro;
      EXPECT_EQ(copied.weights, added.weights) << micro;
      // Also where they go straight into a wire of another type.
      options.reduce_dtype = at::kBFloat16;
      const TrainResult wired = train_ranks(2, options);
      options.buffers = GradientBuffers::kStay;
      const TrainResult unwired = train_ranks(2, options);
      EXPECT_EQ(wired.losses, unwired.losses) << micro;
      EXPECT_EQ(wired.weights, unwired.weights) << micro;
    }
  }
}

// Gradients narrower than what is sent: one pass is added to the others in the wider type, also
// where they stay at their addresses.
TEST(TrainTwoRanks, NarrowGradientsAreSummedInTheWiderType) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1}) {
    TrainOptions options;
    options.strategy = strategy;
    options.micro_batches = 3;
    options.dtype = at::kBFloat16;
    const TrainResult stay = train_ranks(2, options);
    options.buffers = GradientBuffers::kHandedOver;
    const TrainResult handed = train_ranks(2, options);
    EXPECT_EQ(stay.losses, handed.losses);
    EXPECT_EQ(stay.weights, handed.weights);
  }
}

// Gradients that are sent as they are and added up in the wider type on the way are the same bits
// as those that are converted before. What moves and what is held is as planned (train_mlp).
TEST(TrainTwoRanks, GradientsThatAreWidenedOnTheWayAreTheSameBits) {
  for (const int64_t world : {2, 3}) {
    for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kFsdp}) {
      for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
        TrainOptions options;
        options.strategy = strategy;
        options.dtype = dtype;
        options.buffers = GradientBuffers::kHandedOver;
        const TrainResult before = train_ranks(world, options);
        options.buffers = GradientBuffers::kHandedOverOnce;
        EXPECT_EQ(train_ranks(world, options).pack(), before.pack()) << world;
        options.widening = true;
        EXPECT_EQ(train_ranks(world, options).pack(), before.pack()) << world;
      }
    }
  }
}

// Every kept-or-gathered-again choice, with accumulation and with units computed again.
TEST(TrainTwoRanks, FsdpFollowsTheSingleProcess) {
  const TrainResult reference = train_ranks(1, {});
  for (const Reshard reshard :
       {Reshard::kAfterForward, Reshard::kNever, Reshard::kAfterOptimizerStep}) {
    TrainOptions options;
    options.micro_batches = 2;
    options.strategy = Strategy::kFsdp;
    options.reshard = reshard;
    const TrainResult kept = train_ranks(2, options);
    EXPECT_LE(worst_error(kept.losses, reference.losses, 1e-3), kLossBound);
    EXPECT_LE(worst_error(kept.norms, reference.norms, 1e-3), 10 * kLossBound);
    EXPECT_LE(worst_error(kept.weights, reference.weights, 0.1), 10 * kLossBound);
    options.recompute = true;
    const TrainResult recomputed = train_ranks(2, options);
    EXPECT_EQ(recomputed.pack(), kept.pack());  // the same bits
  }
}

// One rank without peers goes through the same code.
TEST(TrainTwoRanks, OneRankAlone) {
  const TrainResult reference = train_ranks(1, {});
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kFsdp}) {
    TrainOptions options;
    options.strategy = strategy;
    const TrainResult alone = train_ranks(1, options);
    EXPECT_LE(worst_error(alone.losses, reference.losses, 1e-3), 1e-6);
  }
}

}  // namespace
}  // namespace longship::dist
