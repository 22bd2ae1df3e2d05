#include "nn/module.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "nn/init.h"
#include "nn/linear.h"
#include "nn/mlp.h"
#include "nn/siglip.h"

namespace longship::nn {
namespace {

TEST(Module, NamesFollowRegistrationOrder) {
  GatedMlp mlp(4, 6);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : mlp.named_parameters()) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"gate_proj.weight", "up_proj.weight", "down_proj.weight"}));
  EXPECT_EQ(mlp.num_elements(), 3 * 4 * 6);
}

TEST(Module, IsBuiltOnMetaAndMaterialisedByName) {
  Linear linear_layer(3, 5, true);
  EXPECT_TRUE(linear_layer.weight.is_meta());
  linear_layer.materialise(
      at::kCPU, [](std::string_view name) { return name == "bias" ? at::kFloat : at::kBFloat16; });
  EXPECT_EQ(linear_layer.weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(linear_layer.bias.scalar_type(), at::kFloat);
  EXPECT_EQ(linear_layer.weight.sizes(), (std::vector<int64_t>{5, 3}));
}

TEST(Module, SiglipNamesAreTheCheckpoints) {
  SiglipTower tower(
      {.image_size = 8, .patch_size = 4, .width = 6, .depth = 1, .num_heads = 2, .mlp_dim = 7});
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tower.named_parameters()) names.push_back(name);
  EXPECT_EQ(names.size(), 16u + 5u);
  EXPECT_EQ(names.front(), "vision_model.embeddings.patch_embedding.weight");
  EXPECT_EQ(names.back(), "vision_model.post_layernorm.bias");
  EXPECT_NE(std::find(names.begin(), names.end(),
                      "vision_model.encoder.layers.0.self_attn.out_proj.bias"),
            names.end());
}

TEST(Init, DependsOnSeedAndNameOnly) {
  at::Tensor a = at::zeros({50, 40}), b = at::zeros({50, 40}), c = at::zeros({50, 40}),
             d = at::zeros({50, 40});
  init_normal(a, "x.weight", 1, 0.5);
  init_normal(b, "x.weight", 1, 0.5);
  init_normal(c, "y.weight", 1, 0.5);
  init_normal(d, "x.weight", 2, 0.5);
  EXPECT_TRUE(at::equal(a, b));
  EXPECT_FALSE(at::equal(a, c));
  EXPECT_FALSE(at::equal(a, d));
}

TEST(Init, IsNormalTruncatedAtThreeDeviations) {
  at::Tensor a = at::zeros({200, 200});
  init_normal(a, "w", 3, 0.1);
  EXPECT_LE(a.abs().max().item<double>(), 0.3 + 1e-6);
  EXPECT_NEAR(a.mean().item<double>(), 0.0, 2e-3);
  EXPECT_NEAR(a.pow(2).mean().item<double>(), 0.01 * 0.9733,
              3e-4);  // variance of the truncated normal
}

TEST(Init, LeavesMetaTensorsAlone) {
  Linear layer(2, 2, false);
  init_normal(layer.weight, "w", 1, 1.0);
  EXPECT_TRUE(layer.weight.is_meta());
}

TEST(Linear, CastsWeightsToTheInput) {
  Linear layer(4, 3, true);
  layer.materialise(at::kCPU, [](std::string_view) { return at::kFloat; });
  layer.weight.fill_(0.5);
  layer.bias.fill_(1);
  const at::Tensor y = layer.forward(at::zeros({2, 4}, at::kBFloat16).fill_(1));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_FLOAT_EQ(y[0][0].item<float>(), 3.0f);
}

}  // namespace
}  // namespace longship::nn
