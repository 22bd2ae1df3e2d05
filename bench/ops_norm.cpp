// Normalisations, alone and with the residual addition before them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>

#include "bench/families.h"
#include "bench/paired.h"
#include "bench/pi05_shapes.h"
#include "ops/layer_norm.h"
#include "ops/rms_norm.h"

namespace longship::bench {
namespace {

using Tensors = std::vector<at::Tensor>;
constexpr double kLayerNormEps = 1e-6;

/// Rows of an activation; `groups` > 1: adaptive, one row of parameters for each group.
struct NormShape {
  const char* text;
  int64_t groups, rows_per_group, width;
};
constexpr NormShape kPrefix = {"prefix 18304x2048", 1, pi05::kPrefixRows, pi05::kPrefixWidth};
constexpr NormShape kExpert = {"expert 32x50x1024 adaptive", pi05::kBatch, pi05::kHorizon,
                               pi05::kExpertWidth};
constexpr NormShape kVision = {"vision 16384x1152", 1, pi05::kVisionRows, pi05::kVisionWidth};

struct Sizes {
  int64_t groups, rows, width;
};

Sizes sizes_of(const NormShape& shape, const BenchContext& context) {
  const int64_t width = context.width(shape.width);
  if (shape.groups == 1) return {1, context.rows(shape.rows_per_group), width};
  const int64_t groups = context.rows(shape.groups);
  return {groups, groups * shape.rows_per_group, width};
}

/// Random tensors of one shape; parameters are [groups, width].
struct Inputs {
  Inputs(const NormShape& shape, const BenchContext& c)
      : context(c), sizes(sizes_of(shape, c)), adaptive(shape.groups > 1) {}
  at::Tensor rows() const { return context.randn({sizes.rows, sizes.width}); }
  at::Tensor parameter(double std = 1.0) const {
    return context.randn({sizes.groups, sizes.width}, at::kBFloat16, std);
  }
  const BenchContext& context;
  Sizes sizes;
  bool adaptive;
};

std::optional<at::Tensor> maybe(const at::Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

at::Tensor by_group(const at::Tensor& x, const at::Tensor& parameter) {
  return x.view({parameter.size(0), -1, x.size(-1)});
}

/// The norm as the tensor library has it; `weight` is 1 + scale.
at::Tensor library_rms_norm(const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& shift) {
  const at::IntArrayRef width = x.sizes().slice(1);
  if (!shift.defined()) return at::rms_norm(x, width, weight[0], pi05::kRmsEps);
  const at::Tensor y = at::rms_norm(by_group(x, weight), width, {}, pi05::kRmsEps);
  return (y * weight.unsqueeze(1) + shift.unsqueeze(1)).view(x.sizes());
}

at::Tensor library_add(const at::Tensor& h, const at::Tensor& branch, const at::Tensor& gate) {
  if (!gate.defined()) return h + branch;
  return (by_group(h, gate) + by_group(branch, gate) * gate.unsqueeze(1)).view(h.sizes());
}

Pair make_rms_norm(const NormShape& shape, const BenchContext& context) {
  const Inputs in(shape, context);
  const at::Tensor x = in.rows(), scale = in.parameter(0.1), weight = scale + 1;
  const at::Tensor shift = in.adaptive ? in.parameter() : at::Tensor();
  Pair pair;
  pair.our_inputs = {x, scale};
  pair.library_inputs = {x, weight};
  if (shift.defined()) {
    pair.our_inputs.push_back(shift);
    pair.library_inputs.push_back(shift);
  }
  pair.ours = [=] { return Tensors{ops::rms_norm(x, scale, maybe(shift), pi05::kRmsEps)}; };
  pair.library = [=] { return Tensors{library_rms_norm(x, weight, shift)}; };
  return pair;
}

Pair make_add_rms_norm(const NormShape& shape, const BenchContext& context) {
  const Inputs in(shape, context);
  const at::Tensor h = in.rows(), branch = in.rows(), scale = in.parameter(0.1);
  const at::Tensor weight = scale + 1;
  const at::Tensor gate = in.adaptive ? in.parameter() : at::Tensor();
  const at::Tensor shift = in.adaptive ? in.parameter() : at::Tensor();
  Pair pair;
  pair.our_inputs = {h, branch, scale};
  pair.library_inputs = {h, branch, weight};
  if (in.adaptive) {
    for (Tensors* inputs : {&pair.our_inputs, &pair.library_inputs})
      inputs->insert(inputs->end(), {gate, shift});
  }
  pair.ours = [=] {
    const auto [h_out, y] =
        ops::add_rms_norm(h, branch, maybe(gate), scale, maybe(shift), pi05::kRmsEps);
    return Tensors{h_out, y};
  };
  pair.library = [=] {
    const at::Tensor h_out = library_add(h, branch, gate);
    return Tensors{h_out, library_rms_norm(h_out, weight, shift)};
  };
  return pair;
}

Pair make_add_gate(const NormShape& shape, const BenchContext& context) {
  const Inputs in(shape, context);
  const at::Tensor h = in.rows(), branch = in.rows(), gate = in.parameter();
  Pair pair;
  pair.our_inputs = pair.library_inputs = {h, branch, gate};
  pair.ours = [=] { return Tensors{ops::add_gate(h, branch, gate)}; };
  pair.library = [=] { return Tensors{library_add(h, branch, gate)}; };
  return pair;
}

Pair make_layer_norm(const NormShape& shape, const BenchContext& context) {
  const Inputs in(shape, context);
  const at::Tensor x = in.rows(), bias = in.parameter()[0];
  const at::Tensor weight = (in.parameter(0.1) + 1)[0];
  Pair pair;
  pair.our_inputs = pair.library_inputs = {x, weight, bias};
  pair.ours = [=] { return Tensors{ops::layer_norm(x, weight, bias, kLayerNormEps)}; };
  pair.library = [=] {
    return Tensors{at::layer_norm(x, x.sizes().slice(1), weight, bias, kLayerNormEps)};
  };
  return pair;
}

Pair make_add_layer_norm(const NormShape& shape, const BenchContext& context) {
  const Inputs in(shape, context);
  const at::Tensor h = in.rows(), branch = in.rows(), bias = in.parameter()[0];
  const at::Tensor weight = (in.parameter(0.1) + 1)[0];
  Pair pair;
  pair.our_inputs = pair.library_inputs = {h, branch, weight, bias};
  pair.ours = [=] {
    const auto [h_out, y] = ops::add_layer_norm(h, branch, weight, bias, kLayerNormEps);
    return Tensors{h_out, y};
  };
  pair.library = [=] {
    const at::Tensor h_out = h + branch;
    return Tensors{h_out, at::layer_norm(h_out, h.sizes().slice(1), weight, bias, kLayerNormEps)};
  };
  return pair;
}

/// `count` arrays of the rows; parameters and row statistics are below a hundredth of that.
std::function<double(const Pair&)> row_arrays(double count) {
  return [count](const Pair& pair) { return count * bytes_of(pair.our_inputs[0]); };
}

}  // namespace

std::vector<OpRow> norm_rows() {
  struct Entry {
    const char* name;
    const NormShape& shape;
    Pair (*make)(const NormShape&, const BenchContext&);
    double forward, backward;  // arrays of rows that are read or written
  };
  const Entry kEntries[] = {
      {"rms_norm", kPrefix, make_rms_norm, 2, 3},  // x y | dy x dx
      {"rms_norm", kExpert, make_rms_norm, 2, 3},
      // h branch h_out y | dh_out dy h_out dh, where dbranch is dh
      {"add_rms_norm", kPrefix, make_add_rms_norm, 4, 4},
      // with a gate: also branch and dbranch
      {"add_rms_norm", kExpert, make_add_rms_norm, 4, 6},
      // h branch out | dout branch dbranch, where dh is dout
      {"add_gate", kExpert, make_add_gate, 3, 3},
      {"layer_norm", kVision, make_layer_norm, 2, 3},
      {"add_layer_norm", kVision, make_add_layer_norm, 4, 4},
  };
  std::vector<OpRow> rows;
  for (const Entry& e : kEntries) {
    PairedOp op;
    op.name = e.name;
    op.shape = e.shape.text;
    op.make = [make = e.make, shape = e.shape](const BenchContext& c) { return make(shape, c); };
    op.forward_bytes = row_arrays(e.forward);
    op.backward_bytes = row_arrays(e.backward);
    add_paired_rows(rows, op);
  }
  return rows;
}

}  // namespace longship::bench
