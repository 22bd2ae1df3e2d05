#include "nn/fp8.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "nn/stacked_linear.h"
#include "ops/geglu.h"

namespace longship::nn {
namespace {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const at::Tensor& x, const Tensors& weights)>;

double cosine(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.flatten().to(at::kFloat), y = b.flatten().to(at::kFloat);
  const double scale = x.norm().item<double>() * y.norm().item<double>();
  return scale > 0 ? x.dot(y).item<double>() / scale : 1.0;
}

/// Gradients of f at fresh leaves, for the output gradient dy: of x, then of the weights.
Tensors gradients(const Function& f, const at::Tensor& x, const Tensors& weights,
                  const at::Tensor& dy) {
  const at::AutoGradMode grad_mode(true);
  Tensors leaves{x.detach().requires_grad_(true)};
  for (const at::Tensor& w : weights) leaves.push_back(w.detach().requires_grad_(true));
  const at::Tensor y = f(leaves[0], {leaves.begin() + 1, leaves.end()});
  return torch::autograd::grad({y}, leaves, {dy});
}

/// Runs `plain`, and notes how `fp8` differs from it in the output and, once the output's gradient
/// is known, in the gradients.
at::Tensor compare(const Function& plain, const Function& fp8, const at::Tensor& x,
                   const Tensors& weights, Fp8Measurement* note) {
  const at::Tensor y = plain(x, weights);
  {
    const at::NoGradGuard no_grad;
    const at::Tensor other = fp8(x.detach(), weights);
    const at::Tensor reference = y.detach().to(at::kFloat);
    note->output_error = other.to(at::kFloat).sub(reference).norm().item<double>() /
                         std::max(reference.norm().item<double>(), 1e-30);
    note->rows = x.numel() / x.size(-1);
    note->in = x.size(-1);
    note->out = y.size(-1);
    if (note->is_mlp) note->out = weights.front().size(0);
  }
  if (!y.requires_grad()) return y;
  y.register_hook([=](const at::Tensor& dy) {
    const Tensors a = gradients(plain, x, weights, dy), b = gradients(fp8, x, weights, dy);
    note->input_grad_cos = cosine(a[0], b[0]);
    note->weight_grad_cos = 1;
    for (size_t i = 1; i < a.size(); ++i) {
      note->weight_grad_cos = std::min(note->weight_grad_cos, cosine(a[i], b[i]));
    }
  });
  return y;
}

constexpr int64_t kRows = 16;

/// ops::fp8_linear() for any number of rows. Rows of zeros change neither scales nor gradients.
at::Tensor with_whole_rows(const at::Tensor& x, at::TensorList weights,
                           const std::optional<at::Tensor>& bias, const ops::Fp8LinearSite& site) {
  const int64_t width = x.size(-1), rows = x.numel() / std::max<int64_t>(width, 1);
  const int64_t missing = rows > 0 ? (kRows - rows % kRows) % kRows : kRows;
  if (missing == 0) return ops::fp8_linear(x, weights, bias, site);
  const at::Tensor filled = at::constant_pad_nd(x.reshape({rows, width}), {0, 0, 0, missing}, 0);
  const at::Tensor y = ops::fp8_linear(filled, weights, bias, site);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = y.size(-1);
  return y.narrow(0, 0, rows).view(sizes);
}

}  // namespace

at::Tensor product(const Linear& layer, const at::Tensor& x, const Fp8Linear* fp8, bool with_bias) {
  const bool has_bias = with_bias && layer.bias.defined();
  if (fp8 == nullptr) return linear(x, layer.weight, has_bias ? layer.bias : at::Tensor());
  return fp8->forward(x, {layer.weight},
                      has_bias ? std::optional<at::Tensor>(layer.bias) : std::nullopt);
}

at::Tensor Fp8Linear::forward(const at::Tensor& x, at::TensorList weights,
                              const std::optional<at::Tensor>& bias) const {
  if (measure == nullptr) return with_whole_rows(x, weights, bias, site);
  const ops::Fp8LinearSite& own = site;
  return compare(
      [bias](const at::Tensor& in, const Tensors& w) {
        const at::Tensor y = stacked_linear(in, w);
        return bias ? y.add(*bias) : y;
      },
      [bias, &own](const at::Tensor& in, const Tensors& w) {
        return with_whole_rows(in, w, bias, own);
      },
      x, weights.vec(), measure);
}

at::Tensor Fp8GatedMlp::forward(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up,
                                const at::Tensor& down) const {
  if (measure == nullptr) return ops::fp8_gated_mlp(x, gate, up, down, site);
  const ops::Fp8GatedMlpSite& own = site;
  return compare(
      [](const at::Tensor& in, const Tensors& w) {
        const at::Tensor gate_up = stacked_linear(in, {w[0], w[1]});
        return stacked_linear(ops::geglu(gate_up), {w[2]});
      },
      [&own](const at::Tensor& in, const Tensors& w) {
        return ops::fp8_gated_mlp(in, w[0], w[1], w[2], own);
      },
      x, {gate, up, down}, measure);
}

Fp8Layers::Fp8Layers(const Fp8Options& options,
                     std::function<bool(std::string_view layer)> forward_only)
    : options_(options),
      forward_only_(std::move(forward_only)),
      unmatched_(options.layers.begin(), options.layers.end()),
      states_(options.history) {}

bool Fp8Layers::wanted(const std::string& name) {
  candidates_.push_back(name);
  bool found = false;
  for (const std::string& pattern : options_.layers) {
    if (!matches_glob(pattern, name)) continue;
    unmatched_.erase(pattern);
    found = true;
  }
  if (found) chosen_.push_back(name);
  return found;
}

Fp8Measurement* Fp8Layers::new_measurement(const std::string& name, bool is_mlp) {
  if (!options_.measure) return nullptr;
  measurements_.push_back(std::make_unique<Fp8Measurement>());
  measurements_.back()->layer = name;
  measurements_.back()->is_mlp = is_mlp;
  return measurements_.back().get();
}

ops::Fp8Recipe Fp8Layers::recipe() const {
  ops::Fp8Recipe out;
  out.gradient_format = options_.e5m2_gradients ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
  out.fast_accumulation_backward = options_.fast_accumulation_backward;
  return out;
}

void Fp8Layers::bind(ops::Fp8Weight& weight, at::TensorList sources, bool forward_only) {
  weight.bind(sources, /*transposed=*/!forward_only);
  weights_.push_back(&weight);
  (forward_only ? constant_ : changing_).push_back(&weight);
}

const Fp8Linear* Fp8Layers::linear(const std::string& name, at::TensorList weights) {
  if (!wanted(name)) return nullptr;
  auto layer = std::make_unique<Fp8Linear>();
  const bool forward_only = forward_only_ && forward_only_(name);
  layer->site.recipe = recipe();
  bind(layer->site.weight, weights, forward_only);
  if (options_.delayed && !forward_only) layer->site.use_delayed_scaling(states_);
  layer->measure = new_measurement(name, false);
  linears_.push_back(std::move(layer));
  return linears_.back().get();
}

const Fp8GatedMlp* Fp8Layers::gated_mlp(const std::string& name, const at::Tensor& gate,
                                        const at::Tensor& up, const at::Tensor& down) {
  if (!wanted(name)) return nullptr;
  auto layer = std::make_unique<Fp8GatedMlp>();
  const bool forward_only = forward_only_ && forward_only_(name);
  layer->site.recipe = recipe();
  bind(layer->site.gate_up, {gate, up}, forward_only);
  bind(layer->site.down, {down}, forward_only);
  if (options_.delayed && !forward_only) layer->site.use_delayed_scaling(states_);
  layer->measure = new_measurement(name, true);
  mlps_.push_back(std::move(layer));
  return mlps_.back().get();
}

std::vector<Fp8Measurement> Fp8Layers::measurements() const {
  std::vector<Fp8Measurement> out;
  for (const auto& one : measurements_) out.push_back(*one);
  return out;
}

void Fp8Layers::create(at::Device device) {
  LS_CHECK(unmatched_.empty(), ConfigError,
           "train.fp8: '{}' matches no layer; the first are {}, the last {}", *unmatched_.begin(),
           fmt::join(candidates_.begin(),
                     candidates_.begin() + std::min<std::ptrdiff_t>(
                                               3, static_cast<std::ptrdiff_t>(candidates_.size())),
                     ", "),
           candidates_.empty() ? "(none)" : candidates_.back());
  if (options_.delayed && states_.size() > 0) states_.create(device);
}

void Fp8Layers::begin_step() {
  if (states_.tensor().defined()) states_.update();
  std::vector<ops::Fp8Weight*> due = changing_;
  std::copy_if(constant_.begin(), constant_.end(), std::back_inserter(due),
               [](const ops::Fp8Weight* weight) { return !weight->is_fresh; });
  if (!due.empty()) ops::fp8_refresh(due);
}

void Fp8Layers::convert_weights() {
  if (!weights_.empty()) ops::fp8_refresh(weights_);
}

std::vector<at::Tensor> Fp8Layers::copies() const {
  std::vector<at::Tensor> out;
  for (const ops::Fp8Weight* weight : weights_) {
    out.push_back(weight->q);
    if (weight->q_t.defined()) out.push_back(weight->q_t);
  }
  return out;
}

}  // namespace longship::nn
