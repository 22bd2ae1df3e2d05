// Products of the linear layers, bf16 and FP8: what cuBLAS gives, the frame for everything else;
// and what stands around them.
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>

#include "bench/families.h"
#include "bench/groot_shapes.h"
#include "bench/paired.h"
#include "bench/pi05_shapes.h"
#include "ops/join_columns.h"

namespace longship::bench {
namespace {

struct Layer {
  const char* name;
  int64_t rows, in, out;
};

constexpr Layer kLayers[] = {
    {"prefix gate+up", pi05::kPrefixRows, pi05::kPrefixWidth, 2 * pi05::kPrefixMlp},
    {"prefix down", pi05::kPrefixRows, pi05::kPrefixMlp, pi05::kPrefixWidth},
    {"prefix q+k+v", pi05::kPrefixRows, pi05::kPrefixWidth, pi05::kPrefixQkv},
    {"prefix out", pi05::kPrefixRows, pi05::kPrefixWidth, pi05::kPrefixWidth},
    {"vision fc1", pi05::kVisionRows, pi05::kVisionWidth, pi05::kVisionMlp},
    {"vision fc2", pi05::kVisionRows, pi05::kVisionMlp, pi05::kVisionWidth},
    {"vision q+k+v", pi05::kVisionRows, pi05::kVisionWidth, 3 * pi05::kVisionWidth},
    {"vision out", pi05::kVisionRows, pi05::kVisionWidth, pi05::kVisionWidth},
    {"expert gate+up", pi05::kExpertRows, pi05::kExpertWidth, 2 * pi05::kExpertMlp},
    {"expert down", pi05::kExpertRows, pi05::kExpertMlp, pi05::kExpertWidth},
    {"expert q+k+v", pi05::kExpertRows, pi05::kExpertWidth, pi05::kPrefixQkv},
    {"expert out", pi05::kExpertRows, pi05::kPrefixWidth, pi05::kExpertWidth},
};

enum class Pass { kForward, kInputGradient, kWeightGradient };
constexpr std::pair<Pass, const char*> kPasses[] = {
    {Pass::kForward, "fwd"}, {Pass::kInputGradient, "dgrad"}, {Pass::kWeightGradient, "wgrad"}};

/// left [m, k] times right [n, k] transposed. FP8 units want both with k innermost.
struct Factors {
  at::Tensor left, right;
};

Factors make_factors(const Layer& layer, Pass pass, const BenchContext& context) {
  // 16 rows at least: FP8 products need multiples of 16 everywhere.
  const int64_t rows = (context.rows(layer.rows) + 15) / 16 * 16;
  const int64_t in = context.width(layer.in), out = context.width(layer.out);
  const at::Tensor x = context.randn({rows, in});
  const at::Tensor w = context.randn({out, in}, at::kBFloat16, 0.02);
  const at::Tensor dy = context.randn({rows, out});
  switch (pass) {
    case Pass::kForward:
      return {x, w};
    case Pass::kInputGradient:
      return {dy, w.t()};
    case Pass::kWeightGradient:
      break;
  }
  return {dy.t(), x.t()};
}

void set_work(OpBench& op, const Factors& f, double element_bytes) {
  const auto m = static_cast<double>(f.left.size(0)), k = static_cast<double>(f.left.size(1)),
             n = static_cast<double>(f.right.size(0));
  op.flops = 2 * m * n * k;
  op.bytes = element_bytes * (m * k + n * k) + 2 * m * n;
}

std::function<void()> bf16_product(const Factors& f) {
  return [f] { at::mm(f.left, f.right.t()); };
}

OpBench bf16(const Layer& layer, Pass pass, const BenchContext& context) {
  const Factors factors = make_factors(layer, pass, context);
  OpBench op;
  set_work(op, factors, 2);
  op.run = bf16_product(factors);
  return op;
}

OpBench fp8(const Layer& layer, Pass pass, const BenchContext& context) {
  const Factors factors = make_factors(layer, pass, context);
  const at::Tensor left = factors.left.contiguous().to(at::kFloat8_e4m3fn);
  const at::Tensor right = factors.right.contiguous().to(at::kFloat8_e4m3fn);
  const at::Tensor one = at::ones({}, context.options(at::kFloat));
  OpBench op;
  set_work(op, factors, 1);
  op.fp8 = true;
  op.run = [left, right, one] {
    at::_scaled_mm(left, right.t(), one, one, {}, {}, at::kBFloat16, /*use_fast_accum=*/true);
  };
  op.library.emplace_back("bf16 mm", bf16_product(factors));
  return op;
}

/// Gradients of queries, keys and values as one matrix, and that of their bias.
OpBench join(int64_t full_rows, const BenchContext& context) {
  std::vector<at::Tensor> parts;
  for (int i = 0; i < 3; ++i) {
    parts.push_back(context.randn({context.rows(full_rows), context.width(groot::kDitWidth)}));
  }
  const auto ours = [=] {
    const ops::JoinedColumns joined = ops::join_columns(parts, /*with_sums=*/true);
    return std::vector<at::Tensor>{joined.values, joined.sums};
  };
  const auto library = [=] {
    const at::Tensor values = at::cat(parts, 1);
    return std::vector<at::Tensor>{values, values.sum(0)};
  };
  OpBench op;
  op.bytes = 2 * 3 * bytes_of(parts[0]);
  op.run = [ours] { ours(); };
  op.library.emplace_back("aten", [library] { library(); });
  op.deviation = [=] { return deviation(ours(), library()); };
  return op;
}

}  // namespace

std::vector<OpRow> linear_rows() {
  std::vector<OpRow> rows;
  for (const auto& [shape, num_rows] :
       {std::pair{"dit 164x3x1536", groot::kSmallBatch * groot::kSmallActionTokens},
        {"dit 3264x3x1536", groot::kBatch * groot::kActionTokens}}) {
    rows.push_back({"join_columns", shape, [num_rows = num_rows](const BenchContext& context) {
                      return join(num_rows, context);
                    }});
  }
  for (const Layer& layer : kLayers) {
    const std::string shape =
        fmt::format("{} {}x{}->{}", layer.name, layer.rows, layer.in, layer.out);
    for (const auto& [pass, name] : kPasses) {
      rows.push_back({fmt::format("linear bf16 {}", name), shape,
                      [layer, pass = pass](const BenchContext& context) {
                        return bf16(layer, pass, context);
                      }});
      rows.push_back({fmt::format("linear fp8 {}", name), shape,
                      [layer, pass = pass](const BenchContext& context) {
                        return fp8(layer, pass, context);
                      }});
    }
  }
  return rows;
}

}  // namespace longship::bench
