#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "base/error.h"
#include "op_support.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

at::Tensor count(int32_t value, at::Device device = at::kCPU) {
  return at::full({1}, value, at::TensorOptions(at::kInt)).to(device);
}

/// Rows from `first` on are zero, the others those of `expected`.
void expect_zero_tail(const at::Tensor& x, const at::Tensor& expected, int64_t first) {
  const int64_t rest = x.size(0) - first;
  EXPECT_TRUE(same_bits(x.narrow(0, 0, first), expected.narrow(0, 0, first)));
  EXPECT_TRUE(same_bits(x.narrow(0, first, rest), at::zeros_like(expected).narrow(0, first, rest)));
}

TEST(ZeroTail, ClearsInPlaceWithoutReading) {
  for (const int32_t valid : {0, 2, 5}) {
    const at::Tensor before = random({5, 2, 3}, at::kFloat);
    at::Tensor x = before.clone();
    x.narrow(0, valid, 5 - valid).fill_(kNaN);
    const auto version = x._version();
    const at::Tensor y = zero_tail_(x, count(valid));
    EXPECT_TRUE(y.is_same(x));
    EXPECT_GT(x._version(), version);
    expect_zero_tail(x, before, valid);
  }
}

TEST(ZeroTail, CountIsClamped) {
  const at::Tensor before = random({4, 3}, at::kFloat);
  at::Tensor x = before.clone();
  zero_tail_(x, count(9));
  expect_zero_tail(x, before, 4);
  zero_tail_(x, count(-1));
  expect_zero_tail(x, before, 0);
}

TEST(ZeroTail, GradientOfTheTailIsZero) {
  const at::Tensor x = random({6, 3}).set_requires_grad(true);
  const at::Tensor weight = random({6, 3});
  at::Tensor poisoned = weight.clone();
  poisoned.narrow(0, 4, 2).fill_(kNaN);
  const at::Tensor fresh = x * 2.0;
  const at::Tensor y = zero_tail(fresh, count(4));
  EXPECT_TRUE(y.is_same(fresh));
  y.backward(poisoned);
  expect_zero_tail(x.grad(), weight * 2.0, 4);
  // The caller's gradient is not ours to change.
  EXPECT_TRUE(poisoned.narrow(0, 4, 2).isnan().all().item<bool>());
}

TEST(ZeroTail, AGradientThatNobodyElseHoldsIsClearedInPlace) {
  const at::Tensor x = random({5, 2}).set_requires_grad(true);
  const void* before = nullptr;
  const void* after = nullptr;
  const at::Tensor fresh = x * 1.0;
  fresh.register_hook([&](const at::Tensor& gradient) { after = gradient.const_data_ptr(); });
  const at::Tensor y = zero_tail(fresh, count(2));
  y.register_hook([&](const at::Tensor& gradient) { before = gradient.const_data_ptr(); });
  (y * random({5, 2})).sum().backward();
  EXPECT_NE(before, nullptr);
  EXPECT_EQ(before, after);
}

TEST(ZeroTail, SharedGradientsAreCopied) {
  // The sum hands one and the same gradient tensor to both of its arguments.
  const at::Tensor a = random({5, 2}).set_requires_grad(true);
  const at::Tensor b = random({5, 2}).set_requires_grad(true);
  const at::Tensor weight = random({5, 2});
  ((zero_tail(a * 1.0, count(2)) + b * 1.0) * weight).sum().backward();
  expect_zero_tail(a.grad(), weight, 2);
  EXPECT_TRUE(same_bits(b.grad(), weight));
}

TEST(ZeroTail, ExpandedGradientsWork) {
  const at::Tensor x = random({5, 2}).set_requires_grad(true);
  zero_tail(x * 1.0, count(3)).sum().backward();
  expect_zero_tail(x.grad(), at::full({5, 2}, 1.0, x.options()), 3);
}

TEST(ZeroTail, NumericalGradientInFloat64) {
  const at::Tensor x = random({4, 3}).set_requires_grad(true);
  const at::Tensor weight = random({4, 3});
  expect_numeric_gradients(
      [&] {
        const at::Tensor y = zero_tail(x * x, count(3));
        return (y * y * weight).sum();
      },
      {x});
}

TEST(ZeroTail, LeafIsRefusedBeforeItIsChanged) {
  const at::Tensor x = random({4, 3}).set_requires_grad(true);
  const at::Tensor before = x.detach().clone();
  EXPECT_THROW(zero_tail_(x, count(1)), InternalError);
  EXPECT_TRUE(same_bits(x, before));
}

TEST(ZeroTail, FaultsAndMeta) {
  EXPECT_THROW(zero_tail_(at::zeros({4, 6}).t(), count(1)), ShapeError);
  EXPECT_THROW(zero_tail_(at::zeros({4, 6}), at::zeros({1})), ShapeError);
  const at::Tensor x = at::empty({4, 6}, at::TensorOptions(at::kMeta));
  EXPECT_EQ(zero_tail_(x, count(1, at::kMeta)).sizes(), x.sizes());
}

TEST(ZeroTailGpu, ClearsTheTailOfAnyLayout) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kByte}) {
    for (const int64_t width : {1, 3, 8, 33, 2048}) {
      for (const int32_t valid : {0, 1, 7, 64, 100, 1000}) {
        const at::Tensor before = (random({64, width}, at::kFloat) * 50.0 + 100.0).to(type);
        for (const bool shifted : {false, true}) {
          at::Tensor x = before.to(at::kCUDA);
          if (shifted) x = misaligned(x);
          zero_tail_(x, count(valid, at::kCUDA));
          expect_zero_tail(x.cpu(), before, std::min<int64_t>(valid, 64));
        }
      }
    }
  }
}

TEST(ZeroTailGpu, GradientOfTheTailIsZero) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Tensor x = random({60, 32}, at::kBFloat16, at::kCUDA).set_requires_grad(true);
  at::Tensor gradient = random({60, 32}, at::kBFloat16, at::kCUDA);
  const at::Tensor expected = gradient.cpu();
  gradient.narrow(0, 50, 10).fill_(kNaN);
  zero_tail(x * 1.0, count(50, at::kCUDA)).backward(gradient);
  expect_zero_tail(x.grad().cpu(), expected, 50);
}

struct Permutation {
  at::Tensor index, inverse;
};

/// Takes `taken` of `rows` rows in random order.
Permutation permutation(int64_t rows, int64_t taken) {
  const auto ints = at::TensorOptions(at::kLong);
  Permutation p{at::randperm(rows, ints).narrow(0, 0, taken).contiguous(),
                at::full({rows}, -1, ints)};
  p.inverse.index_copy_(0, p.index, at::arange(taken, ints));
  return p;
}

TEST(PermuteRows, ForwardAndGradientMatchIndexing) {
  for (const int64_t taken : {0, 1, 5, 9}) {
    const Permutation p = permutation(9, taken);
    const at::Tensor x = random({9, 2, 3}).set_requires_grad(true);
    const at::Tensor theirs = leaf_on(x, at::kCPU);
    const at::Tensor weight = random({taken, 2, 3});
    const at::Tensor y = permute_rows(x, p.index, p.inverse);
    const at::Tensor expected = at::index_select(theirs, 0, p.index);
    EXPECT_TRUE(same_bits(y, expected));
    (y * weight).sum().backward();
    (expected * weight).sum().backward();
    EXPECT_TRUE(same_bits(x.grad(), theirs.grad()));
  }
}

TEST(PermuteRows, NegativeIndexGivesAZeroRow) {
  const at::Tensor x = random({2, 3}, at::kFloat);
  const auto ints = at::TensorOptions(at::kLong);
  const at::Tensor y = permute_rows(x, at::tensor({1, -1, 0}, ints), at::tensor({2, 0}, ints));
  EXPECT_TRUE(same_bits(y[0], x[1]));
  EXPECT_TRUE(same_bits(y[1], at::zeros({3})));
  EXPECT_TRUE(same_bits(y[2], x[0]));
}

TEST(PermuteRows, NumericalGradientInFloat64) {
  const Permutation p = permutation(5, 3);
  const at::Tensor x = random({5, 2}).set_requires_grad(true);
  const at::Tensor weight = random({3, 2});
  expect_numeric_gradients([&] { return (permute_rows(x, p.index, p.inverse) * weight).sum(); },
                           {x});
}

TEST(PermuteRows, FaultsAndMeta) {
  const auto ints = at::TensorOptions(at::kLong);
  EXPECT_THROW(permute_rows(at::zeros({3, 2}), at::tensor({0, 3}, ints), at::zeros({3}, ints)),
               ShapeError);
  EXPECT_THROW(permute_rows(at::zeros({3, 2}), at::tensor({0, 1}, ints), at::zeros({2}, ints)),
               ShapeError);
  const auto meta = at::TensorOptions(at::kMeta);
  const at::Tensor x = at::empty({6, 2, 4}, meta).set_requires_grad(true);
  const at::Tensor y =
      permute_rows(x, at::empty({4}, meta.dtype(at::kLong)), at::empty({6}, meta.dtype(at::kLong)));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({4, 2, 4}));
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
}

TEST(PermuteRowsGpu, MatchesCpuForwardAndBackward) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {1, 2, 3, 4, 8, 33, 256}) {
      for (const int64_t taken : {0, 300, 500}) {
        for (const bool shifted : {false, true}) {
          const Permutation p = permutation(500, taken);
          const at::Tensor x = random({500, width}, type), dy = random({taken, width}, type);
          std::vector<at::Tensor> results[2];
          for (const at::Device device : cpu_and_gpu()) {
            at::Tensor leaf = leaf_on(x, device);
            if (shifted) leaf = misaligned(leaf.detach()).set_requires_grad(true);
            const at::Tensor y = permute_rows(leaf, p.index.to(device), p.inverse.to(device));
            y.backward(dy.to(device));
            results[device.is_cuda()] = {y, leaf.grad()};
          }
          EXPECT_TRUE(same_bits(results[0][0], results[1][0])) << width << " " << taken;
          EXPECT_TRUE(same_bits(results[0][1], results[1][1])) << width << " " << taken;
        }
      }
    }
  }
}

}  // namespace
}  // namespace longship::ops
