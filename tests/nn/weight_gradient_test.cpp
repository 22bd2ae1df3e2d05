#include "nn/weight_gradient.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "nn/linear.h"
#include "nn/stacked_linear.h"
#include "ops/gradient_place.h"

namespace longship::nn {
namespace {

// One layer alone and two that are multiplied as one, with room for their gradients behind each
// other in one buffer.
class WeightGradient : public ::testing::Test {
 protected:
  WeightGradient()
      : buffer_(at::full_like(at::zeros({6 * 6 + 4 * 6 + 2 * 6}), 77)),
        weights_(at::randn({6, 6})),
        layer_(at::randn({6, 6}).requires_grad_()),
        bias_(at::randn({6}).requires_grad_()),
        first_(weights_.narrow(0, 0, 4).detach().requires_grad_()),
        second_(weights_.narrow(0, 4, 2).detach().requires_grad_()),
        x_(at::randn({5, 6}).requires_grad_()) {}
  void offer() { offers_.offer(places()); }
  std::vector<ops::GradientPlace> places() const {
    return {{layer_.detach(), place(0, 6)},
            {first_.detach(), place(36, 4)},
            {second_.detach(), place(60, 2)}};
  }
  at::Tensor place(int64_t offset, int64_t rows) const {
    return buffer_.narrow(0, offset, rows * 6).view({rows, 6});
  }
  // The gradients of `loss`, which are dropped from the leaves.
  std::vector<at::Tensor> gradients(const at::Tensor& loss) {
    loss.backward();
    std::vector<at::Tensor> out;
    for (at::Tensor* leaf : {&layer_, &first_, &second_, &bias_, &x_}) {
      out.push_back(leaf->grad());
      leaf->mutable_grad() = at::Tensor();
    }
    return out;
  }
  at::Tensor loss() {
    const at::Tensor hidden = nn::linear(x_, layer_, bias_).tanh();
    return stacked_linear(hidden, {first_, second_}).square().sum();
  }
  static void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i].defined(), b[i].defined()) << i;
      EXPECT_TRUE(!a[i].defined() || at::equal(a[i], b[i])) << i;
    }
  }

  ops::GradientPlaces offers_;
  at::Tensor buffer_, weights_, layer_, bias_, first_, second_, x_;
};

TEST_F(WeightGradient, LiesInItsPlaceWithTheSameBits) {
  const auto plain = gradients(loss());
  offer();
  const auto placed = gradients(loss());
  expect_same(placed, plain);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(placed[i].data_ptr(), places()[i].place.data_ptr()) << i;
  }
  EXPECT_TRUE(at::equal(place(36, 6), at::cat({plain[1], plain[2]})));
}

// A place serves once: terms that follow are added to the first by autograd.
TEST_F(WeightGradient, OfAWeightThatIsUsedTwice) {
  const auto twice = [&] {
    const at::Tensor hidden =
        nn::linear(nn::linear(x_, layer_, bias_).tanh(), layer_, bias_).tanh();
    return stacked_linear(hidden, {first_, second_}).square().sum() +
           stacked_linear(hidden.neg(), {first_, second_}).tanh().sum();
  };
  const auto plain = gradients(twice());
  offer();
  expect_same(gradients(twice()), plain);
  expect_same(gradients(twice()), plain);  // all are taken
}

TEST_F(WeightGradient, WithoutAFittingPlaceIsAsBefore) {
  const auto plain = gradients(loss());
  const at::Tensor untouched = buffer_.clone();
  // Of one of two that are multiplied as one; apart from each other; in another order.
  for (const auto& offered : {std::vector<ops::GradientPlace>{places()[1]},
                              std::vector<ops::GradientPlace>{{first_.detach(), place(0, 4)},
                                                              {second_.detach(), place(60, 2)}},
                              std::vector<ops::GradientPlace>{{first_.detach(), place(48, 4)},
                                                              {second_.detach(), place(36, 2)}}}) {
    offers_.offer(offered);
    expect_same(gradients(loss()), plain);
    EXPECT_TRUE(at::equal(buffer_, untouched));
  }
  // Another's end of its offers changes nothing; the owner's does. Places of two buffers that
  // happen to be neighbours are no place for two weights.
  offer();
  ops::GradientPlaces other;
  other.withdraw();
  EXPECT_EQ(ops::take_gradient_place(layer_).data_ptr(), buffer_.data_ptr());
  offers_.withdraw();
  EXPECT_FALSE(ops::take_gradient_place(layer_).defined());
  expect_same(gradients(loss()), plain);
  EXPECT_TRUE(at::equal(buffer_, untouched));
}

// Inputs of more dimensions, weights without bias, inputs that need no gradient.
TEST_F(WeightGradient, OfOtherShapes) {
  const auto other = [&] {
    return nn::linear(x_.detach().view({1, 5, 6}), layer_).square().sum() +
           nn::linear(x_, first_).sum();
  };
  const auto plain = gradients(other());
  offer();
  expect_same(gradients(other()), plain);
}

TEST_F(WeightGradient, PlacesThatDoNotFitAreRefused) {
  EXPECT_THROW(offers_.offer({{layer_.detach(), place(0, 4)}}), InternalError);
  EXPECT_THROW(offers_.offer({{layer_.detach(), place(0, 6).to(at::kDouble)}}), InternalError);
  EXPECT_THROW(offers_.offer({{layer_.detach(), place(0, 6).t()}}), InternalError);
}

}  // namespace
}  // namespace longship::nn
