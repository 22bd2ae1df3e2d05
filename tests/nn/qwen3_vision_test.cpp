// The Qwen3-VL vision tower against the golden numbers of transformers.
#include "nn/qwen3_vision.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/tensor.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "nn/qwen3_golden.h"
#include "runtime/device.h"
#include "support/expect_error.h"

namespace longship::nn {
namespace {

using ::longship::testing::expect_error;
using testing::difference;
using testing::pack;
using testing::relative;
using Tensors = std::vector<at::Tensor>;
using Grids = std::vector<std::array<int64_t, 2>>;

TEST(Qwen3VisionGolden, PositionTables) {
  const auto expected = testing::golden_tensors("expected");
  const Qwen3VisionSizes sizes = testing::golden_vision_sizes();
  const at::Tensor table = testing::golden_tensors("weights").at("model.visual.pos_embed.weight");
  const auto positions = [&](const Grids& grids) {
    const PatchTables t = patch_tables(grids, sizes.position_side, sizes.merge);
    return interpolate_positions(table, t.position_index, t.position_weight);
  };
  const auto angles = [&](const Grids& grids) {
    const PatchTables t = patch_tables(grids, sizes.position_side, sizes.merge);
    return patch_angles(t.rows, t.columns, sizes.width / sizes.num_heads, sizes.theta, at::kFloat);
  };
  const Grids grids = testing::golden_grids();
  EXPECT_LE(difference(positions(grids), expected.at("vision.pos_embed")), 1e-6);
  EXPECT_LE(difference(angles(grids), expected.at("vision.rot_pos_emb")), 1e-6);
  EXPECT_LE(difference(positions({{16, 16}, {16, 22}}), expected.at("real.pos_embed")), 1e-6);
  EXPECT_LE(difference(angles({{16, 22}, {30, 40}}), expected.at("real.rot_pos_emb")), 1e-6);
}

TEST(Qwen3VisionGolden, FeaturesAndDeepstack) {
  const auto expected = testing::golden_tensors("expected");
  Qwen3Vision tower(testing::golden_vision_sizes());
  testing::load_golden_weights(tower, "model.visual.");
  const Grids grids = testing::golden_grids();
  const PatchTables tables = patch_tables(grids, 48, 2);
  const at::Tensor patches = testing::golden_tensors("inputs").at("pixel_values");
  Fused fused;
  for (const bool on : {false, true}) {
    fused.norms = fused.activations = fused.rope = on;
    tower.fused = fused;
    const Qwen3VisionFeatures out = tower.forward(patches, tables, pack(grids));
    EXPECT_LE(relative(out.merged, expected.at("vision.features")), 1e-5) << on;
    ASSERT_EQ(out.deepstack.size(), 3u);
    for (size_t j = 0; j < 3; ++j) {
      const at::Tensor& reference = expected.at(fmt::format("vision.deepstack{}", j));
      EXPECT_LE(relative(out.deepstack[j], reference), 1e-5) << on << " " << j;
    }
  }
}

/// The golden tower in `dtype`, every parameter with a gradient.
struct Tower {
  explicit Tower(at::ScalarType dtype, at::Device device = at::kCPU) {
    testing::load_golden_weights(tower, "model.visual.", dtype);
    tower.for_each_parameter([&](const std::string&, at::Tensor& parameter) {
      parameter = parameter.to(device).detach().set_requires_grad(true);
    });
    const auto to = [&](const at::Tensor& t) { return t.to(device); };
    patches = to(testing::golden_tensors("inputs").at("pixel_values")).to(dtype);
    const PatchTables host = patch_tables(testing::golden_grids(), 48, 2);
    tables = {to(host.rows), to(host.columns), to(host.position_index), to(host.position_weight)};
    pictures = pack(testing::golden_grids());
    pictures.cu_seqlens = to(pictures.cu_seqlens);
    pictures.segment_ids = to(pictures.segment_ids);
  }

  at::Tensor loss() const {
    const Qwen3VisionFeatures out = tower.forward(patches, tables, pictures);
    at::Tensor sum = out.merged.to(at::kDouble).pow(2).mean();
    for (const at::Tensor& f : out.deepstack) sum = sum + f.to(at::kDouble).pow(2).mean();
    return sum;
  }

  /// Loss, then the gradients of all parameters.
  Tensors pass() {
    const at::Tensor value = loss();
    value.backward();
    Tensors out{value.detach()};
    tower.for_each_parameter([&](const std::string& name, at::Tensor& parameter) {
      EXPECT_TRUE(parameter.grad().defined()) << name;
      out.push_back(parameter.grad().clone());
      parameter.mutable_grad() = at::Tensor();
    });
    return out;
  }

  Qwen3Vision tower{testing::golden_vision_sizes()};
  at::Tensor patches;
  PatchTables tables;
  PackedSamples pictures;
};

TEST(Qwen3Vision, GradientsAreDifferencesOfTheLoss) {
  Tower t(at::kDouble);
  const Tensors results = t.pass();
  size_t i = 0;
  t.tower.for_each_parameter([&](const std::string& name, at::Tensor& parameter) {
    const at::AutoGradMode no_grad(false);
    const at::Tensor grad = results[++i];
    const at::Tensor before = parameter.clone(), way = at::randn_like(parameter);
    const double step = 1e-5;
    parameter.copy_(before + way * step);
    const double up = t.loss().item<double>();
    parameter.copy_(before - way * step);
    const double down = t.loss().item<double>();
    parameter.copy_(before);
    const double expected = (grad * way).sum().item<double>();
    EXPECT_NEAR((up - down) / (2 * step), expected, 1e-6 * (1 + std::abs(expected))) << name;
  });
}

TEST(Qwen3Vision, FusedPassesGiveTheSameGradients) {
  Tower t(at::kDouble);
  const Tensors plain = t.pass();
  t.tower.fused.norms = t.tower.fused.activations = t.tower.fused.rope = true;
  const Tensors fused = t.pass();
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_LE(difference(fused[i], plain[i]), 1e-9 * (1 + plain[i].abs().max().item<double>()))
        << i;
  }
}

TEST(Qwen3Vision, BlocksRunAsUnits) {
  Tower t(at::kFloat);
  const Tensors plain = t.pass();
  std::vector<size_t> outputs;
  t.tower.run = [&](int64_t layer, const UnitFunction& unit, const Tensors& inputs) {
    EXPECT_EQ(layer, static_cast<int64_t>(outputs.size()));
    const Tensors out = run_unit(nullptr, "unit", /*recomputed=*/true, unit, inputs);
    outputs.push_back(out.size());
    return out;
  };
  const Tensors again = t.pass();
  EXPECT_EQ(outputs, (std::vector<size_t>{2, 1, 2, 2, 1}));
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], again[i])) << i;
}

TEST(Qwen3Vision, APackGivesItsPicturesAlone) {
  Tower t(at::kDouble);
  const at::AutoGradMode no_grad(false);
  const at::Tensor all = t.tower.forward(t.patches, t.tables, t.pictures).merged;
  int64_t first = 0;
  for (const auto& grid : testing::golden_grids()) {
    const int64_t count = grid[0] * grid[1];
    const Grids alone{grid};
    const at::Tensor merged =
        t.tower.forward(t.patches.narrow(0, first, count), patch_tables(alone, 48, 2), pack(alone))
            .merged;
    EXPECT_LE(relative(all.narrow(0, first / 4, count / 4), merged), 1e-12);
    first += count;
  }
}

TEST(Qwen3Vision, PositionWeightsAreRoundedToTheTable) {
  const Grids grids{{6, 10}};
  const PatchTables t = patch_tables(grids, 48, 2);
  const at::Tensor table = at::randn({48 * 48, 8}).to(at::kBFloat16);
  const at::Tensor weight = t.position_weight.to(at::kBFloat16);
  at::Tensor sum = table.index_select(0, t.position_index.select(1, 0)) * weight.narrow(1, 0, 1);
  for (int64_t c = 1; c < 4; ++c) {
    sum = sum + table.index_select(0, t.position_index.select(1, c)) * weight.narrow(1, c, 1);
  }
  EXPECT_TRUE(at::equal(interpolate_positions(table, t.position_index, t.position_weight), sum));
}

TEST(Qwen3Vision, ShapesWithoutMemory) {
  const Qwen3Vision tower(testing::golden_vision_sizes());  // on the meta device
  const Grids grids = testing::golden_grids();
  const PatchTables host = patch_tables(grids, 48, 2);
  const auto meta = [](const at::Tensor& t) { return t.to(at::kMeta); };
  const PackedSamples pictures = pack(grids);
  const Qwen3VisionFeatures out = tower.forward(
      meta(testing::golden_tensors("inputs").at("pixel_values")),
      {meta(host.rows), meta(host.columns), meta(host.position_index), meta(host.position_weight)},
      {meta(pictures.cu_seqlens), meta(pictures.segment_ids), pictures.longest});
  EXPECT_EQ(out.merged.sizes(), (at::IntArrayRef{23, 36}));
  EXPECT_EQ(out.deepstack.size(), 3u);
}

TEST(Qwen3Vision, WrongInputsAreNamed) {
  expect_error<DataError>([] { patch_tables(Grids{{4, 4}, {4, 5}}, 48, 2); }, {"picture 1", "4x5"});
  Qwen3VisionSizes sizes = testing::golden_vision_sizes();
  sizes.deepstack = {0, 5};
  expect_error<ConfigError>([&] { Qwen3Vision tower(sizes); }, {"entry 1", "block 5", "below 5"});
  Tower t(at::kFloat);
  expect_error<ShapeError>(
      [&] { t.tower.forward(t.patches.narrow(0, 0, 88), t.tables, t.pictures); }, {"88 patches"});
}

TEST(Qwen3VisionGpu, Bf16IsCloseToFp64) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  Tower exact(at::kDouble), fast(at::kBFloat16, at::kCUDA);
  const Tensors reference = exact.pass();
  const Tensors plain = fast.pass();
  fast.tower.fused.norms = fast.tower.fused.activations = fast.tower.fused.rope = true;
  const Tensors fused = fast.pass();
  fast.tower.fused.attention = true;
  const Tensors flash = fast.pass();
  for (const Tensors* ours : {&plain, &fused, &flash}) {
    for (size_t i = 0; i < ours->size(); ++i) {
      const at::Tensor host = (*ours)[i].cpu().to(at::kDouble);
      const double norm = reference[i].norm().item<double>();
      // Gradients of key biases are zero in exact arithmetic.
      EXPECT_LE((host - reference[i]).norm().item<double>(), 5e-2 * norm + 1e-4) << i;
    }
  }
}

}  // namespace
}  // namespace longship::nn
