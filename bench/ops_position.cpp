// Positions, rows and embeddings.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "bench/families.h"
#include "bench/groot_shapes.h"
#include "bench/paired.h"
#include "bench/pi05_shapes.h"
#include "ops/embedding_rows.h"
#include "ops/head_norm_rope.h"
#include "ops/rope_qkv.h"
#include "ops/row_lists.h"
#include "ops/rows.h"

namespace longship::bench {
namespace {

using Tensors = std::vector<at::Tensor>;
constexpr int64_t kMaxPositions = 1024;

/// x [N, H, E] rotated by cos, sin [N, 1, E/2].
at::Tensor library_rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1)
      .to(x.scalar_type());
}

Pair make_rope(int64_t full_rows, const BenchContext& context) {
  constexpr int64_t kHeads = pi05::kQueryHeads, kSize = pi05::kHeadSize;
  const int64_t rows = context.rows(full_rows);
  const at::Tensor qkv = context.randn({rows, pi05::kPrefixQkv});
  const at::Tensor angle = context.randn({kMaxPositions, kSize / 2}, at::kFloat, 3.0);
  const at::Tensor cos = angle.cos(), sin = angle.sin();
  const at::Tensor positions =
      at::arange(rows, context.options(at::kInt)).remainder(kMaxPositions).to(at::kInt);
  Pair pair;
  pair.our_inputs = pair.library_inputs = {qkv};
  pair.ours = [=] {
    const auto [q, k, v] = ops::rope_qkv(qkv, cos, sin, positions, kHeads, 1, kSize);
    return Tensors{q, k, v};
  };
  pair.library = [=] {
    const at::Tensor heads = qkv.view({-1, kHeads + 2, kSize});
    const at::Tensor row_cos = cos.index_select(0, positions).unsqueeze(1);
    const at::Tensor row_sin = sin.index_select(0, positions).unsqueeze(1);
    return Tensors{library_rotate(heads.slice(1, 0, kHeads), row_cos, row_sin),
                   library_rotate(heads.slice(1, kHeads, kHeads + 1), row_cos, row_sin),
                   heads.slice(1, kHeads + 1).contiguous()};
  };
  return pair;
}

void add_rope(std::vector<OpRow>& rows, const char* shape, int64_t num_rows) {
  PairedOp op;
  op.name = "rope_qkv";
  op.shape = shape;
  op.make = [=](const BenchContext& context) { return make_rope(num_rows, context); };
  op.forward_bytes =
      op.backward_bytes = [](const Pair& p) { return 2 * bytes_of(p.our_inputs[0]); };
  add_paired_rows(rows, op);
}

Pair make_head_norm_rope(const BenchContext& context) {
  constexpr int64_t kHeads = groot::kQueryHeads, kKeys = groot::kKeyHeads, kSize = groot::kHeadSize;
  const int64_t rows = context.rows(groot::kTextRows);
  const at::Tensor qkv = context.randn({rows, (kHeads + 2 * kKeys) * kSize});
  const at::Tensor q_weight = context.randn({kSize}, at::kBFloat16, 0.1) + 1;
  const at::Tensor k_weight = context.randn({kSize}, at::kBFloat16, 0.1) + 1;
  const at::Tensor angle = context.randn({rows, kSize / 2}, at::kFloat, 3.0);
  const at::Tensor cos = angle.cos().to(at::kBFloat16), sin = angle.sin().to(at::kBFloat16);
  Pair pair;
  pair.our_inputs = pair.library_inputs = {qkv, q_weight, k_weight};
  pair.ours = [=] {
    const auto [q, k, v] =
        ops::head_norm_rope(qkv, q_weight, k_weight, cos, sin, kHeads, kKeys, groot::kRmsEps);
    return Tensors{q, k, v};
  };
  pair.library = [=] {
    const auto heads =
        qkv.view({-1, kHeads + 2 * kKeys, kSize}).split_with_sizes({kHeads, kKeys, kKeys}, 1);
    const auto turned = [&](const at::Tensor& x, const at::Tensor& weight) {
      const at::Tensor normed = at::rms_norm(x, {kSize}, weight, groot::kRmsEps);
      return library_rotate(normed, cos.unsqueeze(1), sin.unsqueeze(1));
    };
    return Tensors{turned(heads[0], q_weight), turned(heads[1], k_weight), heads[2]};
  };
  return pair;
}

void add_head_norm_rope(std::vector<OpRow>& rows) {
  constexpr double kAll = groot::kQueryHeads + 2 * groot::kKeyHeads;
  PairedOp op;
  op.name = "head_norm_rope";
  op.shape = "text 14080x32x128";
  op.make = make_head_norm_rope;
  // Queries and keys are read and written | those, their gradients, and gradients of values moved.
  op.forward_bytes = [](const Pair& p) {
    return 2 * (kAll - groot::kKeyHeads) / kAll * bytes_of(p.our_inputs[0]);
  };
  op.backward_bytes = [](const Pair& p) {
    return (3 - groot::kKeyHeads / kAll) * bytes_of(p.our_inputs[0]);
  };
  add_paired_rows(rows, op);
}

void add_permute(std::vector<OpRow>& rows, const char* shape, int64_t full_rows, int64_t width) {
  PairedOp op;
  op.name = "permute_rows";
  op.shape = shape;
  op.make = [=](const BenchContext& context) {
    const int64_t num_rows = context.rows(full_rows);
    const at::Tensor x = context.randn({num_rows, context.width(width)});
    const at::Tensor index = at::randperm(num_rows, context.options(at::kLong));
    const at::Tensor inverse = index.argsort();
    Pair pair;
    pair.our_inputs = pair.library_inputs = {x};
    pair.ours = [=] { return Tensors{ops::permute_rows(x, index, inverse)}; };
    pair.library = [=] { return Tensors{at::index_select(x, 0, index)}; };
    return pair;
  };
  op.forward_bytes =
      op.backward_bytes = [](const Pair& p) { return 2 * bytes_of(p.our_inputs[0]); };
  add_paired_rows(rows, op);
}

struct Embedding {
  explicit Embedding(const BenchContext& context)
      : weight(context.randn({context.rows(pi05::kVocabulary), context.width(pi05::kPrefixWidth)})),
        ids(at::randint(weight.size(0), {context.rows(pi05::kTextRows)},
                        context.options(at::kLong))),
        scale(std::sqrt(static_cast<double>(weight.size(1)))) {}
  at::Tensor weight, ids;
  double scale;
  double row_bytes() const { return 2.0 * static_cast<double>(ids.numel() * weight.size(1)); }
};

constexpr const char* kEmbeddingShape = "1920 of 257152 x2048";

OpBench embedding_forward(const BenchContext& context) {
  const Embedding e(context);
  const auto ours = [=] {
    return ops::embedding_rows(e.weight, e.ids, e.scale, -1, std::nullopt, std::nullopt);
  };
  const auto library = [=] { return at::embedding(e.weight, e.ids) * e.scale; };
  OpBench op;
  op.bytes = 2 * e.row_bytes();
  op.run = [ours] { ours(); };
  op.library.emplace_back("aten", [library] { library(); });
  op.deviation = [=] { return deviation({ours()}, {library()}); };
  return op;
}

OpBench embedding_backward(const BenchContext& context) {
  const at::AutoGradMode with_graph(true);
  const Embedding e(context);
  e.weight.set_requires_grad(true);
  const at::Tensor grad_rows = at::zeros(e.weight.sizes(), context.options(at::kBFloat16));
  const at::Tensor row_flags = at::zeros({e.weight.size(0)}, context.options(at::kByte));
  const at::Tensor y = ops::embedding_rows(e.weight, e.ids, e.scale, -1, grad_rows, row_flags);
  const at::Tensor dy = context.randn(y.sizes().vec());
  OpBench op;
  op.bytes = 3 * e.row_bytes();  // dy; the rows of the gradient are read and written
  op.run = [=] { gradients({y}, {e.weight}, {dy}); };
  const auto library = [=] {
    return at::embedding_dense_backward(dy * e.scale, e.ids, e.weight.size(0), -1, false);
  };
  op.library.emplace_back("aten dense", [library] { library(); });
  op.deviation = [=] {
    grad_rows.zero_();  // runs add to it
    gradients({y}, {e.weight}, {dy});
    return deviation({grad_rows}, {library()});
  };
  return op;
}

/// The token table's gradient of a step, and the lists of two processes with the same tokens.
struct RowLists {
  explicit RowLists(const BenchContext& context)
      : table(at::zeros({context.rows(pi05::kVocabulary), context.width(pi05::kPrefixWidth)},
                        context.options(at::kBFloat16))),
        flags(at::zeros({table.size(0)}, context.options(at::kByte))),
        ids(at::randperm(table.size(0), context.options(at::kLong))
                .narrow(0, 0, context.rows(1900))),
        rows(at::zeros({2, context.rows(6400) + 1}, context.options(at::kInt))),
        values(at::zeros({2, context.rows(6400), table.size(1)}, table.options())) {
    table.index_copy_(0, ids, context.randn({ids.numel(), table.size(1)}));
    flags.index_fill_(0, ids, 1);
    for (const int64_t p : {0, 1}) pack(p);
  }
  void pack(int64_t list) const { ops::pack_rows(table, flags, rows[list], values[list], false); }
  at::Tensor used() const { return table.index_select(0, ids); }
  double row_bytes() const { return 2.0 * static_cast<double>(ids.numel() * table.size(1)); }
  at::Tensor table, flags, ids, rows, values;
};

OpBench pack_rows(const BenchContext& context) {
  const RowLists in(context);
  OpBench op;
  op.bytes = static_cast<double>(in.flags.numel()) + 2 * in.row_bytes();
  op.run = [=] { in.pack(0); };
  op.library.emplace_back("aten, rows known", [=] { in.used(); });
  return op;
}

OpBench sum_row_lists(const BenchContext& context) {
  const RowLists in(context);
  const at::Tensor sum = at::zeros(in.table.sizes(), in.table.options());
  const at::Tensor slots = at::zeros({2, sum.size(0)}, in.rows.options());
  OpBench op;
  op.bytes = 3 * in.row_bytes();
  op.run = [=] { ops::sum_row_lists(sum.view(-1), 0, in.rows, in.values, slots, 2, {}); };
  op.deviation = [=, run = op.run] {
    run();
    return deviation({sum.index_select(0, in.ids)}, {in.used()});
  };
  return op;
}

}  // namespace

std::vector<OpRow> position_rows() {
  std::vector<OpRow> rows;
  add_rope(rows, "prefix 18304x10x256", pi05::kPrefixRows);
  add_rope(rows, "expert 1600x10x256", pi05::kExpertRows);
  add_head_norm_rope(rows);
  add_permute(rows, "prefix 18304x2048", pi05::kPrefixRows, pi05::kPrefixWidth);
  // Keys or values of one layer of the expert's attention: those of the prefix and its own.
  add_permute(rows, "joint 19904x256", pi05::kPrefixRows + pi05::kExpertRows, pi05::kHeadSize);
  rows.push_back({"embedding_rows fwd", kEmbeddingShape, embedding_forward});
  rows.push_back({"embedding_rows bwd", kEmbeddingShape, embedding_backward});
  rows.push_back({"pack_rows", "1900 of 257152 x2048", pack_rows});
  rows.push_back({"sum_row_lists", "2 lists, 1900 of 257152 x2048", sum_row_lists});
  return rows;
}

}  // namespace longship::bench
