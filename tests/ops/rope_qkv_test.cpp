#include "ops/rope_qkv.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>

#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "base/error.h"
#include "op_support.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support

struct Shape {
  int64_t rows, heads, kv_heads, dim;
};

void PrintTo(const Shape& s, std::ostream* out) {
  *out << s.rows << " rows, heads " << s.heads << "+2x" << s.kv_heads << " of " << s.dim;
}

constexpr int64_t kTable = 23;

struct Tables {
  at::Tensor cos, sin, positions;
  Tables to(at::Device device) const {
    return {cos.to(device), sin.to(device), positions.to(device)};
  }
};

Tables tables(const Shape& s, at::ScalarType type) {
  const at::Tensor inverse =
      at::pow(at::Scalar(100.0), -at::arange(s.dim / 2, at::kDouble) / (s.dim / 2.0));
  const at::Tensor angle = at::arange(kTable, at::kDouble).unsqueeze(1) * inverse;
  return {at::cos(angle).to(type), at::sin(angle).to(type),
          at::randint(kTable, {s.rows}, at::TensorOptions(at::kInt))};
}

std::vector<at::Tensor> run(const Shape& s, const at::Tensor& qkv, const Tables& t,
                            const std::optional<at::Tensor>& rows_valid = std::nullopt) {
  const auto [q, k, v] =
      rope_qkv(qkv, t.cos, t.sin, t.positions, s.heads, s.kv_heads, s.dim, rows_valid);
  return {q, k, v};
}

/// The definition, written with the tensor library.
std::vector<at::Tensor> composite(const Shape& s, const at::Tensor& qkv, const Tables& t) {
  const auto parts = qkv.view({s.rows, s.heads + 2 * s.kv_heads, s.dim})
                         .split_with_sizes({s.heads + s.kv_heads, s.kv_heads}, 1);
  const at::Tensor c = at::index_select(t.cos, 0, t.positions).unsqueeze(1);
  const at::Tensor n = at::index_select(t.sin, 0, t.positions).unsqueeze(1);
  const auto halves = parts[0].chunk(2, -1);
  const at::Tensor rotated =
      at::cat({halves[0] * c - halves[1] * n, halves[1] * c + halves[0] * n}, -1);
  const auto qk = rotated.split_with_sizes({s.heads, s.kv_heads}, 1);
  return {qk[0], qk[1], parts[1]};
}

at::Tensor total(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& weights) {
  at::Tensor sum = (results[0] * weights[0]).sum();
  for (size_t i = 1; i < 3; ++i) sum = sum + (results[i] * weights[i]).sum();
  return sum;
}

std::vector<at::Tensor> random_heads(const Shape& s, at::ScalarType type) {
  return {random({s.rows, s.heads, s.dim}, type), random({s.rows, s.kv_heads, s.dim}, type),
          random({s.rows, s.kv_heads, s.dim}, type)};
}

class RopeQkvShapes : public ::testing::TestWithParam<Shape> {};

TEST_P(RopeQkvShapes, ForwardAndGradientMatchDefinition) {
  const Shape s = GetParam();
  const Tables t = tables(s, at::kDouble);
  const at::Tensor qkv =
      random({s.rows, (s.heads + 2 * s.kv_heads) * s.dim}).set_requires_grad(true);
  const at::Tensor theirs = leaf_on(qkv, at::kCPU);
  const auto ours = run(s, qkv, t), expected = composite(s, theirs, t);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(close(ours[i], expected[i])) << "result " << i;
  const auto weights = random_heads(s, at::kDouble);
  total(ours, weights).backward();
  total(expected, weights).backward();
  EXPECT_TRUE(close(qkv.grad(), theirs.grad()));
}

INSTANTIATE_TEST_SUITE_P(Shapes, RopeQkvShapes,
                         ::testing::Values(Shape{1, 1, 1, 2}, Shape{9, 8, 1, 16}, Shape{6, 2, 2, 6},
                                           Shape{5, 0, 1, 32}, Shape{7, 3, 1, 10}));

TEST(RopeQkv, NumericalGradientInFloat64) {
  const Shape s{4, 2, 1, 4};
  const Tables t = tables(s, at::kDouble);
  const at::Tensor qkv = random({s.rows, 16}).set_requires_grad(true);
  const auto weights = random_heads(s, at::kDouble);
  expect_numeric_gradients([&] { return total(run(s, qkv, t), weights); }, {qkv});
}

TEST(RopeQkv, BFloat16RoundsOnlyTheResult) {
  const Shape s{20, 2, 1, 32};
  const Tables t = tables(s, at::kFloat);
  const at::Tensor qkv = random({s.rows, 4 * 32}, at::kBFloat16);
  const auto ours = run(s, qkv, t), expected = composite(s, qkv.to(at::kFloat), t);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(ours[i].scalar_type(), at::kBFloat16);
    EXPECT_TRUE(close(ours[i], expected[i], 1e-6, 1.0 / 256)) << "result " << i;
  }
}

TEST(RopeQkv, UnusedResultsCountAsZero) {
  const Shape s{6, 2, 1, 8};
  const Tables t = tables(s, at::kDouble);
  for (size_t used = 0; used < 3; ++used) {
    const at::Tensor qkv = random({s.rows, 32}).set_requires_grad(true);
    const at::Tensor theirs = leaf_on(qkv, at::kCPU);
    const at::Tensor weight = random_heads(s, at::kDouble)[used];
    (run(s, qkv, t)[used] * weight).sum().backward();
    (composite(s, theirs, t)[used] * weight).sum().backward();
    EXPECT_TRUE(close(qkv.grad(), theirs.grad())) << "result " << used;
  }
}

const double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Rows past rows_valid: garbage in x, positions and gradients; zero out. On `device`.
void check_rows_valid_on(at::Device device, const Shape& s, at::ScalarType type) {
  const Tables clean = tables(s, at::kFloat);
  const int64_t width = (s.heads + 2 * s.kv_heads) * s.dim;
  const at::Tensor x0 = random({s.rows, width}, type);
  const auto weights = random_heads(s, type);
  for (const int32_t valid : {int32_t{0}, int32_t{3}, static_cast<int32_t>(s.rows)}) {
    const int64_t tail = s.rows - valid;
    Tables t = clean;
    t.positions = clean.positions.clone();
    t.positions.narrow(0, valid, tail).fill_(1 << 30);
    t = t.to(device);
    at::Tensor x = x0.clone();
    x.narrow(0, valid, tail).fill_(kNaN);
    x = leaf_on(x, device);
    const at::Tensor rows_valid = at::full({1}, valid, at::TensorOptions(at::kInt)).to(device);
    const auto results = run(s, x, t, rows_valid);
    const auto expected = run(s, x0, clean);
    std::vector<at::Tensor> gradients, clean_gradients;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(close(results[i].narrow(0, 0, valid), expected[i].narrow(0, 0, valid)));
      const at::Tensor rest = results[i].narrow(0, valid, tail).cpu();
      EXPECT_TRUE(same_bits(rest, at::zeros(rest.sizes(), rest.options())));
      clean_gradients.push_back(weights[i].clone());
      clean_gradients[i].narrow(0, valid, tail).zero_();
      gradients.push_back(weights[i].clone());
      gradients[i].narrow(0, valid, tail).fill_(kNaN);
    }
    torch::autograd::backward(
        {results[0], results[1], results[2]},
        {gradients[0].to(device), gradients[1].to(device), gradients[2].to(device)});
    const at::Tensor reference = leaf_on(x0, at::kCPU);
    const auto reference_results = run(s, reference, clean);
    torch::autograd::backward({reference_results[0], reference_results[1], reference_results[2]},
                              clean_gradients);
    EXPECT_TRUE(close(x.grad(), reference.grad())) << "valid " << valid;
    const at::Tensor rest = x.grad().narrow(0, valid, tail).cpu();
    EXPECT_TRUE(same_bits(rest, at::zeros(rest.sizes(), rest.options())));
  }
}

TEST(RopeQkv, RowsPastTheCountAreNeitherReadNorLeaked) {
  check_rows_valid_on(at::kCPU, Shape{8, 2, 1, 6}, at::kFloat);
  check_rows_valid_on(at::kCPU, Shape{8, 0, 1, 16}, at::kBFloat16);
}

TEST(RopeQkv, ZeroRowsAndMetaShapes) {
  const Shape s{0, 2, 1, 8};
  EXPECT_EQ(run(s, at::empty({0, 32}), tables(s, at::kFloat))[0].sizes(),
            at::IntArrayRef({0, 2, 8}));
  const Shape m{5, 0, 1, 8};
  const at::Tensor qkv = at::empty({5, 16}, at::TensorOptions(at::kMeta)).set_requires_grad(true);
  const auto results = run(m, qkv, tables(m, at::kFloat).to(at::kMeta));
  EXPECT_EQ(results[0].sizes(), at::IntArrayRef({5, 0, 8}));
  EXPECT_EQ(results[2].sizes(), at::IntArrayRef({5, 1, 8}));
  results[1].sum().backward();
  EXPECT_EQ(qkv.grad().sizes(), qkv.sizes());
}

TEST(RopeQkv, FaultsAreNamed) {
  const Shape s{4, 2, 1, 8};
  Tables t = tables(s, at::kFloat);
  EXPECT_THROW(run(s, at::empty({4, 24}), t), ShapeError);
  EXPECT_THROW(run(Shape{4, 1, 1, 7}, at::empty({4, 21}), t), ShapeError);
  t.positions[2].fill_(kTable);
  try {
    run(s, at::empty({4, 32}), t);
    FAIL() << "no error";
  } catch (const ShapeError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("position 23 of row 2"));
  }
}

TEST(RopeQkvGpu, MatchesCpuForwardAndBackward) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool shifted : {false, true}) {
      for (const Shape s :
           {Shape{1, 1, 1, 2}, Shape{33, 8, 1, 256}, Shape{700, 8, 1, 256}, Shape{8500, 3, 1, 256},
            Shape{100, 0, 1, 256}, Shape{65, 3, 2, 22}, Shape{40, 5, 1, 48}, Shape{0, 8, 1, 16}}) {
        const Tables t = tables(s, at::kFloat);
        const at::Tensor x = random({s.rows, (s.heads + 2 * s.kv_heads) * s.dim}, type);
        const auto weights = random_heads(s, type);
        std::vector<at::Tensor> results[2];
        for (const at::Device device : cpu_and_gpu()) {
          at::Tensor leaf = leaf_on(x, device);
          if (shifted) leaf = misaligned(leaf.detach()).set_requires_grad(true);
          auto& out = results[device.is_cuda()];
          out = run(s, leaf, t.to(device));
          std::vector<at::Tensor> gradients;
          for (const at::Tensor& w : weights) gradients.push_back(w.to(device));
          if (shifted) gradients[0] = misaligned(gradients[0]);
          // Strided views of one buffer, as attention hands them out.
          const at::Tensor both = at::cat({gradients[1], gradients[2]}, 1);
          torch::autograd::backward({out[0], out[1], out[2]},
                                    {gradients[0], both.narrow(1, 0, s.kv_heads),
                                     both.narrow(1, s.kv_heads, s.kv_heads)});
          out.push_back(leaf.grad());
        }
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_TRUE(close(results[1][i], results[0][i]))
              << "result " << i << ", " << ::testing::PrintToString(s) << " " << type;
        }
      }
    }
  }
}

TEST(RopeQkvGpu, UndefinedAndTransposedGradients) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const Shape s{50, 4, 1, 32};
  const Tables t = tables(s, at::kFloat);
  const at::Tensor x = random({s.rows, 6 * 32}, at::kFloat);
  const at::Tensor weight = random({s.rows, 32, 4}, at::kFloat);
  std::vector<at::Tensor> gradients;
  for (const at::Device device : cpu_and_gpu()) {
    const at::Tensor leaf = leaf_on(x, device);
    run(s, leaf, t.to(device))[0].backward(weight.to(device).transpose(1, 2));
    gradients.push_back(leaf.grad());
  }
  EXPECT_TRUE(close(gradients[1], gradients[0]));
}

TEST(RopeQkvGpu, RowsPastTheCountAreNeitherReadNorLeaked) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  check_rows_valid_on(at::kCUDA, Shape{40, 8, 1, 256}, at::kBFloat16);
  check_rows_valid_on(at::kCUDA, Shape{40, 0, 1, 256}, at::kBFloat16);
  check_rows_valid_on(at::kCUDA, Shape{12, 2, 1, 6}, at::kFloat);
}

TEST(RopeQkvGpu, SameBitsTwice) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const Shape s{300, 8, 1, 256};
  const Tables t = tables(s, at::kFloat).to(at::kCUDA);
  const at::Tensor x = random({s.rows, 10 * 256}, at::kBFloat16, at::kCUDA);
  const auto a = run(s, x, t), b = run(s, x, t);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(a[i], b[i]));
}

}  // namespace
}  // namespace longship::ops
