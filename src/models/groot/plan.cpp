#include "models/groot/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "models/common/parameter_patterns.h"
#include "nn/unit.h"

namespace longship::models {
namespace {

constexpr std::string_view kHead = "action_head.";
constexpr std::string_view kRoot = nn::kRootUnit;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Number and rest behind `part` in a name "...<part><number>.<rest>".
struct Numbered {
  int64_t number = 0;
  std::string_view rest;
};
std::optional<Numbered> numbered(std::string_view name, std::string_view part) {
  const size_t at = name.find(part);
  if (at == std::string_view::npos) return std::nullopt;
  name.remove_prefix(at + part.size());
  Numbered out;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), out.number);
  if (error != std::errc()) return std::nullopt;
  const size_t behind = static_cast<size_t>(end - name.data());
  if (behind < name.size()) out.rest = name.substr(behind + 1);
  return out;
}

bool is_vision(std::string_view name) {
  return contains(name, ".vision_model.") || contains(name, ".visual.") || contains(name, ".mlp1.");
}

// Places: vision layers 1 .., what stands between, text layers, the head.
struct Places {
  explicit Places(const GrootSizes& s)
      : text(2 + s.vision.depth),
        norm(text + s.text.depth),
        vl(norm + 1),
        dit(vl + (s.vl ? s.vl->depth : 0) + 1),
        decoder(dit + s.dit.depth + 1) {}
  int64_t text, norm, vl, dit, decoder;
};

ParameterUse vision_use(std::string_view name, const GrootSizes& s) {
  if (contains(name, ".vision_model.head.")) return {std::string(nn::kUnreadUnit), 0};
  if (const auto layer = numbered(name, ".encoder.layers.")) {
    // A layer begins behind the norm that the layer before it applies.
    const int64_t l = layer->number - (layer->rest.starts_with("layer_norm1.") ? 1 : 0);
    return {l < 0 ? std::string(kRoot) : groot_vision_unit(l), 1 + l};
  }
  if (contains(name, ".post_layernorm.") && s.vision.depth > 0) {
    return {groot_vision_unit(s.vision.depth - 1), s.vision.depth};
  }
  if (const auto block = numbered(name, ".visual.blocks.")) {
    return {groot_vision_unit(block->number), 1 + block->number};
  }
  if (const auto merger = numbered(name, ".deepstack_merger_list.")) {
    const int64_t l = s.vision.deepstack.at(static_cast<size_t>(merger->number));
    return {groot_vision_unit(l), 1 + l};
  }
  const bool behind = contains(name, ".mlp1.") || contains(name, ".visual.merger.");
  return {std::string(kRoot), behind ? 1 + s.vision.depth : 0};
}

ParameterUse head_use(std::string_view name, const Places& places) {
  const std::string unit = groot_head_unit(name);
  if (const auto block = numbered(unit, "vl.")) return {unit, places.vl + block->number};
  if (const auto block = numbered(unit, "dit.")) return {unit, places.dit + block->number};
  if (name.starts_with("vlln.")) return {unit, places.norm};
  const bool last = name.starts_with("action_decoder.") || name.starts_with("model.proj_out_2.");
  return {unit, last ? places.decoder : places.vl};
}

ParameterUse use_of(std::string_view name, const GrootModel& model) {
  if (name.ends_with(nn::kUnusedCategories)) return {std::string(nn::kUnreadUnit), 0};
  const GrootSizes& s = model.sizes();
  const Places places(s);
  if (name.starts_with(kHead)) return head_use(name.substr(kHead.size()), places);
  if (is_vision(name)) return vision_use(name, s);
  if (const auto layer = numbered(name, ".layers.")) {
    return {groot_text_unit(layer->number), places.text + layer->number};
  }
  if (name.ends_with(".norm.weight")) {
    if (!model.config().final_norm()) return {std::string(nn::kUnreadUnit), 0};
    return {std::string(kRoot), places.norm};
  }
  return {std::string(kRoot), places.text};  // the token embedding
}

/// The tune_* settings of the references.
bool is_tuned(std::string_view name, const GrootModel& model) {
  const GrootConfig& config = model.config();
  if (name.starts_with(kHead)) {
    name.remove_prefix(kHead.size());
    if (name.starts_with("model.")) return config.tune_diffusion;
    if (name.starts_with("vlln.") || name.starts_with("vl_self_attention."))
      return config.tune_vlln;
    return config.tune_projector;
  }
  if (is_vision(name)) return config.tune_visual;
  if (config.tune_llm) return true;
  const auto layer = numbered(name, ".layers.");
  return layer && layer->number >= model.sizes().text.depth - config.tune_top_llm_layers;
}

}  // namespace

std::string groot_vision_unit(int64_t layer) {
  return fmt::format("vision.{}", layer);
}
std::string groot_text_unit(int64_t layer) {
  return fmt::format("text.{}", layer);
}

std::vector<std::string> groot_units(const GrootSizes& sizes) {
  std::vector<std::string> out;
  for (int64_t l = 0; l < sizes.vision.depth; ++l) out.push_back(groot_vision_unit(l));
  for (int64_t l = 0; l < sizes.text.depth; ++l) out.push_back(groot_text_unit(l));
  for (int64_t l = 0; sizes.vl && l < sizes.vl->depth; ++l) out.push_back(groot_vl_unit(l));
  for (int64_t l = 0; l < sizes.dit.depth; ++l) out.push_back(groot_dit_unit(l));
  return out;
}

std::vector<ParamInfo> groot_parameters(const GrootModel& model) {
  std::vector<ParamInfo> out;
  std::vector<ParameterUse> uses;
  for (const auto& [name, tensor] : model.named_parameters()) {
    uses.push_back(use_of(name, model));
    const bool trains = uses.back().unit != nn::kUnreadUnit && is_tuned(name, model);
    out.push_back({name, tensor, trains ? ParamRole::kTrainable : ParamRole::kFrozen});
  }
  LS_CHECK(
      std::any_of(out.begin(), out.end(),
                  [](const ParamInfo& info) { return info.role == ParamRole::kTrainable; }),
      ConfigError,
      "model.tune_llm, model.tune_visual, model.tune_top_llm_layers, model.tune_projector, "
      "model.tune_diffusion_model and model.tune_vlln leave nothing to train; set one of them");
  for (const std::string& rule : model.config().freeze) {
    freeze_matching(out, rule, rule,
                    "a dotted prefix such as 'action_head.model.transformer_blocks.0' or a pattern "
                    "with * and ?");
  }
  check_trainable(out);
  assign_units(out, std::move(uses));
  return out;
}

std::optional<int64_t> groot_frozen_layers(const std::vector<ParamInfo>& parameters,
                                           const GrootSizes& sizes) {
  int64_t layers = sizes.text.depth;
  for (const ParamInfo& info : parameters) {
    if (info.role != ParamRole::kTrainable || info.name.starts_with(kHead)) continue;
    const auto layer = numbered(info.unit, "text.");
    const bool final_norm = info.unit == kRoot && info.name.ends_with(".norm.weight");
    if (!layer && !final_norm) return std::nullopt;
    if (layer) layers = std::min(layers, layer->number);
  }
  const auto with_pictures = static_cast<int64_t>(sizes.vision.deepstack.size());
  return layers < with_pictures ? std::nullopt : std::optional<int64_t>(layers);
}

std::vector<std::string> groot_use_order(const GrootModel& model) {
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [name, tensor] : model.named_parameters()) {
    order.emplace_back(use_of(name, model).place, name);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (auto& [place, name] : order) names.push_back(std::move(name));
  return names;
}

}  // namespace longship::models
