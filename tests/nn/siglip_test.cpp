#include "nn/siglip.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

#include "nn/init.h"

namespace longship::nn {
namespace {

// The stream and a rounded branch often sum to the middle between two bf16 values. A bias that is
// added to that sum would decide such cases all in one direction, a thousand times its own size;
// added inside the product it does not.
TEST(Siglip, TinyBiasesDoNotMoveABf16Stream) {
  const SiglipSizes sizes{
      .image_size = 28, .patch_size = 14, .width = 64, .depth = 1, .num_heads = 4, .mlp_dim = 96};
  SiglipLayer layer(sizes);
  LayerNorm next(sizes.width, sizes.eps);
  const auto prepare = [](Module& module) {
    module.materialise(at::kCPU, [](std::string_view) { return at::kBFloat16; });
    module.for_each_parameter([](const std::string& name, at::Tensor& parameter) {
      if (parameter.dim() > 1) return init_normal(parameter, name, 1, 0.1);
      init_constant(parameter, name.ends_with("weight") ? 1 : 0);
    });
  };
  prepare(layer);
  prepare(next);
  const at::Tensor h = at::randn({8, 64, sizes.width}).to(at::kBFloat16);
  Fused fused;
  fused.norms = true;
  const SiglipPrecision precision{at::kBFloat16, at::kBFloat16};
  const Normed x{h, layer.layer_norm1.forward(h, true)};
  const at::Tensor without = layer.forward(x, next, precision, fused).h.to(at::kFloat);
  for (Linear* linear : {&layer.self_attn.out_proj, &layer.mlp.fc2}) {
    init_constant(linear->bias, 1e-7);
  }
  const at::Tensor with = layer.forward(x, next, precision, fused).h.to(at::kFloat);
  EXPECT_LE(std::abs((with - without).mean().item<double>()), 2e-6);
}

}  // namespace
}  // namespace longship::nn
