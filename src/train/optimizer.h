#pragma once
// AdamW with fp32 state, global-norm clipping and an exponential moving average of the weights.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/spec.h"

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
  bool library_kernels = false;  // torch's kernels, which other devices use anyway, on the CPU too
};

/// Whether `name` matches a glob with * and ?.
bool glob_match(const std::string& pattern, const std::string& name);

/// Decoupled AdamW in torch's form, per update t = 1, 2, ...:
///   g' = c * g, c = min(1, clip_norm / (norm + 1e-6)), norm = |all gradients|_2 accumulated in
///   double in a fixed order p *= 1 - lr * wd;  m += (1 - b1) * (g' - m);  v = b2 * v + (1 - b2) *
///   g'^2 p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
/// State and arithmetic are fp32. A parameter that is not fp32 has an fp32 master, which is updated
/// and then rounded into it. kDecayOnly parameters get the first factor only, kFrozen ones nothing.
/// On the CPU one pass over memory does everything, results do not depend on the number of threads,
/// and no step allocates.
class AdamW {
 public:
  /// Parameters are held by reference (their tensors alias the model's). Throws ConfigError for a
  /// group pattern that matches no parameter that is updated, or that is hidden by the patterns
  /// before it.
  AdamW(std::vector<models::ParamInfo> parameters, const AdamWConfig& config);

  /// Sets fp32 master values before the first step (bf16 training that starts from fp32 weights);
  /// the parameter becomes the rounded master. For an fp32 parameter this sets the parameter
  /// itself. A moving average starts over from it.
  void set_master(const std::string& name, const at::Tensor& value);

  /// Norm of all gradients as they are in .grad, before clipping. Throws InternalError naming every
  /// trainable parameter without a gradient.
  double grad_norm();
  /// The update from .grad, given the norm of the same gradients. `weight_decay` replaces that of
  /// the configuration (groups with their own keep theirs).
  void apply(double lr, double norm, std::optional<double> weight_decay = std::nullopt);
  /// grad_norm() + apply(). A norm that is not finite changes nothing. Returns the norm before
  /// clipping.
  double step(double lr);
  /// Drops every gradient; the next backward pass hands over its own buffers instead of adding to
  /// zeros.
  void zero_grad();

  /// Updates applied so far (t).
  int64_t num_updates() const { return num_updates_; }
  bool has_ema() const { return config_.ema.has_value(); }
  bool has_masters() const;
  /// Weights for export, [name, fp32 tensor]: the moving average when there is one, else master
  /// values.
  std::vector<models::NamedTensor> export_values() const;

  /// Everything that a bitwise resume needs: "weights.<name>", "exp_avg.<name>",
  /// "exp_avg_sq.<name>", "ema.<name>", fp32. Tensors alias the state.
  std::vector<std::pair<std::string, at::Tensor>> state() const;
  /// Restores state(); strict. Throws CheckpointError listing missing, unexpected and mis-shaped
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
    models::ParamRole role = models::ParamRole::kTrainable;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  /// Elements that are updated.
  int64_t num_elements() const;

 private:
  struct Chunk {
    int64_t entry = 0, begin = 0, end = 0;
  };
  void assign_groups();
  void make_chunks();
  void apply_cpu(double lr, float clip, double weight_decay);
  void apply_generic(double lr, double clip, double weight_decay);

  AdamWConfig config_;
  std::vector<Entry> entries_;
  std::vector<Chunk> chunks_;
  std::vector<double> partial_;    // one partial sum per chunk
  std::vector<at::Tensor> grads_;  // of the trainable entries, fetched by grad_norm()
  int64_t num_updates_ = 0;
  bool on_cpu_ = true;
};

}  // namespace longship::train
