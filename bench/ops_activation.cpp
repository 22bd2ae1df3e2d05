// Activations of the MLPs, and the flow-matching ends of the model.
#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>

#include "bench/families.h"
#include "bench/paired.h"
#include "bench/pi05_shapes.h"
#include "ops/flow.h"
#include "ops/geglu.h"
#include "ops/gelu_bias.h"

namespace longship::bench {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Multiples of the bytes of the first input.
std::function<double(const Pair&)> times_first(double factor) {
  return [factor](const Pair& pair) { return factor * bytes_of(pair.our_inputs[0]); };
}

void add_geglu(std::vector<OpRow>& rows, const char* shape, int64_t num_rows, int64_t width) {
  PairedOp op;
  op.name = "geglu";
  op.shape = shape;
  op.make = [=](const BenchContext& context) {
    const at::Tensor gate_up = context.randn({context.rows(num_rows), 2 * context.width(width)});
    Pair pair;
    pair.our_inputs = pair.library_inputs = {gate_up};
    pair.ours = [=] { return Tensors{ops::geglu(gate_up)}; };
    pair.library = [=] {
      const auto halves = gate_up.chunk(2, 1);
      return Tensors{at::gelu(halves[0], "tanh") * halves[1]};
    };
    return pair;
  };
  op.forward_bytes = times_first(1.5);   // gate up | y
  op.backward_bytes = times_first(2.5);  // gate up dy | d_gate d_up
  add_paired_rows(rows, op);
}

void add_gelu_bias(std::vector<OpRow>& rows) {
  PairedOp op;
  op.name = "gelu_bias";
  op.shape = "vision 16384x4304";
  op.make = [](const BenchContext& context) {
    const int64_t width = context.width(pi05::kVisionMlp);
    const at::Tensor x = context.randn({context.rows(pi05::kVisionRows), width});
    const at::Tensor bias = context.randn({width});
    Pair pair;
    pair.our_inputs = pair.library_inputs = {x, bias};
    pair.ours = [=] { return Tensors{ops::gelu_bias(x, bias)}; };
    pair.library = [=] { return Tensors{at::gelu(x + bias, "tanh")}; };
    return pair;
  };
  op.forward_bytes = times_first(2);   // x | y
  op.backward_bytes = times_first(3);  // x dy | dx
  add_paired_rows(rows, op);
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
  add_geglu(rows, "prefix 18304x2*16384", pi05::kPrefixRows, pi05::kPrefixMlp);
  add_geglu(rows, "expert 1600x2*4096", pi05::kExpertRows, pi05::kExpertMlp);
  add_gelu_bias(rows);
  return rows;
}

std::vector<OpRow> flow_rows() {
  std::vector<OpRow> rows = {flow_mix_row()};
  add_flow_loss(rows);
  return rows;
}

}  // namespace longship::bench
