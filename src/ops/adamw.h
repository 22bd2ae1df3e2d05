#pragma once
// AdamW over all tensors of a model at once: global gradient norm, clipping, update, counter and
// report without the host.
//
// This is a class and no dispatcher operator: it updates hundreds of tensors in place, nothing
// differentiates through it, and its tables of pointers live on the device from step to step, while
// an operator over tensor lists would build them anew in every call. The device of the tensors
// chooses the implementation: CUDA kernels, or the CPU oracle that defines the arithmetic.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/optimizer/adamw_types.h"

namespace longship::ops {

/// One tensor; everything contiguous, on one device, of the master's shape, and in the same memory
/// for as long as the optimizer lives.
struct AdamWTensor {
  at::Tensor master;      // fp32
  at::Tensor param;       // bf16 or fp32, rounded from the master; undefined: the master is the
                          // parameter itself
  at::Tensor exp_avg;     // fp32; undefined (with exp_avg_sq): no gradient, only the decay applies
  at::Tensor exp_avg_sq;  // fp32
  at::Tensor ema;         // fp32; defined exactly when AdamWHyper::ema is set
  /// Row-sparse gradient (both or none): rows (along dimension 0) with flag 0 have zeros in
  /// row_grad and zero moments, so that only the decay applies to them, and nothing is read or
  /// written when the decay factor is exactly one in fp32 and there is no average. Flags are never
  /// reset, which keeps this exact AdamW. Every update leaves row_grad zero.
  at::Tensor row_grad;   // bf16 or fp32
  at::Tensor row_flags;  // uint8 [size(0)]
  int64_t group = 0;     // index into AdamWRates::groups
};

struct AdamWHyper {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  std::optional<double> max_norm;  // nullopt: no clipping
  std::optional<double> ema;       // decay d: ema = d * ema + (1 - d) * p
};

/// What one update uses. `num_updates` is the number of updates before it, so t = num_updates + 1.
struct AdamWRates {
  struct Group {
    double lr = 0;
    double weight_decay = 0;
  };
  int64_t num_updates = 0;
  std::vector<Group> groups;
};

/// Result of a step, from report().
struct AdamWReport {
  double norm = 0;          // of all gradients, before clipping
  double clip = 1;          // factor of the gradients
  bool finite = false;      // the norm
  bool updated = false;     // the weights have changed
  int64_t num_updates = 0;  // updates so far
  int64_t fault = 0;        // the fault flag, kernels::AdamWFaultBit and what others set
};
/// Reads a report; one on the host without waiting, one on a device after a synchronisation.
AdamWReport read_report(const at::Tensor& report);

/// Per update t, in fp32 with every operation rounded, as train/adamw_kernel.cpp has it:
///   g' = clip * g, clip = min(1, max_norm / (norm + 1e-6)) in double (torch's clip_grad_norm_)
///   m += (1 - b1) * (g' - m);  v = b2 * v + (1 - b2) * (g' * g')
///   p = p * (1 - lr * wd) - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
///   ema = d * ema + (1 - d) * p;  param = round(p)
/// The norm is summed in an order that depends only on the table and the device: same bits in every
/// run. A step with a norm that is not finite, with the fault flag set or without scalars for its
/// number changes nothing but the flag and the report, and zeroes row-sparse gradients; the flag
/// stays set until clear_fault().
///
/// All methods are asynchronous on the current stream. norm(), update(), step(), bind_grads() and
/// zero_rows() can be captured in a CUDA graph: the gradients' addresses are then part of the graph
/// and must be those of the captured step in every replay; upload_scalars() is called outside, on
/// the stream of the replays. The optimizer must outlive its graphs.
class FusedAdamW {
 public:
  static bool available(c10::DeviceType type);
  /// Throws InternalError for tensors that do not fit AdamWTensor's description. Waits for the
  /// device once.
  static std::unique_ptr<FusedAdamW> create(std::vector<AdamWTensor> tensors,
                                            const AdamWHyper& hyper);
  FusedAdamW(const FusedAdamW&) = delete;
  FusedAdamW& operator=(const FusedAdamW&) = delete;
  virtual ~FusedAdamW() = default;

  /// Gradients of the tensors, in their order: bf16 or fp32, contiguous. Undefined means zeros;
  /// entries of row-sparse and decay-only tensors are ignored.
  virtual void bind_grads(at::TensorList grads) = 0;
  /// Scalars of two neighbouring updates. The step takes those whose num_updates equals the
  /// device's counter, so that a host that reads reports one step late can go on without knowing
  /// whether the last step updated.
  virtual void upload_scalars(const AdamWRates& now, const AdamWRates& next) = 0;
  /// Norm of the bound gradients, into the report.
  virtual void norm() = 0;
  /// The update, by the norm that the report holds.
  virtual void update() = 0;
  /// norm() and update().
  virtual void step();
  /// Zeroes the flagged rows of all row-sparse gradients.
  virtual void zero_rows() = 0;

  /// fp64 [kAdamWReportSize], fields by kernels::AdamWReportField; overwritten by every step.
  const at::Tensor& report() const { return report_; }
  /// int32 [1], sticky: any value but zero keeps steps from changing anything.
  const at::Tensor& fault_flag() const { return fault_; }
  /// Replaces the norm, for example by that of gradients of several processes.
  void set_norm(double norm);
  /// Sets the counter. Not while a step is in flight whose outcome is not known.
  void set_num_updates(int64_t num_updates);
  void clear_fault();
  /// Waits for the current stream, after which steps may run on any other.
  virtual void wait() = 0;

 protected:
  FusedAdamW(std::vector<AdamWTensor> tensors, const AdamWHyper& hyper);

  std::vector<AdamWTensor> tensors_;
  AdamWHyper hyper_;
  size_t num_groups_ = 1;
  at::Tensor report_;       // fp64 [kAdamWReportSize]
  at::Tensor num_updates_;  // int64 [1]
  at::Tensor fault_;        // int32 [1]
};

}  // namespace longship::ops
