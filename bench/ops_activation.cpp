// Activations of the MLPs, and the flow-matching ends of the model.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sum.h>

#include "bench/families.h"
#include "bench/groot_shapes.h"
#include "bench/paired.h"
#include "bench/pi05_shapes.h"
#include "ops/flow.h"
#include "ops/geglu.h"
#include "ops/gelu_bias.h"
#include "ops/swiglu.h"

namespace longship::bench {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Multiples of the bytes of the first input.
std::function<double(const Pair&)> times_first(double factor) {
  return [factor](const Pair& pair) { return factor * bytes_of(pair.our_inputs[0]); };
}

using Activation = at::Tensor (*)(const at::Tensor&);

/// `ours` takes gate and up in one tensor; `activation` of the gate times up is the same.
void add_gated(std::vector<OpRow>& rows, const char* name, const char* shape, int64_t num_rows,
               int64_t width, Activation ours, Activation activation) {
  PairedOp op;
  op.name = name;
  op.shape = shape;
  op.make = [=](const BenchContext& context) {
    const at::Tensor gate_up = context.randn({context.rows(num_rows), 2 * context.width(width)});
    Pair pair;
    pair.our_inputs = pair.library_inputs = {gate_up};
    pair.ours = [=] { return Tensors{ours(gate_up)}; };
    pair.library = [=] {
      const auto halves = gate_up.chunk(2, 1);
      return Tensors{activation(halves[0]) * halves[1]};
    };
    return pair;
  };
  op.forward_bytes = times_first(1.5);   // gate up | y
  op.backward_bytes = times_first(2.5);  // gate up dy | d_gate d_up
  add_paired_rows(rows, op);
}

void add_geglu(std::vector<OpRow>& rows, const char* shape, int64_t num_rows, int64_t width) {
  add_gated(rows, "geglu", shape, num_rows, width, ops::geglu,
            [](const at::Tensor& gate) { return at::gelu(gate, "tanh"); });
}

/// The gradient as a pass that gives y once more; the library writes both halves in place.
OpRow geglu_recompute_row(const char* shape, int64_t num_rows, int64_t full_width) {
  return {"geglu bwd recompute", shape, [=](const BenchContext& context) {
            const int64_t rows = context.rows(num_rows), width = context.width(full_width);
            const at::Tensor gate_up = context.randn({rows, 2 * width});
            const at::Tensor dy = context.randn({rows, width});
            const auto ours = [=] {
              const auto [d_gate_up, y] = ops::geglu_backward_recompute(dy, gate_up);
              return Tensors{d_gate_up, y};
            };
            const auto library = [=] {
              const auto halves = gate_up.chunk(2, 1);
              at::Tensor d_gate_up = at::empty_like(gate_up);
              auto d_halves = d_gate_up.chunk(2, 1);
              const at::Tensor gelu = at::gelu(halves[0], "tanh");
              at::gelu_backward_out(d_halves[0], dy * halves[1], halves[0], "tanh");
              at::mul_out(d_halves[1], dy, gelu);
              return Tensors{d_gate_up, gelu * halves[1]};
            };
            OpBench op;
            op.bytes = 3 * bytes_of(gate_up);  // gate up dy | d_gate d_up y
            op.run = [ours] { ours(); };
            op.library.emplace_back("aten", [library] { library(); });
            op.deviation = [=] { return deviation(ours(), library()); };
            return op;
          }};
}

using Call = std::function<void()>;

/// `row` with a further alternative.
OpRow also_against(OpRow row, const char* name, std::function<Call(const BenchContext&)> make) {
  row.make = [inner = row.make, name, make = std::move(make)](const BenchContext& context) {
    OpBench op = inner(context);
    op.library.emplace_back(name, make(context));
    return op;
  };
  return row;
}

at::Tensor vision_hidden(const BenchContext& context) {
  return context.randn({context.rows(pi05::kVisionRows), context.width(pi05::kVisionMlp)});
}

/// What is left to a library that adds the bias in the epilogue of the product, once rounded.
Call gelu_after_addmm(const BenchContext& context) {
  const at::Tensor x = vision_hidden(context);
  return [x] { at::gelu(x, "tanh"); };
}

Call gelu_after_addmm_backward(const BenchContext& context) {
  const at::Tensor x = vision_hidden(context), dy = vision_hidden(context);
  return [x, dy] { at::sum(at::gelu_backward(dy, x, "tanh"), 0); };
}

void add_gelu_bias(std::vector<OpRow>& rows) {
  PairedOp op;
  op.name = "gelu_bias";
  op.shape = "vision 16384x4304";
  op.make = [](const BenchContext& context) {
    const at::Tensor x = vision_hidden(context), bias = context.randn({x.size(1)});
    Pair pair;
    pair.our_inputs = pair.library_inputs = {x, bias};
    pair.ours = [=] { return Tensors{ops::gelu_bias(x, bias)}; };
    pair.library = [=] { return Tensors{at::gelu(x + bias, "tanh")}; };
    return pair;
  };
  op.forward_bytes = times_first(2);   // x | y
  op.backward_bytes = times_first(3);  // x dy | dx
  std::vector<OpRow> pair;
  add_paired_rows(pair, op);
  constexpr const char* kFused = "aten, bias in addmm";
  rows.push_back(also_against(pair[0], kFused, gelu_after_addmm));
  rows.push_back(also_against(pair[1], kFused, gelu_after_addmm_backward));
}

at::Tensor random_actions(const BenchContext& context) {
  return context.randn({context.rows(pi05::kBatch), pi05::kHorizon, pi05::kActionWidth},
                       at::kFloat);
}

OpRow flow_mix_row() {
  return {"flow_mix", "32x50x32 fp32", [](const BenchContext& context) {
            const at::Tensor actions = random_actions(context), noise = random_actions(context);
            const at::Tensor time =
                context.randn({context.rows(pi05::kBatch)}, at::kFloat).sigmoid();
            const auto ours = [=] { return ops::flow_mix(actions, noise, time); };
            const auto library = [=] {
              const at::Tensor t = time.view({-1, 1, 1});
              return t * noise + (1 - t) * actions;
            };
            OpBench op;
            op.bytes = 3 * bytes_of(actions);
            op.run = [ours] { ours(); };
            op.library.emplace_back("aten", [library] { library(); });
            op.deviation = [=] { return deviation({ours()}, {library()}); };
            return op;
          }};
}

void add_flow_loss(std::vector<OpRow>& rows) {
  PairedOp op;
  op.name = "flow_loss";
  op.shape = "32x50x32";
  op.make = [](const BenchContext& context) {
    const at::Tensor actions = random_actions(context), noise = random_actions(context);
    const at::Tensor v = random_actions(context).to(at::kBFloat16);
    Pair pair;
    pair.our_inputs = pair.library_inputs = {v};
    pair.ours = [=] {
      return Tensors{std::get<0>(ops::flow_loss(v, actions, noise, pi05::kActionWidth))};
    };
    pair.library = [=] { return Tensors{(v.to(at::kFloat) - (noise - actions)).square().mean()}; };
    return pair;
  };
  op.forward_bytes = times_first(1 + 2 + 2);  // v, and two of fp32
  op.backward_bytes = times_first(1 + 2 + 2 + 1);
  add_paired_rows(rows, op);
}

}  // namespace

std::vector<OpRow> activation_rows() {
  std::vector<OpRow> rows;
  constexpr const char *kPrefix = "prefix 18304x2*16384", *kExpert = "expert 1600x2*4096";
  add_geglu(rows, kPrefix, pi05::kPrefixRows, pi05::kPrefixMlp);
  rows.push_back(geglu_recompute_row(kPrefix, pi05::kPrefixRows, pi05::kPrefixMlp));
  add_geglu(rows, kExpert, pi05::kExpertRows, pi05::kExpertMlp);
  rows.push_back(geglu_recompute_row(kExpert, pi05::kExpertRows, pi05::kExpertMlp));
  add_gated(rows, "swiglu", "text 14080x2*6144", groot::kTextRows, groot::kTextMlp, ops::swiglu,
            [](const at::Tensor& gate) { return at::silu(gate); });
  add_gelu_bias(rows);
  return rows;
}

std::vector<OpRow> flow_rows() {
  std::vector<OpRow> rows = {flow_mix_row()};
  add_flow_loss(rows);
  return rows;
}

}  // namespace longship::bench
