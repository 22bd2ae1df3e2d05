#include "nn/stacked_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>

#include "nn/linear.h"
#include "nn/module.h"

namespace longship::nn {
namespace {

class Projections : public Module {
 public:
  explicit Projections(bool stacked) : a(6, 4, true), b(6, 2, true) {
    register_child("a", a);
    register_child("b", b);
    if (stacked) {
      register_stack({&a.weight, &b.weight});
      register_stack({&a.bias, &b.bias});
    }
    materialise(at::kCPU, [](std::string_view) { return at::kDouble; });
    for_each_parameter([](const std::string&, at::Tensor& t) {
      t.copy_(at::randn(t.sizes(), at::kDouble));
      t.set_requires_grad(true);
    });
  }
  Linear a, b;
};

TEST(StackedLinear, StacksAreViewsOfOneAllocation) {
  const Projections module(true);
  ASSERT_TRUE(is_stacked({module.a.weight, module.b.weight}));
  const at::Tensor rows = stack_rows({module.a.weight, module.b.weight});
  EXPECT_EQ(rows.data_ptr(), module.a.weight.data_ptr());
  EXPECT_TRUE(at::equal(rows, at::cat({module.a.weight, module.b.weight})));
  EXPECT_FALSE(is_stacked({module.b.weight, module.a.weight}));
}

TEST(StackedLinear, OtherTensorsAreCopied) {
  const Projections module(false);
  EXPECT_FALSE(is_stacked({module.a.weight, module.b.weight}));
  EXPECT_TRUE(at::equal(stack_rows({module.a.weight, module.b.weight}),
                        at::cat({module.a.weight, module.b.weight})));
}

TEST(StackedLinear, ValuesAndGradientsAreThoseOfSeparateLayers) {
  for (const bool stacked : {true, false}) {
    const Projections module(stacked);
    const at::Tensor x = at::randn({3, 5, 6}, at::kDouble).set_requires_grad(true);
    const at::Tensor probe = at::randn({3, 5, 6}, at::kDouble);
    const std::vector<at::Tensor> leaves = {x, module.a.weight, module.b.weight, module.a.bias,
                                            module.b.bias};
    stacked_linear(x, {module.a.weight, module.b.weight}, {module.a.bias, module.b.bias})
        .mul(probe)
        .sum()
        .backward();
    std::vector<at::Tensor> ours;
    for (at::Tensor leaf : leaves) {
      ours.push_back(leaf.grad().clone());
      leaf.mutable_grad() = at::Tensor();
    }
    at::cat({at::linear(x, module.a.weight, module.a.bias),
             at::linear(x, module.b.weight, module.b.bias)},
            -1)
        .mul(probe)
        .sum()
        .backward();
    for (size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_TRUE(at::allclose(ours[i], leaves[i].grad(), 1e-12, 1e-12)) << i;
    }
  }
}

TEST(StackedLinear, PartsHaveTheValuesAndGradientsOfSeparateLayers) {
  const Projections module(true);
  const at::Tensor x = at::randn({3, 5, 6}, at::kDouble).set_requires_grad(true);
  const at::Tensor probe = at::randn({3, 5, 4}, at::kDouble);
  const std::vector<at::Tensor> leaves = {x, module.a.weight, module.b.weight, module.a.bias,
                                          module.b.bias};
  for (const bool both : {true, false}) {  // a part that nobody reads has a zero gradient
    const auto total = [&](const at::Tensor& a, const at::Tensor& b) {
      return both ? (a * probe).sum() + b.square().sum() : (a * probe).sum();
    };
    const auto gradients = [&](const at::Tensor& loss) {
      loss.backward();
      std::vector<at::Tensor> out;
      for (at::Tensor leaf : leaves) {
        out.push_back(leaf.grad().defined() ? leaf.grad().clone() : at::zeros_like(leaf));
        leaf.mutable_grad() = at::Tensor();
      }
      return out;
    };
    const auto parts =
        stacked_linear_parts(x, {module.a.weight, module.b.weight}, {module.a.bias, module.b.bias});
    ASSERT_EQ(parts.size(), 2u);
    const auto ours = gradients(total(parts[0], parts[1]));
    const auto theirs = gradients(total(at::linear(x, module.a.weight, module.a.bias),
                                        at::linear(x, module.b.weight, module.b.bias)));
    for (size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_TRUE(at::allclose(ours[i], theirs[i], 1e-12, 1e-12)) << i << " " << both;
    }
  }
}

TEST(StackedLinear, FrozenWeightsGetNoGradient) {
  Projections module(true);
  for (at::Tensor* t : {&module.a.weight, &module.b.weight, &module.a.bias, &module.b.bias}) {
    t->set_requires_grad(false);
  }
  const at::Tensor x = at::randn({2, 6}, at::kDouble).set_requires_grad(true);
  stacked_linear(x, {module.a.weight, module.b.weight}).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(module.a.weight.grad().defined());
}

TEST(StackedLinear, WeightsOfAnotherDtypeAreCast) {
  const Projections module(true);
  const at::Tensor x = at::randn({2, 6}).set_requires_grad(true);
  const at::Tensor y = stacked_linear(x, {module.a.weight, module.b.weight});
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  y.sum().backward();
  EXPECT_EQ(module.a.weight.grad().scalar_type(), at::kDouble);
}

TEST(ModuleStack, MembersOfDifferentDtypesStayApart) {
  class Mixed : public Module {
   public:
    Mixed() : a(3, 2, false), b(3, 2, false) {
      register_child("a", a);
      register_child("b", b);
      register_stack({&a.weight, &b.weight});
    }
    Linear a, b;
  } module;
  module.materialise(at::kCPU, [](std::string_view name) {
    return name.starts_with("a") ? at::kFloat : at::kBFloat16;
  });
  EXPECT_EQ(module.a.weight.scalar_type(), at::kFloat);
  EXPECT_EQ(module.b.weight.scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace longship::nn
