// FP8 sites of a model: rows that are no multiple of 16, layers that no gradient passes.
#include "nn/fp8.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace longship::nn {
namespace {

at::Tensor leaf(const at::Tensor& value) {
  return value.detach().clone().set_requires_grad(true);
}

Fp8Options all_layers() {
  Fp8Options options;
  options.layers = {"*"};
  return options;
}

TEST(Fp8Layers, RowsAreFilledUp) {
  const at::Tensor weight = leaf(at::randn({32, 48})), bias = leaf(at::randn({32}));
  Fp8Layers layers(all_layers());
  const Fp8Linear* layer = layers.linear("layer", {weight});
  layers.create(at::kCPU);
  layers.begin_step();
  for (const int64_t per : {0, 1, 7, 16, 11}) {
    const at::Tensor x = leaf(at::randn({3, per, 48})), dy = at::randn({3, per, 32});
    const at::Tensor y = layer->forward(x, {weight}, bias);
    EXPECT_EQ(y.sizes(), dy.sizes());
    y.backward(dy);
    const at::Tensor dw = weight.grad().clone(), db = bias.grad().clone();
    weight.mutable_grad() = bias.mutable_grad() = at::Tensor();
    const int64_t rows = 3 * per, missing = rows > 0 ? (16 - rows % 16) % 16 : 16;
    const auto filled = [&](const at::Tensor& t) {
      return at::cat({t.detach().reshape({rows, t.size(-1)}), at::zeros({missing, t.size(-1)})});
    };
    const at::Tensor whole = leaf(filled(x));
    const at::Tensor reference = ops::fp8_linear(whole, {weight}, bias, layer->site);
    EXPECT_TRUE(at::equal(y.reshape({rows, 32}), reference.narrow(0, 0, rows)));
    reference.backward(filled(dy));
    EXPECT_TRUE(at::equal(x.grad().reshape({rows, 48}), whole.grad().narrow(0, 0, rows)));
    EXPECT_TRUE(at::equal(dw, weight.grad()));
    EXPECT_TRUE(at::equal(db, bias.grad()));
    weight.mutable_grad() = bias.mutable_grad() = at::Tensor();
  }
}

TEST(Fp8Layers, ForwardOnlyLayersKeepNoStateAndAreConvertedOnAsking) {
  at::Tensor frozen = at::randn({16, 32}), trained = at::randn({16, 32});
  Fp8Layers layers(all_layers(), [](std::string_view name) { return name == "frozen"; });
  const Fp8Linear* layer = layers.linear("frozen", {frozen});
  layers.linear("trained", {trained});
  layers.create(at::kCPU);
  ASSERT_EQ(layers.copies().size(), 3U);
  EXPECT_EQ(layers.state().size(0), 2);
  layers.begin_step();
  const auto bytes = [&](size_t i) { return layers.copies()[i].view(at::kByte).clone(); };
  const std::vector<at::Tensor> before{bytes(0), bytes(1)};
  const at::Tensor x = at::randn({5, 32});
  const at::Tensor y = layer->forward(x, {frozen});
  layer->forward(x.mul(100), {frozen});
  frozen.neg_();
  trained.neg_();
  layers.begin_step();
  EXPECT_TRUE(at::equal(bytes(0), before[0]));
  EXPECT_FALSE(at::equal(bytes(1), before[1]));
  EXPECT_TRUE(at::equal(layer->forward(x, {frozen}), y)) << "it follows from the input alone";
  layers.convert_weights();
  EXPECT_FALSE(at::equal(bytes(0), before[0]));
}

TEST(Fp8Layers, OneProductWithOrWithoutSite) {
  Linear layer(32, 16, true);
  layer.weight = at::randn({16, 32});
  layer.bias = at::randn({16});
  const at::Tensor x = at::randn({4, 32});
  EXPECT_TRUE(at::equal(product(layer, x, nullptr), layer.forward(x)));
  EXPECT_TRUE(at::equal(product(layer, x, nullptr, false), nn::linear(x, layer.weight)));
  Fp8Layers layers(all_layers());
  const Fp8Linear* site = layers.linear("layer", {layer.weight});
  layers.create(at::kCPU);
  layers.begin_step();
  EXPECT_TRUE(at::equal(product(layer, x, site), site->forward(x, {layer.weight}, layer.bias)));
  EXPECT_TRUE(at::equal(product(layer, x, site, false), site->forward(x, {layer.weight})));
}

}  // namespace
}  // namespace longship::nn
