#include "nn/halves.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace longship::nn {
namespace {

TEST(Halves, ValuesAndGradients) {
  const at::Tensor x = at::randn({3, 8}, at::kDouble).set_requires_grad(true);
  const auto [left, right] = halves(x);
  EXPECT_TRUE(left.equal(x.narrow(1, 0, 4)));
  EXPECT_TRUE(right.equal(x.narrow(1, 4, 4)));
  const at::Tensor a = at::randn({3, 4}, at::kDouble), b = at::randn({3, 4}, at::kDouble);
  (left * a + right * b).sum().backward();
  EXPECT_TRUE(x.grad().equal(at::cat({a, b}, 1)));
}

// Gradients that lie side by side are taken as they are, others are copied.
TEST(Halves, GradientsThatLieSideBySideAreNotCopied) {
  const at::Tensor x = at::randn({3, 8}).set_requires_grad(true);
  const at::Tensor both = at::randn({3, 8});
  const auto gradient_of = [&](const at::Tensor& left_grad, const at::Tensor& right_grad) {
    at::Tensor seen;
    const at::Tensor through = x * 1;
    through.register_hook([&](const at::Tensor& grad) { seen = grad; });
    const auto [left, right] = halves(through);
    left.register_hook([&](const at::Tensor&) { return left_grad; });
    right.register_hook([&](const at::Tensor&) { return right_grad; });
    (left.sum() + right.sum()).backward();
    return seen;
  };
  const at::Tensor joined = gradient_of(both.narrow(1, 0, 4), both.narrow(1, 4, 4));
  EXPECT_TRUE(joined.equal(both));
  EXPECT_EQ(joined.data_ptr(), both.data_ptr());
  const at::Tensor swapped = gradient_of(both.narrow(1, 4, 4), both.narrow(1, 0, 4));
  EXPECT_TRUE(swapped.equal(at::cat({both.narrow(1, 4, 4), both.narrow(1, 0, 4)}, 1)));
  EXPECT_NE(swapped.data_ptr(), both.data_ptr());
}

TEST(Halves, AnOddNumberOfColumnsIsRefused) {
  EXPECT_THROW(halves(at::randn({3, 7})), ShapeError);
  EXPECT_THROW(halves(at::randn({8})), ShapeError);
}

}  // namespace
}  // namespace longship::nn
