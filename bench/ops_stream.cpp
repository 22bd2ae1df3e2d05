// Norms between GR00T's fp32 stream and its bf16 products, and the branches that are added to the
// stream, against library operators with ops::dropout between them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/zeros.h>

#include "bench/families.h"
#include "bench/groot_shapes.h"
#include "bench/paired.h"
#include "ops/dropout.h"
#include "ops/gelu_bias.h"
#include "ops/stream_norm.h"

namespace longship::bench {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kP = 0.2;
constexpr double kEps = 1e-5;

/// Rows of the stream; `adaptive`: scale and shift for each sample, else a weight and a bias.
struct StreamShape {
  const char* text;
  int64_t rows, width;
  bool adaptive;
  int64_t samples = groot::kBatch;
};
constexpr StreamShape kDit = {"dit 64x51x1536", groot::kActionTokens, groot::kDitWidth, true};
constexpr StreamShape kDitSmall = {"dit 4x41x1536", groot::kSmallActionTokens, groot::kDitWidth,
                                   true, groot::kSmallBatch};
constexpr StreamShape kVl = {"vl 64x220x2048", groot::kTextTokens, groot::kTextWidth, false};

struct Inputs {
  Inputs(const StreamShape& shape, const BenchContext& context)
      : samples(context.rows(shape.samples)), rows(shape.rows), width(context.width(shape.width)) {
    h = context.randn({samples, rows, width}, at::kFloat);
    branch = context.randn({samples, rows, width});
    bias = context.randn({width});
    const std::vector<int64_t> sizes =
        shape.adaptive ? std::vector<int64_t>{samples, width} : std::vector<int64_t>{width};
    const at::ScalarType type = shape.adaptive ? at::kBFloat16 : at::kFloat;
    norm = {context.randn(sizes, type, 0.1), context.randn(sizes, type), shape.adaptive, kEps};
    // The same masks in every sample cost as much as others.
    keys = at::zeros({samples}, context.options(at::kLong));
  }

  ops::StreamBranch dropped(std::vector<int64_t> sites) const {
    return {branch, bias, keys, std::move(sites), kP};
  }
  at::Tensor library_sum(const std::vector<int64_t>& sites) const {
    at::Tensor v = branch + bias;
    for (const int64_t site : sites) v = ops::dropout(v, keys, site, kP);
    return h + v;
  }
  at::Tensor library_norm(const at::Tensor& x) const {
    if (!norm.plus_one) {
      return at::layer_norm(x, {width}, norm.scale, norm.shift, kEps).to(at::kBFloat16);
    }
    const at::Tensor y = at::layer_norm(x, {width}, {}, {}, kEps);
    return (y * (norm.scale + 1).unsqueeze(1) + norm.shift.unsqueeze(1)).to(at::kBFloat16);
  }

  int64_t samples, rows, width;
  at::Tensor h, branch, bias, keys;
  ops::StreamNorm norm;
};

Pair make_norm(const StreamShape& shape, const BenchContext& context) {
  const Inputs in(shape, context);
  Pair pair;
  pair.our_inputs = pair.library_inputs = {in.h, in.norm.scale, in.norm.shift};
  pair.ours = [=] {
    const auto [h, y] = ops::stream_norm(in.h, in.norm, at::kBFloat16);
    return Tensors{h, y};
  };
  pair.library = [=] { return Tensors{at::alias(in.h), in.library_norm(in.h)}; };
  return pair;
}

Pair make_add_norm(const StreamShape& shape, const BenchContext& context) {
  const Inputs in(shape, context);
  Pair pair;
  pair.our_inputs = pair.library_inputs = {in.h, in.branch, in.bias, in.norm.scale, in.norm.shift};
  pair.ours = [=] {
    const auto [x, y] = ops::add_stream_norm(in.h, in.dropped({1, 2}), in.norm);
    return Tensors{x, y};
  };
  pair.library = [=] {
    const at::Tensor x = in.library_sum({1, 2});
    return Tensors{x, in.library_norm(x)};
  };
  return pair;
}

Pair make_add(const StreamShape& shape, const BenchContext& context) {
  const Inputs in(shape, context);
  Pair pair;
  pair.our_inputs = pair.library_inputs = {in.h, in.branch, in.bias};
  pair.ours = [=] { return Tensors{ops::add_dropped(in.h, in.dropped({3}))}; };
  pair.library = [=] { return Tensors{in.library_sum({3})}; };
  return pair;
}

Pair make_hidden(const StreamShape& shape, const BenchContext& context) {
  const int64_t samples = context.rows(shape.samples), width = context.width(4 * shape.width);
  const at::Tensor x = context.randn({samples, shape.rows, width});
  const at::Tensor bias = context.randn({width});
  const at::Tensor keys = at::zeros({samples}, context.options(at::kLong));
  Pair pair;
  pair.our_inputs = pair.library_inputs = {x, bias};
  pair.ours = [=] { return Tensors{ops::gelu_bias_dropout(x, bias, keys, 2, kP)}; };
  pair.library = [=] { return Tensors{ops::dropout(at::gelu(x + bias, "tanh"), keys, 2, kP)}; };
  return pair;
}

}  // namespace

std::vector<OpRow> stream_rows() {
  struct Entry {
    const char* name;
    const StreamShape& shape;
    Pair (*make)(const StreamShape&, const BenchContext&);
    double forward, backward;  // bytes of an element of the first input
  };
  // fp32: h, x, dh_out, dh; bf16: branch, y, dy, dbranch, and all of the hidden layer.
  const Entry kEntries[] = {
      {"stream_norm", kDit, make_norm, 4 + 2, 4 + 2 + 4 + 4},
      {"stream_norm", kVl, make_norm, 4 + 2, 4 + 2 + 4 + 4},
      {"add_stream_norm", kDit, make_add_norm, 4 + 2 + 4 + 2, 4 + 2 + 4 + 4 + 2},
      {"add_stream_norm", kVl, make_add_norm, 4 + 2 + 4 + 2, 4 + 2 + 4 + 4 + 2},
      {"add_dropped", kDit, make_add, 4 + 2 + 4, 4 + 2},
      {"gelu_bias_dropout", kDit, make_hidden, 2 + 2, 2 + 2 + 2},
      {"gelu_bias_dropout", kVl, make_hidden, 2 + 2, 2 + 2 + 2},
      {"add_dropped", kDitSmall, make_add, 4 + 2 + 4, 4 + 2},
      {"gelu_bias_dropout", kDitSmall, make_hidden, 2 + 2, 2 + 2 + 2},
  };
  std::vector<OpRow> rows;
  for (const Entry& e : kEntries) {
    const auto bytes = [](double per_element) {
      return [per_element](const Pair& pair) {
        return per_element * static_cast<double>(pair.our_inputs[0].numel());
      };
    };
    PairedOp op;
    op.name = e.name;
    op.shape = e.shape.text;
    op.make = [make = e.make, shape = e.shape](const BenchContext& c) { return make(shape, c); };
    op.forward_bytes = bytes(e.forward);
    op.backward_bytes = bytes(e.backward);
    op.library = "aten and ops::dropout";
    add_paired_rows(rows, op);
  }
  return rows;
}

}  // namespace longship::bench
