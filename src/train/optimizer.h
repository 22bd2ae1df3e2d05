#pragma once
// AdamW with fp32 state, global-norm clipping and an exponential moving average of the weights.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/spec.h"

namespace longship::ops {
class FusedAdamW;
}

namespace longship::train {

/// Rule for a set of parameters; the first rule whose pattern matches a name wins.
struct ParamGroupConfig {
  std::string pattern;  // glob over the whole public name: * any run of characters, ? one character
  double lr_scale = 1.0;
  std::optional<double> weight_decay;

  void reflect(config::Visitor& visitor);
};

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.01;
  std::optional<double> clip_norm = 1.0;  // null: no clipping
  std::optional<double> ema;              // decay d: ema = d * ema + (1 - d) * p
  std::vector<ParamGroupConfig> groups;
  // Our kernels; false: the library's (at::_fused_adamw_). Devices for which we have none always
  // use the library's.
  bool fused = true;
};

/// What one update uses, for upload_scalars().
struct StepScalars {
  int64_t num_updates = 0;  // updates before it
  double lr = 0;
  std::optional<double> weight_decay;  // replaces that of the configuration, as in apply()
};

enum class GradReset {
  kDrop,  // the next backward pass hands over its own buffers instead of adding to zeros
  kZero,  // the buffers stay where they are, filled with zeros (captured graphs need that)
};

/// Decoupled AdamW in torch's form, per update t = 1, 2, ...:
///   g' = c * g, c = min(1, clip_norm / (norm + 1e-6)); norm = |all gradients|_2, in double
///   p *= 1 - lr * wd
///   m += (1 - b1) * (g' - m);  v = b2 * v + (1 - b2) * g'^2
///   p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
/// State and arithmetic are fp32. A parameter that is not fp32 has an fp32 master, which is updated
/// and then rounded into it. kDecayOnly parameters get the first factor only, kFrozen ones nothing.
/// The norm's sum has a fixed order: results do not depend on the number of threads, and are the
/// same bits in every run.
///
/// On the CPU one pass over memory does everything and no step allocates. On CUDA our kernels do
/// the same arithmetic (ops/adamw.h); with AdamWConfig::fused = false the library's do.
///
/// There are two ways to step. With grad_norm() and apply(), or step(), the host sees the norm and
/// decides. With upload_scalars() and enqueue_step() it waits for nothing: norm, decision, counter
/// and update stay on the device, and report() tells what happened. Use one of them at a time.
class AdamW {
 public:
  /// Parameters are held by reference (their tensors alias the model's). Throws ConfigError for a
  /// group pattern that matches no parameter that is updated, or that is hidden by the patterns
  /// before it. Where other processes update other parts of the model, `parameters` are this one's
  /// and `all_names` those that any of them updates, for these checks.
  AdamW(std::vector<models::ParamInfo> parameters, const AdamWConfig& config,
        std::vector<std::string> all_names = {});
  ~AdamW();

  /// Sets fp32 master values before the first step (bf16 training that starts from fp32 weights);
  /// the parameter becomes the rounded master. For an fp32 parameter this sets the parameter
  /// itself. A moving average starts over from it.
  void set_master(const std::string& name, const at::Tensor& value);

  /// Norm of all gradients as they are in .grad, before clipping. Throws InternalError naming every
  /// trainable parameter without a gradient.
  double grad_norm();
  /// The update from the gradients that grad_norm() has seen, given their norm. `weight_decay`
  /// replaces that of the configuration (groups with their own keep theirs).
  void apply(double lr, double norm, std::optional<double> weight_decay = std::nullopt);
  /// grad_norm() + apply(). A norm that is not finite changes nothing. Returns the norm before
  /// clipping.
  double step(double lr);

  /// Scalars of the next update and of the one after it, outside a captured graph and on the stream
  /// of the steps. enqueue_step() takes those that fit the device's count of updates.
  void upload_scalars(const StepScalars& now, const StepScalars& next);
  /// Norm, clipping, update, counter and report, without waiting. Can be captured in a CUDA graph:
  /// replays then read the gradients where they were at the capture. Nothing is changed when the
  /// norm is not finite, the fault flag is set, or no uploaded scalars fit; the flag is set then.
  /// Throws like grad_norm().
  void enqueue_step();
  /// The two halves of enqueue_step(): norm() is filled, then the update goes by what it holds.
  void enqueue_norm();
  void enqueue_update();
  /// Norm of the gradients in the report, fp64 [1] on the parameters' device; may be replaced
  /// between the halves by that of all processes.
  at::Tensor norm() const;
  /// What the last step did, fp64 on the parameters' device; ops::read_report() reads a copy.
  const at::Tensor& report() const;
  /// int32 [1] on the parameters' device: any value but zero keeps enqueue_step() from changing
  /// anything.
  const at::Tensor& fault_flag() const;
  /// These two, and load_state(), wait for the current stream, after which steps may run on any.
  /// Not while a step is in flight whose report has not been read.
  void clear_fault();
  /// Sets the count of updates, on the device too.
  void set_num_updates(int64_t num_updates);

  /// Row-sparse gradients are zeroed either way; they are already after an update.
  void zero_grad(GradReset how = GradReset::kDrop);

  /// Updates applied so far (t) by apply(), or as set; enqueue_step() counts on the device only.
  int64_t num_updates() const { return num_updates_; }
  bool has_ema() const { return config_.ema.has_value(); }
  bool has_masters() const;
  /// Weights for export, [name, fp32 tensor]: the moving average when there is one, else master
  /// values.
  std::vector<models::NamedTensor> export_values() const;

  /// Everything that a bitwise resume needs: "weights.<name>", "exp_avg.<name>",
  /// "exp_avg_sq.<name>", "ema.<name>", fp32. Tensors alias the state.
  std::vector<std::pair<std::string, at::Tensor>> state() const;
  /// Restores state(); strict. Row flags are rebuilt from the moments, row-sparse gradients zeroed,
  /// the fault flag cleared. Throws CheckpointError listing missing, unexpected and mis-shaped
  /// entries.
  void load_state(const std::vector<std::pair<std::string, at::Tensor>>& state,
                  int64_t num_updates);

  /// Names in update order with their share of the learning rate and decay, for logs.
  struct Entry {
    std::string name;
    at::Tensor param;       // the model's
    at::Tensor master;      // fp32; the parameter itself when that is fp32
    at::Tensor exp_avg;     // fp32; undefined for kDecayOnly
    at::Tensor exp_avg_sq;  // fp32; undefined for kDecayOnly
    at::Tensor ema;         // fp32; undefined without EMA
    double lr_scale = 1.0;
    std::optional<double> weight_decay;
    int64_t rate = 0;  // index of its lr_scale and weight_decay among the distinct pairs
    models::ParamRole role = models::ParamRole::kTrainable;
    std::optional<models::RowSparseGrad> row_sparse;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  /// Elements that are updated.
  int64_t num_elements() const;

 private:
  // Elements per unit of parallel work on the CPU. Fixed, so that the order of the norm's sum does
  // not depend on threads.
  static constexpr int64_t kChunk = 16384;
  struct Chunk {
    int64_t entry = 0, begin = 0, end = 0;
  };
  // Arguments of one call of the library's kernel.
  struct LibraryLists;

  void assign_groups(const std::vector<std::string>& all_names);
  void make_chunks();
  ops::FusedAdamW& fused();
  void rebuild_row_flags();

  void collect_grads();
  double norm_cpu();
  double norm_library() const;
  void apply_cpu(double lr, float clip, double weight_decay);
  void apply_fused(double lr, double norm, std::optional<double> weight_decay);
  void apply_library(double lr, double clip, double weight_decay);
  void update_library(LibraryLists& lists, double lr, double clip, double weight_decay);
  void zero_row_sparse();

  AdamWConfig config_;
  std::vector<Entry> entries_;
  std::vector<Chunk> chunks_;
  std::vector<double> partial_;    // one partial sum per chunk
  std::vector<at::Tensor> grads_;  // of the trainable entries, fetched by collect_grads()
  // Distinct (lr_scale, weight decay) of the entries.
  std::vector<std::pair<double, std::optional<double>>> rates_;
  // On CUDA from the start; on the CPU (where it is slow) made by the first asynchronous call.
  std::unique_ptr<ops::FusedAdamW> fused_;
  at::Tensor library_step_, library_grads_;  // of the library's path, made by its first update
  int64_t num_updates_ = 0;
  bool on_cpu_ = true;  // our CPU path
};

}  // namespace longship::train
