// FP8: conversion of activations, gradients and weights, and whole layers against bf16.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>

#include <limits>

#include "bench/families.h"
#include "bench/paired.h"
#include "bench/pi05_shapes.h"
#include "ops/fp8.h"

namespace longship::bench {
namespace {

using Tensors = std::vector<at::Tensor>;

/// FP8 products take multiples of 16 rows.
int64_t rows16(const BenchContext& context, int64_t full) {
  return (context.rows(full) + 15) / 16 * 16;
}

/// A delayed-scaling state that has seen one step of `first_use`, as in the middle of a training.
ops::Fp8Scale delayed_scale(const BenchContext& context, at::ScalarType format,
                            const std::function<void(const ops::Fp8Scale&)>& first_use) {
  ops::Fp8State states;
  ops::Fp8Scale scale;
  scale.index = states.add(format);
  states.create(context.device);
  scale.states = states.tensor();
  scale.record = true;
  first_use(scale);
  states.update();
  return scale;
}

/// In one pass over x.
at::Tensor library_amax(const at::Tensor& x) {
  return at::linalg_vector_norm(x, std::numeric_limits<double>::infinity());
}

/// What a library needs several passes for: convert, transpose.
void library_convert(const at::Tensor& x, at::ScalarType format) {
  const at::Tensor q = x.to(format);
  q.view(at::kChar).t().contiguous();
}

/// Our conversion against the same in a library. `make_value` gives what is converted, in bf16. The
/// first alternative scales like ours, by the amax of the value in hand where `delayed` is false;
/// the second leaves the scale away, as if the value had the range of the format.
void set_conversions(OpBench& op, at::ScalarType format, bool delayed,
                     const std::function<Tensors()>& make_value) {
  op.library.emplace_back("aten", [=] {
    for (const at::Tensor& x : make_value()) {
      if (delayed) {
        library_convert(x * 16.0, format);
      } else {
        library_convert(x * library_amax(x).reciprocal().mul(ops::fp8_max(format)), format);
      }
    }
  });
  op.library.emplace_back("aten unscaled", [=] {
    for (const at::Tensor& x : make_value()) library_convert(x, format);
  });
}

/// Bound of the relative error in the 2-norm. Rounding to 3 or 2 bits of mantissa moves a value by
/// 1/16 or 1/8 at most and by 0.4 of that in the root mean square.
double rounding(at::ScalarType format) {
  return format == at::kFloat8_e4m3fn ? 0.04 : 0.08;
}

/// Both copies of `m` against the unrounded value.
double conversion_error(const ops::Fp8Matrix& m, const at::Tensor& value) {
  const auto original = [&](const at::Tensor& q) { return q.to(at::kFloat).mul_(m.inv_scale); };
  return deviation({original(m.q), original(m.q_t).t()}, {value, value});
}

OpRow quantize_row(const char* shape, int64_t rows, int64_t width, at::ScalarType format,
                   bool delayed = true) {
  const char* name = delayed ? "fp8_quantize both" : "fp8_quantize both current";
  return {name, shape, [=](const BenchContext& context) {
            const at::Tensor x = context.randn({rows16(context, rows), context.width(width)});
            const ops::Fp8Scale scale = delayed ? delayed_scale(context, format,
                                                                [&](const ops::Fp8Scale& s) {
                                                                  ops::fp8_quantize(x, format, s);
                                                                })
                                                : ops::Fp8Scale();
            OpBench op;
            // Current scaling reads x once more.
            op.bytes = bytes_of(x) * ((delayed ? 2 : 4) + 2) / 2;
            op.run = [=] { ops::fp8_quantize(x, format, scale); };
            set_conversions(op, format, delayed, [x] { return Tensors{x}; });
            op.max_deviation = rounding(format);
            op.deviation = [=] { return conversion_error(ops::fp8_quantize(x, format, scale), x); };
            return op;
          }};
}

OpRow amax_row() {
  return {"fp8_amax", "prefix 18304x2048", [](const BenchContext& context) {
            const at::Tensor x = context.randn(
                {rows16(context, pi05::kPrefixRows), context.width(pi05::kPrefixWidth)});
            OpBench op;
            op.bytes = bytes_of(x);
            op.run = [=] { ops::fp8_amax(x); };
            op.library.emplace_back("aten", [=] { library_amax(x); });
            op.deviation = [=] {
              return deviation({ops::fp8_amax(x)}, {at::amax(x.abs()).reshape({1})});
            };
            return op;
          }};
}

constexpr const char* kMlpShape = "prefix 18304x2*16384";

OpRow geglu_row() {
  return {"fp8_geglu_quantize both", kMlpShape, [](const BenchContext& context) {
            const auto format = at::kFloat8_e4m3fn;
            const at::Tensor gate_up = context.randn(
                {rows16(context, pi05::kPrefixRows), 2 * context.width(pi05::kPrefixMlp)});
            const ops::Fp8Scale scale = delayed_scale(context, format, [&](const ops::Fp8Scale& s) {
              ops::fp8_geglu_quantize(gate_up, format, s);
            });
            const auto value = [=] {
              const auto halves = gate_up.chunk(2, 1);
              return at::gelu(halves[0], "tanh") * halves[1];
            };
            OpBench op;
            op.bytes = bytes_of(gate_up) * (4 + 2) / 4;
            op.run = [=] { ops::fp8_geglu_quantize(gate_up, format, scale); };
            set_conversions(op, format, true, [value] { return Tensors{value()}; });
            op.max_deviation = rounding(format);
            op.deviation = [=] {
              return conversion_error(ops::fp8_geglu_quantize(gate_up, format, scale), value());
            };
            return op;
          }};
}

OpRow geglu_backward_row() {
  return {"fp8_geglu_backward_quantize", kMlpShape, [](const BenchContext& context) {
            const auto format = at::kFloat8_e5m2;
            const int64_t rows = rows16(context, pi05::kPrefixRows);
            const int64_t width = context.width(pi05::kPrefixMlp);
            const at::Tensor gate_up = context.randn({rows, 2 * width});
            const at::Tensor dy = context.randn({rows, width});
            const ops::Fp8Scale scale = delayed_scale(context, format, [&](const ops::Fp8Scale& s) {
              ops::fp8_geglu_backward_quantize(dy, gate_up, format, s);
            });
            const auto value = [=] {
              const auto halves = gate_up.chunk(2, 1);
              return Tensors{at::gelu_backward(dy * halves[1], halves[0], "tanh"),
                             dy * at::gelu(halves[0], "tanh")};
            };
            OpBench op;
            op.bytes = bytes_of(dy) * (6 + 4) / 2;
            op.run = [=] { ops::fp8_geglu_backward_quantize(dy, gate_up, format, scale); };
            set_conversions(op, format, true, value);
            op.max_deviation = rounding(format);
            op.deviation = [=] {
              return conversion_error(ops::fp8_geglu_backward_quantize(dy, gate_up, format, scale),
                                      at::cat(value(), 1));
            };
            return op;
          }};
}

OpRow weight_row() {
  return {"fp8_refresh weight", "prefix gate+up 32768x2048", [](const BenchContext& context) {
            const auto format = at::kFloat8_e4m3fn;
            const at::Tensor w = context.randn(
                {2 * context.width(pi05::kPrefixMlp), context.width(pi05::kPrefixWidth)},
                at::kBFloat16, 0.02);
            const auto weight = std::make_shared<ops::Fp8Weight>();
            weight->bind({w});
            OpBench op;
            op.bytes = bytes_of(w) * (2 + 2 + 2) / 2;  // read twice: the scale is its own
            op.run = [weight] { weight->refresh(); };
            set_conversions(op, format, false, [w] { return Tensors{w}; });
            op.max_deviation = rounding(format);
            op.deviation = [=] {
              weight->refresh();
              return conversion_error({weight->q, weight->q_t, weight->inv_scale(), {}}, w);
            };
            return op;
          }};
}

/// A layer and the state of its scales, which it points to.
template <class Site>
struct Layer {
  Site site;
  ops::Fp8State states;
};

Pair make_linear(int64_t rows, int64_t in, int64_t out, const BenchContext& context) {
  const at::Tensor x = context.randn({rows16(context, rows), context.width(in)});
  const at::Tensor w = context.randn({context.width(out), context.width(in)}, at::kBFloat16, 0.02);
  const auto layer = std::make_shared<Layer<ops::Fp8LinearSite>>();
  layer->site.weight.bind({w});
  layer->site.weight.refresh();
  layer->site.use_delayed_scaling(layer->states);
  layer->states.create(context.device);
  Pair pair;
  pair.our_inputs = pair.library_inputs = {x, w};
  pair.ours = [=] { return Tensors{ops::fp8_linear(x, {w}, std::nullopt, layer->site)}; };
  pair.library = [=] { return Tensors{at::linear(x, w)}; };
  pair.after_first_use = [layer] { layer->states.update(); };
  return pair;
}

Pair make_gated_mlp(const BenchContext& context) {
  const int64_t width = context.width(pi05::kPrefixWidth), hidden = context.width(pi05::kPrefixMlp);
  const at::Tensor x = context.randn({rows16(context, pi05::kPrefixRows), width});
  const at::Tensor gate_up = context.randn({2 * hidden, width}, at::kBFloat16, 0.02);
  const at::Tensor gate = gate_up.slice(0, 0, hidden), up = gate_up.slice(0, hidden);
  const at::Tensor down = context.randn({width, hidden}, at::kBFloat16, 0.02);
  const auto layer = std::make_shared<Layer<ops::Fp8GatedMlpSite>>();
  layer->site.gate_up.bind({gate, up});
  layer->site.down.bind({down});
  layer->site.gate_up.refresh();
  layer->site.down.refresh();
  layer->site.use_delayed_scaling(layer->states);
  layer->states.create(context.device);
  Pair pair;
  pair.our_inputs = pair.library_inputs = {x, gate, up, down};
  pair.ours = [=] { return Tensors{ops::fp8_gated_mlp(x, gate, up, down, layer->site)}; };
  pair.library = [=] {
    return Tensors{at::linear(at::gelu(at::linear(x, gate), "tanh") * at::linear(x, up), down)};
  };
  pair.after_first_use = [layer] { layer->states.update(); };
  return pair;
}

/// Rows times weights, all of them matrices.
double product_flops(const Pair& pair) {
  double weights = 0;
  for (size_t i = 1; i < pair.our_inputs.size(); ++i)
    weights += static_cast<double>(pair.our_inputs[i].numel());
  return 2.0 * static_cast<double>(pair.our_inputs[0].size(0)) * weights;
}

double input_bytes(const Pair& pair) {
  double bytes = 0;
  for (const at::Tensor& t : pair.our_inputs) bytes += bytes_of(t);
  return bytes;
}

void add_layer(std::vector<OpRow>& rows, const char* name, const char* shape,
               std::function<Pair(const BenchContext&)> make) {
  PairedOp op;
  op.name = name;
  op.shape = shape;
  op.library = "bf16";
  op.fp8 = true;
  op.max_deviation = 0.15;  // two bits of mantissa in the gradients
  op.make = std::move(make);
  op.forward_bytes = op.backward_bytes = input_bytes;
  op.forward_flops = product_flops;
  op.backward_flops = [](const Pair& pair) { return 2 * product_flops(pair); };
  add_paired_rows(rows, op);
}

}  // namespace

std::vector<OpRow> fp8_rows() {
  constexpr const char* kHidden = "prefix hidden 18304x16384";
  std::vector<OpRow> rows = {
      amax_row(),
      quantize_row("prefix 18304x2048", pi05::kPrefixRows, pi05::kPrefixWidth, at::kFloat8_e4m3fn),
      quantize_row("prefix dy 18304x2048", pi05::kPrefixRows, pi05::kPrefixWidth, at::kFloat8_e5m2),
      quantize_row(kHidden, pi05::kPrefixRows, pi05::kPrefixMlp, at::kFloat8_e4m3fn),
      quantize_row(kHidden, pi05::kPrefixRows, pi05::kPrefixMlp, at::kFloat8_e4m3fn, false),
      quantize_row("vision 16384x4304", pi05::kVisionRows, pi05::kVisionMlp, at::kFloat8_e4m3fn),
      geglu_row(),
      geglu_backward_row(),
      weight_row(),
  };
  add_layer(rows, "fp8_linear", "prefix q+k+v 18304x2048->2560", [](const BenchContext& c) {
    return make_linear(pi05::kPrefixRows, pi05::kPrefixWidth, pi05::kPrefixQkv, c);
  });
  add_layer(rows, "fp8_linear", "vision fc1 16384x1152->4304", [](const BenchContext& c) {
    return make_linear(pi05::kVisionRows, pi05::kVisionWidth, pi05::kVisionMlp, c);
  });
  add_layer(rows, "fp8_gated_mlp", "prefix 18304x2048->16384->2048", make_gated_mlp);
  return rows;
}

}  // namespace longship::bench
