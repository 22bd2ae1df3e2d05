// States and weight copies of the FP8 layers.
#include "ops/fp8.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <cmath>

#include "base/error.h"
#include "ops/fp8_check.h"
#include "ops/fp8_internal.h"
#include "ops/stack_rows.h"

namespace longship::ops {

Fp8State::Fp8State(int64_t history) : history_(history) {
  LS_CHECK(history >= 1, ShapeError, "fp8: the amax history needs at least one step, got {}",
           history);
}

int64_t Fp8State::add(at::ScalarType format, double margin) {
  LS_CHECK(!tensor_.defined(), InternalError, "fp8: a state was added after create()");
  targets_.push_back(static_cast<float>(fp8_max(format) * std::exp2(-margin)));
  formats_.push_back(format);
  return size() - 1;
}

void Fp8State::create(at::Device device) {
  at::Tensor initial = at::zeros({size(), 2 + history_}, at::TensorOptions().dtype(at::kFloat));
  for (int64_t i = 0; i < size(); ++i) {
    initial.mutable_data_ptr<float>()[i * (2 + history_) + 1] = targets_[static_cast<size_t>(i)];
  }
  tensor_ = initial.to(device);
}

void Fp8State::update() {
  LS_CHECK(tensor_.defined(), InternalError, "fp8: update() before create()");
  call_fp8_update_states(tensor_);
}

void Fp8State::load(const at::Tensor& saved) {
  LS_CHECK(tensor_.defined(), InternalError, "fp8: load() before create()");
  LS_CHECK(saved.sizes() == tensor_.sizes() && saved.scalar_type() == at::kFloat, CheckpointError,
           "fp8 states: the checkpoint has {} [{}], the model needs float32 [{}]",
           at::toString(saved.scalar_type()), fmt::join(saved.sizes(), ", "),
           fmt::join(tensor_.sizes(), ", "));
  const at::Tensor host = saved.to(at::kCPU).contiguous();
  for (int64_t i = 0; i < size(); ++i) {
    const float target = host.const_data_ptr<float>()[i * (2 + history_) + 1];
    LS_CHECK(
        target == targets_[static_cast<size_t>(i)], CheckpointError,
        "fp8 states: state {} of the checkpoint scales to {}, the model to {}: other formats or "
        "another margin",
        i, target, targets_[static_cast<size_t>(i)]);
  }
  tensor_.copy_(host);
}

at::ScalarType Fp8State::format(int64_t index) const {
  LS_CHECK(index >= 0 && index < size(), InternalError, "fp8: state {} of {}", index, size());
  return formats_[static_cast<size_t>(index)];
}

at::Tensor stacked_rows(at::TensorList parts) {
  LS_CHECK(!parts.empty(), ShapeError, "stacked_rows: no parts");
  for (const at::Tensor& part : parts) {
    LS_CHECK(part.dim() == 2 && part.size(1) == parts[0].size(1) &&
                 part.scalar_type() == parts[0].scalar_type() && part.device() == parts[0].device(),
             ShapeError, "stacked_rows: parts must be matrices of one width, dtype and device");
  }
  return stack_rows(parts).contiguous();
}

void Fp8Weight::bind(at::TensorList weights, bool transposed) {
  LS_CHECK(!weights.empty(), ShapeError, "fp8: no weights to bind");
  sources.clear();
  int64_t rows = 0;
  for (const at::Tensor& weight : weights) {
    LS_CHECK(weight.dim() == 2 && weight.size(1) == weights[0].size(1), ShapeError,
             "fp8: stacked weights must be matrices of one width, got [{}]",
             fmt::join(weight.sizes(), ", "));
    sources.push_back(weight.detach());
    rows += weight.size(0);
  }
  const int64_t cols = weights[0].size(1);
  LS_CHECK(rows % 16 == 0 && cols % 16 == 0, ShapeError,
           "fp8: rows and columns of the stacked weight must be multiples of 16, got [{}, {}]",
           rows, cols);
  const auto options = weights[0].options();
  q = at::empty({rows, cols}, options.dtype(at::kFloat8_e4m3fn));
  q_t = transposed ? at::empty({cols, rows}, options.dtype(at::kFloat8_e4m3fn)) : at::Tensor();
  scale = at::zeros({4}, options.dtype(at::kFloat));
  is_fresh = false;
}

void Fp8Weight::refresh() {
  fp8_refresh({this});
}

at::Tensor Fp8Weight::inv_scale() const {
  return scale.narrow(0, 0, 1);
}

void fp8_refresh(const std::vector<Fp8Weight*>& weights) {
  // Weights with and without transposed copy go in two calls.
  for (const bool transposed : {true, false}) {
    std::vector<at::Tensor> stacked, q, q_t, scales;
    double margin = 0.0;
    for (Fp8Weight* weight : weights) {
      LS_CHECK(weight->q.defined(), InternalError, "fp8: refresh() of a weight that is not bound");
      if (weight->q_t.defined() != transposed) continue;
      LS_CHECK(stacked.empty() || weight->margin == margin, InternalError,
               "fp8: weights that are refreshed together must have one margin");
      margin = weight->margin;
      stacked.push_back(stacked_rows(weight->sources));
      q.push_back(weight->q);
      if (transposed) q_t.push_back(weight->q_t);
      scales.push_back(weight->scale);
      weight->is_fresh = true;
    }
    if (!stacked.empty()) call_fp8_quantize_weights(stacked, q, q_t, scales, margin);
  }
}

void Fp8LinearSite::use_delayed_scaling(Fp8State& states) {
  state = &states;
  input = states.add(at::kFloat8_e4m3fn, recipe.margin);
  gradient = states.add(recipe.gradient_format, recipe.margin);
}

void Fp8GatedMlpSite::use_delayed_scaling(Fp8State& states) {
  state = &states;
  input = states.add(at::kFloat8_e4m3fn, recipe.margin);
  activation = states.add(at::kFloat8_e4m3fn, recipe.margin);
  output_gradient = states.add(recipe.gradient_format, recipe.margin);
  gate_up_gradient = states.add(recipe.gradient_format, recipe.margin);
}

Fp8Scale fp8_site_scale(const Fp8State* state, int64_t index, const Fp8Recipe& recipe,
                        bool record) {
  Fp8Scale scale;
  scale.margin = recipe.margin;
  if (state == nullptr) return scale;
  LS_CHECK(state->tensor().defined(), InternalError, "fp8: the states were not created");
  scale.states = state->tensor();
  scale.index = index;
  scale.record = record;
  return scale;
}

at::Tensor fp8_rows(const char* op, const at::Tensor& x, int64_t width) {
  LS_CHECK(x.dim() >= 1 && x.size(-1) == width, ShapeError,
           "{}: the input must be [..., {}], got [{}]", op, width, fmt::join(x.sizes(), ", "));
  LS_CHECK(x.scalar_type() == at::kBFloat16 || (x.scalar_type() == at::kFloat && !x.is_cuda()),
           ShapeError, "{}: the input must be bfloat16 (on the CPU float32 too), got {}", op,
           at::toString(x.scalar_type()));
  const int64_t rows = x.numel() / width;
  LS_CHECK(rows % 16 == 0, ShapeError, "{}: the rows must be a multiple of 16 (pad them), got {}",
           op, rows);
  return x.contiguous().view({rows, width});
}

void check_fp8_weight(const char* op, const Fp8Weight& weight, at::TensorList weights,
                      bool transposed) {
  LS_CHECK(weight.is_fresh, InternalError,
           "{}: the fp8 weight copies were never made: bind() and refresh() first", op);
  LS_CHECK(weights.size() == weight.sources.size(), ShapeError,
           "{}: {} weights, but the site is bound to {}", op, weights.size(),
           weight.sources.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    LS_CHECK(weights[i].sizes() == weight.sources[i].sizes(), ShapeError,
             "{}: weight {} is [{}], but the site is bound to [{}]", op, i,
             fmt::join(weights[i].sizes(), ", "), fmt::join(weight.sources[i].sizes(), ", "));
  }
  LS_CHECK(!transposed || weight.q_t.defined(), ShapeError,
           "{}: the gradient of the input needs the transposed weight copy", op);
}

std::vector<at::Tensor> fp8_split_rows(const at::Tensor& dw, at::IntArrayRef rows) {
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const int64_t count : rows) {
    parts.push_back(dw.narrow(0, first, count));
    first += count;
  }
  return parts;
}

}  // namespace longship::ops
