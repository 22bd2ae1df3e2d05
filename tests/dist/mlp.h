#pragma once
// A small network out of plain library operators, its optimizer, and training runs of it alone and
// over ranks. Sizes are odd on purpose, two layers are frozen (one before everything that is
// trained), one parameter is a scalar, one gets no gradient, one is read by nobody.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dist/fsdp.h"
#include "dist/process_group.h"
#include "dist/zero1.h"
#include "nn/unit.h"

namespace longship::dist {

/// AdamW in fp32 over any slices, with masters where the weights are not fp32.
class SliceAdamW : public ShardOptimizer {
 public:
  explicit SliceAdamW(std::vector<ShardSlice> slices);
  double squared_norm() override { return dist::squared_norm(slices_); }
  void apply(double lr, double norm) override;
  std::vector<ShardSlice>& slices() { return slices_; }
  /// Bytes of masters; of moments.
  int64_t master_bytes() const;
  int64_t moment_bytes() const;

 private:
  std::vector<ShardSlice> slices_;
  std::vector<at::Tensor> masters_, exp_avg_, exp_avg_sq_;
  int64_t updates_ = 0;
};

class Mlp {
 public:
  explicit Mlp(at::ScalarType dtype, bool recompute = false);
  /// Mean loss over samples [begin, end) of a step.
  at::Tensor loss(int64_t step, int64_t begin, int64_t end) const;

  std::vector<ParamSpec> specs;  // in order of use
  std::vector<ReducedParam> tensors;
  at::Tensor& operator[](const std::string& name);
  nn::UnitHooks* hooks = nullptr;

 private:
  at::Tensor run(const std::string& unit, const nn::UnitFunction& function,
                 const at::Tensor& x) const;
  bool recompute_;
  const at::Tensor& get(const std::string& name) const;
};

struct TrainOptions {
  Strategy strategy = Strategy::kNone;  // kNone: without anything of dist, the reference
  int64_t micro_batches = 1;
  at::ScalarType dtype = at::kFloat;
  at::ScalarType reduce_dtype = at::kFloat;
  GradientBuffers buffers = GradientBuffers::kStay;
  bool widening = false;  // over a transport that widens, as that of copy engines does
  Reshard reshard = Reshard::kAfterForward;
  int64_t shard_size = 0;  // HSDP
  bool recompute = false;
};

struct TrainResult {
  std::vector<double> losses, norms;  // one a step, over all ranks
  std::vector<double> weights;        // all trainable ones at the end
  std::string pack() const;
  static TrainResult unpack(const std::string& text);
};

constexpr int64_t kSteps = 20;

/// Trains kSteps steps of 24 samples over all ranks. Throws InternalError when the counters of the
/// collectives, the memory of the parts, or the moments of sending are not as planned.
TrainResult train_mlp(ProcessGroup& group, const TrainOptions& options);

/// Runs it over forked ranks: every rank must return the same result.
TrainResult train_ranks(int64_t world_size, const TrainOptions& options);

/// Largest |a - b| / max(|b|, floor).
double worst_error(const std::vector<double>& a, const std::vector<double>& b, double floor);

}  // namespace longship::dist
