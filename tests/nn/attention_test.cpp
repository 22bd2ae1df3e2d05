#include "nn/attention.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "nn/siglip.h"
#include "nn/tensor_math.h"

namespace longship::nn {
namespace {

at::Tensor wave(std::vector<int64_t> shape, double phase) {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return (at::arange(n, at::kDouble) * 0.7 + phase).sin().view(shape).to(at::kFloat);
}

/// Plain softmax attention, heads repeated explicitly.
at::Tensor naive(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const at::Tensor& mask) {
  const int64_t repeat = q.size(2) / k.size(2);
  const at::Tensor kk = k.repeat_interleave(repeat, 2).transpose(1, 2),
                   vv = v.repeat_interleave(repeat, 2).transpose(1, 2);
  at::Tensor scores = at::matmul(q.transpose(1, 2), kk.transpose(2, 3))
                          .mul(1 / std::sqrt(static_cast<double>(q.size(3))));
  if (mask.defined()) scores = scores.add(mask);
  return at::matmul(at::softmax(scores, -1), vv).transpose(1, 2).flatten(2);
}

TEST(Attention, MatchesTheFormulaForEveryGrouping) {
  for (const int64_t groups : {1, 2, 4, 8}) {
    const at::Tensor q = wave({2, 5, 8, 6}, 0.1), k = wave({2, 7, groups, 6}, 0.5),
                     v = wave({2, 7, groups, 6}, 1.5);
    EXPECT_TRUE(at::allclose(attention(q, k, v), naive(q, k, v, {}), 1e-5, 1e-6))
        << groups << " key heads";
  }
}

TEST(Attention, MaskedKeysHaveNoInfluenceAtAll) {
  const at::Tensor q = wave({2, 3, 8, 4}, 0.1), k = wave({2, 6, 2, 4}, 0.5),
                   v = wave({2, 6, 2, 4}, 1.5);
  at::Tensor mask = at::zeros({2, 1, 1, 6});
  mask.narrow(3, 4, 2).fill_(kMasked);
  at::Tensor other_k = k.clone(), other_v = v.clone();
  other_k.narrow(1, 4, 2).fill_(50);
  other_v.narrow(1, 4, 2).fill_(-1000);
  const at::Tensor cut = attention(q, k.narrow(1, 0, 4), v.narrow(1, 0, 4));
  EXPECT_TRUE(at::allclose(attention(q, k, v, mask), cut, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(attention(q, other_k, other_v, mask), cut, 1e-5, 1e-6));
}

TEST(Attention, FullyMaskedRowStaysFiniteWithItsGradient) {
  const at::Tensor q = wave({1, 2, 8, 4}, 0.1).requires_grad_(true);
  const at::Tensor k = wave({1, 3, 1, 4}, 0.5).requires_grad_(true),
                   v = wave({1, 3, 1, 4}, 1.5).requires_grad_(true);
  const at::Tensor mask = at::zeros({1, 1, 1, 3}).fill_(kMasked);
  const at::Tensor y = attention(q, k, v, mask);
  EXPECT_TRUE(at::isfinite(y).all().item<bool>());
  y.sum().backward();
  EXPECT_TRUE(at::isfinite(q.grad()).all().item<bool>());
  EXPECT_TRUE(at::isfinite(k.grad()).all().item<bool>());
}

TEST(Siglip, PatchProductIgnoresSurplusPixels) {
  SiglipTower tower(
      {.image_size = 9, .patch_size = 4, .width = 4, .depth = 1, .num_heads = 2, .mlp_dim = 5});
  tower.materialise(at::kCPU, [](std::string_view) { return at::kFloat; });
  tower.for_each_parameter(
      [](const std::string&, at::Tensor& p) { p.copy_(wave(p.sizes().vec(), 0.3)); });
  at::Tensor image = wave({1, 3, 9, 9}, 0.0);
  const at::Tensor y = tower.embed(image, {});
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{1, 4, 4}));
  at::Tensor changed = image.clone();
  changed.narrow(2, 8, 1).fill_(9);
  changed.narrow(3, 8, 1).fill_(-9);
  EXPECT_TRUE(at::allclose(tower.embed(changed, {}), y));
  // Patch (row 1, column 0), channel-major.
  const auto parameters = tower.named_parameters();
  const at::Tensor patch = image[0].narrow(1, 4, 4).narrow(2, 0, 4).flatten();
  const at::Tensor want = at::matmul(parameters[0].second.flatten(1), patch)
                              .add(parameters[1].second)
                              .add(parameters[2].second[2]);
  EXPECT_TRUE(at::allclose(y[0][2], want, 1e-4, 1e-5));
}

TEST(Siglip, WrongPictureSizeNamesTheExpectedOne) {
  SiglipTower tower(
      {.image_size = 8, .patch_size = 4, .width = 4, .depth = 1, .num_heads = 2, .mlp_dim = 5});
  try {
    tower.embed(at::zeros({1, 3, 8, 7}), {});
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("[V, 3, 8, 8]"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace longship::nn
