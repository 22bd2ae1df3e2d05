// The tiny Pi0.5 on two ranks. All of it at 1 to 4 ranks is in pi05_train_full_test.cpp.
#include <gtest/gtest.h>

#include <vector>

#include "pi05_runs.h"

namespace longship::dist {
namespace {

// See train_test.cpp for the kind of bound; this network is deeper and its samples few.
constexpr double kLossBound = 2e-5, kBf16Bound = 2e-2;

TEST(Pi05TwoRanks, FsdpFollowsTheSingleProcess) {
  const TrainResult reference = train_pi05(1, {});
  EXPECT_LT(reference.losses.back(), 0.9 * reference.losses.front());
  Pi05RunOptions options;
  options.strategy = Strategy::kDdp;
  const TrainResult ddp = train_pi05(2, options);
  EXPECT_LE(worst_error(ddp.losses, reference.losses, 1e-3), kLossBound);
  options.strategy = Strategy::kFsdp;
  options.without_memory = true;
  const TrainResult fsdp = train_pi05(2, options);
  EXPECT_LE(worst_error(fsdp.losses, ddp.losses, 1e-3), kLossBound);
  EXPECT_LE(worst_error(fsdp.weights, ddp.weights, 0.1), 10 * kLossBound);
  // Accumulation, recomputation, and a micro-batch that does not reach the vision tower.
  options.micro_batches = 2;
  options.recompute = {"full"};
  options.reshard = Reshard::kAfterOptimizerStep;
  const TrainResult accumulated = train_pi05(2, options);
  // Four groups of samples are summed in another order than two.
  EXPECT_LE(worst_error(first_half(accumulated), first_half(reference), 1e-3), kLossBound);
  options.strategy = Strategy::kDdp;
  options.recompute = {};
  options.without_memory = false;
  EXPECT_LE(worst_error(accumulated.losses, train_pi05(2, options).losses, 1e-3), 5 * kLossBound);
}

TEST(Pi05TwoRanks, FusedOperatorsFrozenPartsAndBf16) {
  Pi05RunOptions options;
  options.fused = true;
  options.freeze = {"vision"};
  options.recompute = {"full"};
  const TrainResult reference = train_pi05(1, options);
  options.strategy = Strategy::kFsdp;
  options.micro_batches = 2;
  EXPECT_LE(worst_error(train_pi05(2, options).losses, reference.losses, 1e-3), kLossBound);
  options.dtype = at::kBFloat16;
  EXPECT_LE(worst_error(first_half(train_pi05(2, options)), first_half(reference), 1e-3),
            kBf16Bound);
}

// The children look for the devices: a process that has used CUDA cannot fork.
TEST(Pi05FsdpGpu, TwoDevicesFollowDdp) {
  Pi05RunOptions options;
  options.cuda = true;
  options.fused = true;
  options.strategy = Strategy::kDdp;
  options.micro_batches = 2;
  const TrainResult ddp = train_pi05(2, options);
  if (ddp.losses.empty()) GTEST_SKIP() << "needs two CUDA devices";
  options.strategy = Strategy::kFsdp;
  options.without_memory = true;
  options.recompute = {"full"};
  for (const Reshard reshard :
       {Reshard::kAfterForward, Reshard::kNever, Reshard::kAfterOptimizerStep}) {
    options.reshard = reshard;
    const TrainResult fsdp = train_pi05(2, options);
    EXPECT_LE(worst_error(fsdp.losses, ddp.losses, 1e-3), 10 * kLossBound);
  }
  options.dtype = at::kBFloat16;
  EXPECT_LE(worst_error(train_pi05(2, options).losses, ddp.losses, 1e-3), 10 * kBf16Bound);
}

}  // namespace
}  // namespace longship::dist
