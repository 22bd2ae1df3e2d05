#include "nn/qwen3_golden.h"

#include <ATen/ops/nonzero.h>
#include <ATen/ops/tensor.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "io/tensor_io.h"
#include "support/paths.h"

namespace longship::nn::testing {
namespace {

/// Places of true elements of a flat mask.
at::Tensor places_of(const at::Tensor& mask) {
  return at::nonzero(mask).flatten();
}

}  // namespace

Qwen3Sizes golden_text_sizes() {
  return {.vocab = 160,
          .width = 36,
          .mlp_dim = 44,
          .depth = 5,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 12,
          .theta = 5e6,
          .mrope_sections = {2, 2, 2}};
}

Qwen3VisionSizes golden_vision_sizes() {
  return {.patch_size = 4,
          .width = 16,
          .mlp_dim = 26,
          .depth = 5,
          .num_heads = 2,
          .out_width = 36,
          .deepstack = {0, 2, 3}};
}

std::map<std::string, at::Tensor> golden_tensors(std::string_view file) {
  return io::load_tensors(::longship::testing::golden_path("groot_n17/vision_rope") /
                          fmt::format("{}.safetensors", file));
}

void load_golden_weights(Module& module, std::string_view prefix, at::ScalarType dtype) {
  const auto weights = golden_tensors("weights");
  module.materialise(at::kCPU, [dtype](std::string_view) { return dtype; });
  std::set<std::string> read;
  module.for_each_parameter([&](const std::string& name, at::Tensor& parameter) {
    const std::string full = fmt::format("{}{}", prefix, name);
    ASSERT_TRUE(weights.contains(full)) << full;
    ASSERT_EQ(parameter.sizes(), weights.at(full).sizes()) << full;
    parameter.copy_(weights.at(full));
    read.insert(full);
  });
  for (const auto& [name, value] : weights) {
    EXPECT_TRUE(!name.starts_with(prefix) || read.contains(name)) << name;
  }
}

PackedTexts golden_texts() {
  const auto inputs = golden_tensors("inputs");
  PackedTexts out;
  out.places = places_of(inputs.at("attention_mask").flatten());
  out.token_ids = inputs.at("input_ids").flatten().index_select(0, out.places);
  const at::Tensor lengths = inputs.at("attention_mask").sum(1);
  out.lengths.assign(lengths.data_ptr<int64_t>(), lengths.data_ptr<int64_t>() + lengths.numel());
  out.image_rows = places_of(out.token_ids.eq(kImageToken));
  return out;
}

std::vector<std::array<int64_t, 2>> golden_grids() {
  const at::Tensor grids = golden_tensors("inputs").at("image_grid_thw");
  std::vector<std::array<int64_t, 2>> out;
  for (int64_t v = 0; v < grids.size(0); ++v) {
    out.push_back({grids[v][1].item<int64_t>(), grids[v][2].item<int64_t>()});
  }
  return out;
}

PackedSamples pack(const std::vector<int64_t>& lengths, int64_t padding) {
  std::vector<int> sums{0}, segments;
  PackedSamples out;
  for (const int64_t length : lengths) {
    sums.push_back(sums.back() + static_cast<int>(length));
    segments.resize(static_cast<size_t>(sums.back()), static_cast<int>(sums.size()) - 1);
    out.longest = std::max(out.longest, length);
  }
  segments.resize(segments.size() + static_cast<size_t>(padding), 0);
  out.cu_seqlens = at::tensor(sums, at::kInt);
  out.segment_ids = at::tensor(segments, at::kInt);
  return out;
}

PackedSamples pack(const std::vector<std::array<int64_t, 2>>& grids) {
  std::vector<int64_t> lengths;
  for (const auto& [rows, columns] : grids) lengths.push_back(rows * columns);
  return pack(lengths);
}

double difference(const at::Tensor& ours, const at::Tensor& reference) {
  EXPECT_EQ(ours.sizes(), reference.sizes());
  return ours.to(at::kDouble).sub(reference.to(at::kDouble)).abs().max().item<double>();
}

double relative(const at::Tensor& ours, const at::Tensor& reference) {
  return difference(ours, reference) / reference.abs().max().item<double>();
}

}  // namespace longship::nn::testing
