// Normalisations: RMSNorm of the language model, adaRMS of the action expert.
#include <ATen/TensorOperators.h>
#include <ATen/ops/rms_norm.h>

#include "bench/families.h"
#include "bench/pi05_shapes.h"
#include "ops/rms_norm.h"

namespace longship::bench {
namespace {

struct RmsShape {
  const char* text;
  int64_t groups;  // 1: a plain norm with one weight
  int64_t rows_per_group;
  int64_t width;
};

struct RmsSet {
  at::Tensor x, scale, shift;
  at::Tensor weight;  // 1 + scale, what the library call takes
};

struct RmsSizes {
  int64_t groups, rows, width;
  double row_bytes() const { return 2.0 * static_cast<double>(rows * width); }
  double parameter_bytes() const { return 2.0 * static_cast<double>(groups * width); }
};

RmsSizes sizes_of(const RmsShape& shape, const BenchContext& context) {
  const int64_t width = context.width(shape.width);
  if (shape.groups == 1) return {1, context.rows(shape.rows_per_group), width};
  const int64_t groups = context.rows(shape.groups);
  return {groups, groups * shape.rows_per_group, width};
}

std::vector<RmsSet> make_sets(const RmsSizes& sizes, const BenchContext& context) {
  std::vector<RmsSet> sets(2);
  for (RmsSet& set : sets) {
    set.x = context.randn({sizes.rows, sizes.width});
    set.scale = context.randn({sizes.groups, sizes.width}, at::kBFloat16, 0.1);
    if (sizes.groups > 1) set.shift = context.randn({sizes.groups, sizes.width});
    set.weight = set.scale + 1;
  }
  return sets;
}

std::optional<at::Tensor> shift_of(const RmsSet& set) {
  return set.shift.defined() ? std::optional(set.shift) : std::nullopt;
}

at::Tensor ours(const RmsSet& set) {
  return ops::rms_norm(set.x, set.scale, shift_of(set), pi05::kRmsEps);
}

at::Tensor library(const RmsSet& set) {
  const int64_t width = set.x.size(1), groups = set.weight.size(0);
  if (groups == 1) return at::rms_norm(set.x, {width}, set.weight[0], pi05::kRmsEps);
  const at::Tensor grouped = set.x.view({groups, -1, width});
  return at::rms_norm(grouped, {width}, {}, pi05::kRmsEps) * set.weight.unsqueeze(1) +
         set.shift.unsqueeze(1);
}

OpBench forward(const RmsShape& shape, const BenchContext& context) {
  const RmsSizes sizes = sizes_of(shape, context);
  const auto sets = make_sets(sizes, context);
  OpBench op;
  op.bytes = 2 * sizes.row_bytes() + (sizes.groups > 1 ? 2 : 1) * sizes.parameter_bytes() +
             4.0 * static_cast<double>(sizes.rows);
  op.run = rotate<RmsSet>(sets, [](const RmsSet& set) { ours(set); });
  op.library.emplace_back("aten", rotate<RmsSet>(sets, [](const RmsSet& set) { library(set); }));
  return op;
}

/// The gradients of x and of the parameters.
OpBench backward(const RmsShape& shape, const BenchContext& context) {
  const RmsSizes sizes = sizes_of(shape, context);
  std::vector<std::function<void()>> our_calls, library_calls;
  for (RmsSet& set : make_sets(sizes, context)) {
    std::vector<at::Tensor> inputs = {set.x, set.scale}, library_inputs = {set.x, set.weight};
    if (set.shift.defined()) {
      inputs.push_back(set.shift);
      library_inputs.push_back(set.shift);
    }
    for (const at::Tensor& t : inputs) t.set_requires_grad(true);
    set.weight.set_requires_grad(true);
    const at::Tensor y = ours(set), y_library = library(set);
    const at::Tensor dy = context.randn({sizes.rows, sizes.width});
    our_calls.push_back(backward_of(y, inputs, dy));
    library_calls.push_back(backward_of(y_library, library_inputs, dy.view(y_library.sizes())));
  }
  OpBench op;
  op.bytes = 3 * sizes.row_bytes() + (sizes.groups > 1 ? 3 : 2) * sizes.parameter_bytes() +
             4.0 * static_cast<double>(sizes.rows);
  op.run = in_turn(our_calls);
  op.library.emplace_back("aten", in_turn(library_calls));
  return op;
}

}  // namespace

std::vector<OpRow> norm_rows() {
  constexpr RmsShape kShapes[] = {
      {"prefix 18304x2048", 1, pi05::kPrefixRows, pi05::kPrefixWidth},
      {"expert 32x50x1024 adaptive", pi05::kBatch, pi05::kHorizon, pi05::kExpertWidth},
  };
  std::vector<OpRow> rows;
  for (const RmsShape& shape : kShapes) {
    rows.push_back({"rms_norm fwd", shape.text,
                    [shape](const BenchContext& context) { return forward(shape, context); }});
    rows.push_back({"rms_norm bwd", shape.text,
                    [shape](const BenchContext& context) { return backward(shape, context); }});
  }
  return rows;
}

}  // namespace longship::bench
