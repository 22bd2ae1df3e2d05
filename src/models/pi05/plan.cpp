#include "models/pi05/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "models/common/parameter_patterns.h"
#include "nn/unit.h"

namespace longship::models {
namespace {

constexpr std::string_view kPrefixStream = "paligemma_with_expert.paligemma.model.language_model.";

/// The last prefix layer feeds keys and values only; the prefix norm feeds nothing.
bool is_dead(std::string_view name, int64_t depth) {
  if (name == fmt::format("{}norm.weight", kPrefixStream)) return true;
  const std::string last = fmt::format("{}layers.{}.", kPrefixStream, depth - 1);
  if (!name.starts_with(last)) return false;
  const std::string_view rest = name.substr(last.size());
  return rest.starts_with("self_attn.o_proj.") || rest.starts_with("mlp.") ||
         rest.starts_with("post_attention_layernorm.");
}

constexpr std::string_view kVision =
    "paligemma_with_expert.paligemma.model.vision_tower.vision_model.";
constexpr std::string_view kExpertStream = "paligemma_with_expert.gemma_expert.model.";

/// Layer and what follows it in a name "<prefix><layer>.<rest>".
struct LayerName {
  int64_t layer = 0;
  std::string_view rest;
};
std::optional<LayerName> layer_name(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  LayerName out;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), out.layer);
  LS_CHECK(error == std::errc(), InternalError, "no layer number in '{}'", name);
  out.rest = name.substr(static_cast<size_t>(end - name.data()) + 1);
  return out;
}

ParameterUse use_of(std::string_view name, const Pi05Model& model) {
  const int64_t vision = model.sizes().vision.depth, depth = model.sizes().depth;
  const std::string root(nn::kRootUnit);
  // Layers begin behind the norm that the layer before them applies.
  const auto in_layer = [&](const LayerName& at, bool first_norm, int64_t begin,
                            auto unit) -> ParameterUse {
    const int64_t layer = first_norm ? at.layer - 1 : at.layer;
    return {layer < 0 ? root : unit(layer), begin + layer};
  };
  const std::string last_query =
      fmt::format("{}layers.{}.self_attn.q_proj.weight", kPrefixStream, depth - 1);
  if (is_dead(name, depth) || name == last_query) return {std::string(nn::kUnreadUnit), 0};
  if (const auto at = layer_name(name, fmt::format("{}encoder.layers.", kVision))) {
    return in_layer(*at, at->rest.starts_with("layer_norm1."), 1, pi05_vision_unit);
  }
  if (name.starts_with(fmt::format("{}post_layernorm.", kVision)) && vision > 0) {
    return {pi05_vision_unit(vision - 1), vision};
  }
  if (name.starts_with(kVision)) return {root, 0};
  if (const auto at = layer_name(name, fmt::format("{}layers.", kPrefixStream))) {
    return in_layer(*at, at->rest.starts_with("input_layernorm."), 2 + vision, pi05_prefix_unit);
  }
  if (name.starts_with("paligemma_with_expert.paligemma.")) return {root, 1 + vision};
  const int64_t heads = 2 + vision + depth;
  const bool modulation = name.find(".dense.") != std::string_view::npos;
  if (modulation) return {root, heads};  // all in one product
  if (const auto at = layer_name(name, fmt::format("{}layers.", kExpertStream))) {
    return in_layer(*at, at->rest.starts_with("input_layernorm."), heads + 1, pi05_expert_unit);
  }
  if (name.starts_with(kExpertStream)) return {pi05_expert_unit(depth - 1), heads + depth};
  return {root, name.starts_with("action_out_proj.") ? heads + depth + 1 : heads};
}

/// Order of use inside a layer, whose last part is the norm before the next one.
int64_t place_in_layer(std::string_view name) {
  constexpr std::array<std::array<std::string_view, 3>, 6> kParts = {{
      {".q_proj.", ".k_proj.", ".v_proj."},
      {".o_proj.", ".out_proj.", ""},
      {".post_attention_layernorm.", ".layer_norm2.", ""},
      {".gate_proj.", ".up_proj.", ".fc1."},
      {".down_proj.", ".fc2.", ""},
      {".input_layernorm.", ".layer_norm1.", ".post_layernorm."},
  }};
  for (size_t i = 0; i < kParts.size(); ++i) {
    for (const std::string_view part : kParts[i]) {
      if (!part.empty() && name.find(part) != std::string_view::npos) {
        return static_cast<int64_t>(i) + 1;
      }
    }
  }
  return name.find(".lm_head.") != std::string_view::npos ? 1 : 0;  // text comes behind pictures
}

}  // namespace

std::string pi05_vision_unit(int64_t layer) {
  return fmt::format("vision.{}", layer);
}
std::string pi05_prefix_unit(int64_t layer) {
  return fmt::format("prefix.{}", layer);
}
std::string pi05_expert_unit(int64_t layer) {
  return fmt::format("expert.{}", layer);
}

std::vector<Pi05Unit> pi05_units(const Pi05Model& model) {
  std::vector<Pi05Unit> units;
  for (const auto& [name, tensor] : model.named_parameters()) {
    const std::string unit = use_of(name, model).unit;
    const auto it =
        std::find_if(units.begin(), units.end(), [&](const Pi05Unit& u) { return u.name == unit; });
    if (it == units.end()) {
      units.push_back({unit, {name}});
    } else {
      it->parameters.push_back(name);
    }
  }
  return units;
}

std::vector<std::string> pi05_use_order(const Pi05Model& model) {
  struct Named {
    std::string name;
    std::array<int64_t, 3> key;
  };
  std::vector<Named> order;
  for (const auto& [name, tensor] : model.named_parameters()) {
    // One product gives all modulations of a step, before anything else (Pi05Model::time_terms).
    const int64_t stage = name.starts_with("time_mlp_")               ? 0
                          : name.find(".dense.") != std::string::npos ? 1
                                                                      : 2;
    const int64_t place = stage == 1 ? 0 : place_in_layer(name);
    order.push_back({name, {stage, use_of(name, model).place, place}});
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Named& a, const Named& b) { return a.key < b.key; });
  std::vector<std::string> names;
  for (Named& entry : order) names.push_back(std::move(entry.name));
  return names;
}

std::vector<ParamInfo> pi05_parameters(const Pi05Model& model) {
  const int64_t depth = model.sizes().depth;
  const std::string last_query =
      fmt::format("{}layers.{}.self_attn.q_proj.weight", kPrefixStream, depth - 1);
  std::vector<ParamInfo> out;
  for (const auto& [name, tensor] : model.named_parameters()) {
    ParamRole role = ParamRole::kTrainable;
    if (is_dead(name, depth)) role = ParamRole::kFrozen;
    if (name == last_query) role = ParamRole::kDecayOnly;
    out.push_back({name, tensor, role});
  }
  for (const std::string& rule : model.config().freeze) {
    std::string pattern = rule;
    if (rule == "vision") pattern = "paligemma_with_expert.paligemma.model.vision_tower";
    if (rule == "expert_only") pattern = "paligemma_with_expert.paligemma";
    freeze_matching(
        out, pattern, rule,
        "'vision', 'expert_only', a dotted prefix such as "
        "'paligemma_with_expert.gemma_expert.model.layers.0' or a pattern with * and ?");
  }
  check_trainable(out);
  std::vector<ParameterUse> uses;
  for (const ParamInfo& info : out) uses.push_back(use_of(info.name, model));
  assign_units(out, std::move(uses));
  return out;
}

}  // namespace longship::models
