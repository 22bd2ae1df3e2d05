#pragma once
// The golden case groot_n17/vision_rope: a small Qwen3-VL, its inputs and what transformers made of
// them.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nn/packed_samples.h"
#include "nn/qwen3.h"
#include "nn/qwen3_vision.h"

namespace longship::nn::testing {

inline constexpr int64_t kImageToken = 151;
inline constexpr int64_t kPadToken = 143;

/// Sizes as in backbone_config.json.
Qwen3Sizes golden_text_sizes();
Qwen3VisionSizes golden_vision_sizes();

/// Tensors of "inputs", "weights" or "expected".
std::map<std::string, at::Tensor> golden_tensors(std::string_view file);

/// Gives `module` the case's weights below `prefix`, in `dtype`; both sides must have the same
/// names.
void load_golden_weights(Module& module, std::string_view prefix,
                         at::ScalarType dtype = at::kFloat);

/// The case's texts without padding.
struct PackedTexts {
  at::Tensor places;     // [N] int64: packed row -> place among the B * S padded ones
  at::Tensor token_ids;  // [N] int64
  std::vector<int64_t> lengths;
  at::Tensor image_rows;  // [M] int64
};
PackedTexts golden_texts();
std::vector<std::array<int64_t, 2>> golden_grids();

/// Samples of these lengths behind each other and `padding` rows behind the last.
PackedSamples pack(const std::vector<int64_t>& lengths, int64_t padding = 0);
/// Pictures of these grids.
PackedSamples pack(const std::vector<std::array<int64_t, 2>>& grids);

/// Largest difference over the largest reference value.
double relative(const at::Tensor& ours, const at::Tensor& reference);
/// Largest difference.
double difference(const at::Tensor& ours, const at::Tensor& reference);

}  // namespace longship::nn::testing
