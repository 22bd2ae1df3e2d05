#pragma once
// ZeRO-1: every rank keeps masters and moments for an even part of the weights only.
//
//   Zero1 zero1(world, plan_buckets(specs, options), params);
//   auto optimizer = make_my_optimizer(zero1.slices());
//   for each step:
//     zero1.wait_parameters();              // or wait_parameter(i) just before a parameter's use
//     zero1.reducer().begin_step(); ... as in ddp.h ...; zero1.reducer().finish();
//     double norm = zero1.grad_norm(*optimizer);     // the same bits on every rank
//     if (std::isfinite(norm)) zero1.update(*optimizer, lr, norm);
//
// Ownership. Zero1 owns one flat tensor of weights a bucket, [bucket.numel] in the parameters'
// dtype, and makes every parameter of the buckets a view of it (the model's tensors stay the same
// objects). Rank r owns elements [r, r + 1) * numel / world_size of each. Parameters outside the
// buckets (GradSource::kNone) stay where they are: a decay-only parameter is updated by every rank
// in the same way. The optimizer owns masters, moments and averages of the slices.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dist/ddp.h"
#include "dist/shard_optimizer.h"

namespace longship::dist {

class Zero1 {
 public:
  /// Moves the weights into flat tensors. All ranks must hold the same weights
  /// (broadcast_from_first() makes sure). Throws like GradReducer. Collective.
  Zero1(Communicator& communicator, BucketPlan plan, std::vector<ReducedParam> params,
        MissingGradients missing = MissingGradients::kError,
        GradientBuffers buffers = GradientBuffers::kStay);
  ~Zero1();

  GradReducer& reducer() { return reducer_; }
  /// What this rank updates, in plan order.
  std::span<const ShardSlice> slices() const { return slices_; }

  /// Norm of all gradients, by one all-reduce ("norm") of the ranks' sums of squares. Call after
  /// reducer().finish().
  double grad_norm(ShardOptimizer& optimizer);
  /// Updates this rank's part and begins to gather the others', in order of use ("params").
  void update(ShardOptimizer& optimizer, double lr, double norm);
  /// Begins to gather the weights, for callers that changed their slices themselves (a loaded
  /// checkpoint).
  void begin_gather();
  /// The parameter holds its new values (on CUDA: for work on the current stream).
  void wait_parameter(int64_t param);
  void wait_parameters();

  /// Bytes of the flat weights.
  int64_t weight_bytes() const;

 private:
  GradReducer reducer_;
  std::vector<at::Tensor> weights_;  // by bucket
  std::vector<Handle> gathers_;      // by bucket
  std::vector<ShardSlice> slices_;
};

}  // namespace longship::dist
