#pragma once
// Training runs of the tiny Pi0.5 of the golden cases, alone and over ranks.

#include <cstdint>
#include <string>
#include <vector>

#include "mlp.h"

namespace longship::dist {

struct Pi05RunOptions {
  Strategy strategy = Strategy::kNone;  // kNone: without anything of dist, the reference
  int64_t micro_batches = 1;
  at::ScalarType dtype = at::kFloat;
  at::ScalarType reduce_dtype = at::kFloat;
  Reshard reshard = Reshard::kAfterForward;
  int64_t shard_size = 0;  // HSDP
  bool fused = false;      // operators, among them the token table's row-sparse gradient
  std::vector<std::string> recompute, freeze;
  bool cuda = false;            // one device a rank, with NCCL
  bool without_memory = false;  // FSDP: the model has no memory of its own, load() fills the shards
};

/// Trains kSteps steps of 12 samples over ranks, the last quarter of which have no pictures, so
/// that some passes do not reach the vision tower. `weights` are those of every parameter at the
/// end. Every rank must return the same; counters of collectives and memory must be as planned.
/// With `cuda` and fewer devices than ranks the result is empty.
TrainResult train_pi05(int64_t world_size, const Pi05RunOptions& options);

/// Losses of the first half of a run, for runs that round differently: what that makes grows along
/// the run.
inline std::vector<double> first_half(const TrainResult& run) {
  return {run.losses.begin(), run.losses.begin() + kSteps / 2};
}

}  // namespace longship::dist
