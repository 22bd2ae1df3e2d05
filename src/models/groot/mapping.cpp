#include "models/groot/mapping.h"

#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <charconv>

#include "models/common/strict_weights.h"

namespace longship::models {
namespace {

constexpr std::string_view kCheck = "model.family, model.size and the overrides";

/// Parts that published files have or leave out.
bool is_optional(std::string_view name) {
  return name.find(".vision_model.head.") != std::string_view::npos ||
         name == "action_head.mask_token";
}

}  // namespace

std::optional<std::string> groot_canonical_name(std::string_view name, const GrootSizes& sizes) {
  if (name.starts_with("model.backbone.") || name.starts_with("model.action_head.")) {
    name.remove_prefix(std::string_view("model.").size());
  }
  if (name.ends_with("lm_head.weight")) return std::nullopt;
  constexpr std::string_view kLayers = ".language_model.layers.";
  constexpr std::string_view kInner = ".language_model.model.layers.";
  for (const std::string_view part : {kLayers, kInner}) {
    const size_t at = name.find(part);
    if (at == std::string_view::npos) continue;
    int64_t layer = 0;
    const char* begin = name.data() + at + part.size();
    const auto result = std::from_chars(begin, name.data() + name.size(), layer);
    if (result.ec == std::errc() && layer >= sizes.text.depth) return std::nullopt;
  }
  return std::string(name);
}

void groot_load_weights(GrootModel& model, const std::filesystem::path& path,
                        const PreciseSink& sink) {
  const io::Weights weights = io::open_weights(path);
  WeightFaults faults;
  NamedInfos tensors = collect_weights(
      weights, [&](std::string_view name) { return groot_canonical_name(name, model.sizes()); },
      faults);
  copy_weights(model, weights, std::move(tensors), path, kCheck, std::move(faults), sink,
               is_optional);
}

std::vector<NamedTensor> groot_export_weights(const GrootModel& model,
                                              std::span<const NamedTensor> values) {
  return export_parameters(model, values, model.config().family);
}

}  // namespace longship::models
