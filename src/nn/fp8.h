#pragma once
// Which linear layers of a model multiply in FP8, and what they keep for it.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "nn/linear.h"
#include "ops/fp8.h"

namespace longship::nn {

/// Asked for by a recipe. Layers are named by the family, e.g. "prefix.3.mlp".
struct Fp8Options {
  std::vector<std::string> layers;  // patterns with * and ?
  bool delayed = true;              // scales from the last steps; false: from the tensor itself
  int64_t history = 16;             // steps that a delayed scale looks back on
  bool e5m2_gradients = true;       // false: e4m3
  bool fast_accumulation_backward = false;
  bool measure = false;  // compute in the model's dtype and note the errors of FP8
};

/// Numbers of one layer in FP8 against the same layer in the model's dtype, on the same input and
/// output gradient.
struct Fp8Measurement {
  std::string layer;
  bool is_mlp = false;                // gated MLP, else one product
  int64_t rows = 0, in = 0, out = 0;  // out of a gated MLP: its hidden width
  double output_error = 0;            // relative L2
  double input_grad_cos = 1;          // cosine
  double weight_grad_cos = 1;         // cosine, the worst of the layer's weights
};

/// One product in FP8. With `measure` it runs in the model's dtype and notes what FP8 would have
/// given (slow, holds its input).
class Fp8Linear {
 public:
  /// x [..., K], weights and bias as ops::fp8_linear() takes them -> [..., N]. Rows that are no
  /// multiple of 16 are filled up with zeros, one copy of x and, backward, one of its gradient.
  at::Tensor forward(const at::Tensor& x, at::TensorList weights,
                     const std::optional<at::Tensor>& bias = std::nullopt) const;

  ops::Fp8LinearSite site;
  Fp8Measurement* measure = nullptr;
};

/// layer.forward(x), in FP8 where there is a site for it; null: the model's dtype. Without bias
/// where `with_bias` is false.
at::Tensor product(const Linear& layer, const at::Tensor& x, const Fp8Linear* fp8,
                   bool with_bias = true);

/// A gated MLP in FP8; the same. Rows: a multiple of 16.
class Fp8GatedMlp {
 public:
  at::Tensor forward(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up,
                     const at::Tensor& down) const;

  ops::Fp8GatedMlpSite site;
  Fp8Measurement* measure = nullptr;
};

/// The FP8 layers of one model. Modules ask for a site by name when they are built and hold the
/// pointer; null means the model's dtype.
class Fp8Layers {
 public:
  /// `forward_only` says of a layer's name whether no gradient passes it and its weights never
  /// change; empty: of none. Such a layer has no transposed copies, and current scaling whatever
  /// the options say: its output depends on its input and weights alone, so that it may be made
  /// early or kept.
  explicit Fp8Layers(const Fp8Options& options,
                     std::function<bool(std::string_view layer)> forward_only = {});

  /// A site for a layer whose name a pattern matches, else null. The weights must have their
  /// storage already. `name` is remembered either way, see candidates().
  const Fp8Linear* linear(const std::string& name, at::TensorList weights);
  const Fp8GatedMlp* gated_mlp(const std::string& name, const at::Tensor& gate,
                               const at::Tensor& up, const at::Tensor& down);
  /// After the last site. Throws ConfigError for a pattern that matched no layer.
  void create(at::Device device);

  /// Once per optimizer step before the first forward pass: scales move on, weights are converted,
  /// those of forward-only layers where they never were. Can be captured from its second call on.
  void begin_step();
  /// Converts the weights of all layers. After they were set from outside a step: nothing else
  /// converts those of forward-only layers again.
  void convert_weights();

  const std::vector<std::string>& candidates() const { return candidates_; }
  const std::vector<std::string>& chosen() const { return chosen_; }
  /// fp32 [states, 2 + history]; undefined with current scaling. What an exact resume needs.
  const at::Tensor& state() const { return states_.tensor(); }
  void load_state(const at::Tensor& saved) { states_.load(saved); }
  /// With Fp8Options::measure, after a forward and backward pass: one entry per chosen layer.
  std::vector<Fp8Measurement> measurements() const;
  /// FP8 copies of the weights, in the order of chosen(): of each stacked weight the one as it is,
  /// then the transposed one where the layer has it.
  std::vector<at::Tensor> copies() const;

 private:
  bool wanted(const std::string& name);
  Fp8Measurement* new_measurement(const std::string& name, bool is_mlp);
  void bind(ops::Fp8Weight& weight, at::TensorList sources, bool forward_only);
  ops::Fp8Recipe recipe() const;

  Fp8Options options_;
  std::function<bool(std::string_view)> forward_only_;
  std::set<std::string> unmatched_;
  std::vector<std::string> candidates_, chosen_;
  std::vector<std::unique_ptr<Fp8Linear>> linears_;
  std::vector<std::unique_ptr<Fp8GatedMlp>> mlps_;
  std::vector<std::unique_ptr<Fp8Measurement>> measurements_;
  std::vector<ops::Fp8Weight*> weights_;
  std::vector<ops::Fp8Weight*> changing_, constant_;  // all of them, by kind
  ops::Fp8State states_;
};

}  // namespace longship::nn
