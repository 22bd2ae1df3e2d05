#include "ops/embedding_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "base/error.h"
#include "op_support.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support

constexpr int64_t kNoPad = -1;

at::Tensor ids_of(std::vector<int64_t> values) {
  return at::tensor(values, at::TensorOptions(at::kLong));
}

at::Tensor flags_for(int64_t vocab, at::Device device = at::kCPU) {
  return at::zeros({vocab}, at::TensorOptions(device).dtype(at::kByte));
}

TEST(EmbeddingRows, ForwardMatchesDefinition) {
  const at::Tensor weight = random({11, 5}, at::kFloat);
  const at::Tensor ids = at::randint(11, {30}, at::TensorOptions(at::kLong));
  EXPECT_TRUE(
      close(embedding_rows(weight, ids, 3.5, kNoPad, {}, {}), at::embedding(weight, ids) * 3.5));
}

TEST(EmbeddingRows, NegativeIdsGiveZeroRows) {
  const at::Tensor weight = random({4, 3}, at::kFloat);
  const at::Tensor y = embedding_rows(weight, ids_of({2, -1, 0, -7}), 1.0, kNoPad, {}, {});
  EXPECT_TRUE(same_bits(y[0], weight[2]));
  EXPECT_TRUE(same_bits(y[1], at::zeros({3})));
  EXPECT_TRUE(same_bits(y[3], at::zeros({3})));
}

TEST(EmbeddingRows, ProductIsRoundedOnce) {
  const at::Tensor weight = random({9, 40}, at::kBFloat16);
  const at::Tensor ids = ids_of({0, 3, 8});
  const at::Tensor y = embedding_rows(weight, ids, std::sqrt(2048.0), kNoPad, {}, {});
  const at::Tensor expected =
      (at::embedding(weight.to(at::kFloat), ids) * static_cast<float>(std::sqrt(2048.0)))
          .to(at::kBFloat16);
  EXPECT_TRUE(same_bits(y, expected));
}

TEST(EmbeddingRows, BackwardAddsIntoTheGivenRows) {
  const at::Tensor weight = random({7, 4}).set_requires_grad(true);
  const at::Tensor ids = ids_of({5, 0, 5, -1, 2, 5, 0});
  const at::Tensor before = random({7, 4});
  at::Tensor grad_rows = before.clone();
  const at::Tensor flags = flags_for(7);
  const at::Tensor dy = random({7, 4});
  // 0 is the padding id: it has a row in forward and no gradient.
  const at::Tensor y = embedding_rows(weight, ids, 2.0, 0, grad_rows, flags);
  EXPECT_TRUE(close(y[1], weight[0] * 2.0));
  EXPECT_TRUE(y.requires_grad());
  y.backward(dy);
  EXPECT_FALSE(weight.grad().defined());
  at::Tensor expected = before.clone();
  expected[5] += 2.0 * (dy[0] + dy[2] + dy[5]);
  expected[2] += 2.0 * dy[4];
  EXPECT_TRUE(close(grad_rows, expected));
  EXPECT_TRUE(same_bits(flags, at::tensor({0, 0, 1, 0, 0, 1, 0}, at::TensorOptions(at::kByte))));
}

TEST(EmbeddingRows, GradientsOfSeveralMicroBatchesAddUp) {
  const at::Tensor weight = random({6, 3}).set_requires_grad(true);
  at::Tensor grad_rows = at::zeros({6, 3}, weight.options());
  const at::Tensor flags = flags_for(6);
  const at::Tensor first = random({2, 3}), second = random({2, 3});
  // Both forwards before the first backward, as recompute does it.
  const at::Tensor a = embedding_rows(weight, ids_of({1, 4}), 1.0, kNoPad, grad_rows, flags);
  const at::Tensor b = embedding_rows(weight, ids_of({4, 2}), 1.0, kNoPad, grad_rows, flags);
  a.backward(first);
  b.backward(second);
  EXPECT_TRUE(close(grad_rows[4], first[1] + second[0]));
  EXPECT_EQ(flags.sum().item<int64_t>(), 3);
}

TEST(EmbeddingRows, NumericalGradientInFloat64) {
  at::Tensor weight = random({5, 3}).set_requires_grad(true);
  const at::Tensor ids = ids_of({4, 1, 1, -1, 0, 4});
  const at::Tensor coefficients = random({6, 3});
  at::Tensor grad_rows = at::zeros({5, 3}, weight.options().requires_grad(false));
  const auto value = [&] {
    return (embedding_rows(weight, ids, 1.5, kNoPad, grad_rows, flags_for(5)) * coefficients).sum();
  };
  value().backward();
  const at::Tensor gradient = grad_rows.clone();
  constexpr double kStep = 1e-6;
  at::Tensor data = weight.detach();
  for (int64_t i = 0; i < data.numel(); ++i) {
    double* element = data.mutable_data_ptr<double>() + i;
    const double saved = *element;
    *element = saved + kStep;
    const double up = value().item<double>();
    *element = saved - kStep;
    const double down = value().item<double>();
    *element = saved;
    EXPECT_NEAR(gradient.const_data_ptr<double>()[i], (up - down) / (2 * kStep), 1e-5);
  }
}

TEST(EmbeddingRows, GradientBuffersAreAskedForOnlyWhereNeeded) {
  const at::Tensor weight = random({4, 3}, at::kFloat).set_requires_grad(true);
  EXPECT_THROW(embedding_rows(weight, ids_of({1}), 1.0, kNoPad, {}, {}), InternalError);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(embedding_rows(weight, ids_of({1}), 1.0, kNoPad, {}, {}).requires_grad());
}

TEST(EmbeddingRows, FaultsAreNamed) {
  const at::Tensor weight = random({4, 3}, at::kFloat);
  try {
    embedding_rows(weight, ids_of({1, 4}), 1.0, kNoPad, {}, {});
    FAIL() << "no error";
  } catch (const ShapeError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("ids[1] = 4 in a table of 4 rows"));
  }
  const at::Tensor leaf = leaf_on(weight, at::kCPU);
  EXPECT_THROW(embedding_rows(leaf, ids_of({1}), 1.0, kNoPad, at::zeros({4, 2}), flags_for(4)),
               ShapeError);
}

TEST(EmbeddingRows, ZeroRowsAndMetaShapes) {
  const at::Tensor weight = random({4, 3}, at::kFloat).set_requires_grad(true);
  at::Tensor grad_rows = at::zeros({4, 3});
  const at::Tensor y = embedding_rows(weight, ids_of({}), 1.0, kNoPad, grad_rows, flags_for(4));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 3}));
  y.sum().backward();
  EXPECT_TRUE(same_bits(grad_rows, at::zeros({4, 3})));
  const auto meta = at::TensorOptions(at::kMeta);
  const at::Tensor z = embedding_rows(at::empty({257152, 2048}, meta),
                                      at::empty({60}, meta.dtype(at::kLong)), 1.0, 0, {}, {});
  EXPECT_EQ(z.sizes(), at::IntArrayRef({60, 2048}));
}

struct GpuCase {
  int64_t vocab, num_ids, width;
  at::ScalarType type, grad_type;
  bool shifted;
};

/// y, grad_rows, row_flags.
std::vector<at::Tensor> run(const GpuCase& c, const at::Tensor& weight, const at::Tensor& ids,
                            const at::Tensor& before, const at::Tensor& dy, at::Device device) {
  at::Tensor leaf = leaf_on(weight, device), gradient = dy.to(device);
  if (c.shifted) {
    leaf = misaligned(leaf.detach()).set_requires_grad(true);
    gradient = misaligned(gradient);
  }
  at::Tensor grad_rows = before.to(device, before.scalar_type(), false, true);
  const at::Tensor flags = flags_for(c.vocab, device);
  const at::Tensor y = embedding_rows(leaf, ids.to(device), 1.5, 3, grad_rows, flags);
  y.backward(gradient);
  return {y.detach(), grad_rows, flags};
}

TEST(EmbeddingRowsGpu, MatchesCpuForwardAndBackward) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  using enum at::ScalarType;
  for (const GpuCase& c : {GpuCase{11, 1, 1, Float, Float, false},
                           {50, 40, 5, Float, Float, false},
                           {6000, 1920, 2048, BFloat16, Float, false},
                           {6000, 1920, 2048, BFloat16, BFloat16, false},
                           {9, 3000, 256, BFloat16, Float, false},
                           {30, 700, 33, BFloat16, BFloat16, false},
                           {40, 300, 64, Float, Float, true},
                           {3000, 8192, 264, BFloat16, Float, true},
                           {5, 2500, 40, Float, BFloat16, false},
                           {20, 0, 16, BFloat16, Float, false}}) {
    const at::Tensor weight = random({c.vocab, c.width}, c.type);
    at::Tensor ids = at::randint(c.vocab, {c.num_ids}, at::TensorOptions(at::kLong));
    for (int64_t i = 5; i < c.num_ids; i += 11) ids[i] = -1;
    // One id some hundred times, as in prompts; the padding id is 3.
    for (int64_t i = 2; i < c.num_ids; i += 4) ids[i] = c.vocab - 1;
    const at::Tensor before = random({c.vocab, c.width}, c.grad_type);
    const at::Tensor dy = random({c.num_ids, c.width}, c.type);
    const auto expected = run(c, weight, ids, before, dy, at::kCPU);
    const auto got = run(c, weight, ids, before, dy, at::kCUDA);
    const auto again = run(c, weight, ids, before, dy, at::kCUDA);
    // Sums of up to num_ids values in another order.
    const double atol = c.grad_type == Float ? 1e-5 * std::sqrt(c.num_ids + 1.0) : 0.0;
    EXPECT_TRUE(close(got[0], expected[0])) << c.num_ids << "x" << c.width;
    EXPECT_TRUE(close(got[1], expected[1], atol)) << c.num_ids << "x" << c.width;
    EXPECT_TRUE(same_bits(got[2], expected[2])) << c.num_ids << "x" << c.width;
    EXPECT_TRUE(same_bits(got[1], again[1])) << c.num_ids << "x" << c.width;
  }
}

TEST(EmbeddingRowsGpu, RowsThatAreNotUsedAreNotTouched) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const GpuCase c{100, 64, 128, at::kBFloat16, at::kFloat, false};
  const at::Tensor weight = random({100, 128}, c.type), before = random({100, 128}, c.grad_type);
  const at::Tensor ids = at::randint(10, {64}, at::TensorOptions(at::kLong));
  const auto got = run(c, weight, ids, before, random({64, 128}, c.type), at::kCUDA);
  EXPECT_TRUE(same_bits(got[1].narrow(0, 10, 90), before.narrow(0, 10, 90)));
  EXPECT_TRUE(same_bits(got[1][3], before[3]));
  EXPECT_EQ(got[2].narrow(0, 10, 90).sum().item<int64_t>(), 0);
}

TEST(EmbeddingRowsGpu, IdsOutsideTheTableGiveNaN) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Tensor weight = random({8, 16}, at::kBFloat16, at::kCUDA);
  const at::Tensor y =
      embedding_rows(weight, ids_of({1, 8}).to(at::kCUDA), 1.0, kNoPad, {}, {}).cpu();
  EXPECT_TRUE(same_bits(y[0], weight[1]));
  EXPECT_TRUE(y[1].isnan().all().item<bool>());
}

}  // namespace
}  // namespace longship::ops
