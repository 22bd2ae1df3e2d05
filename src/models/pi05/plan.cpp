#include "models/pi05/plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"

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

std::string unit_of(const std::string& name) {
  const auto layer_after = [&](std::string_view prefix) {
    const size_t begin = prefix.size();
    return name.substr(begin, name.find('.', begin) - begin);
  };
  constexpr std::string_view kVision =
      "paligemma_with_expert.paligemma.model.vision_tower.vision_model.";
  const std::string vision_layer = fmt::format("{}encoder.layers.", kVision);
  const std::string prefix_layer = fmt::format("{}layers.", kPrefixStream);
  const std::string expert_layer = "paligemma_with_expert.gemma_expert.model.layers.";
  if (name.starts_with(vision_layer)) return "vision." + layer_after(vision_layer);
  if (name.starts_with(fmt::format("{}embeddings.", kVision))) return "vision.embeddings";
  if (name.starts_with(kVision))
    return "prefix.embeddings";  // post_layernorm, beside the projector
  if (name.starts_with(prefix_layer)) return "joint." + layer_after(prefix_layer);
  if (name.starts_with(expert_layer)) return "joint." + layer_after(expert_layer);
  if (name.starts_with("paligemma_with_expert.paligemma.model.multi_modal_projector.") ||
      name.starts_with("paligemma_with_expert.paligemma.lm_head.")) {
    return "prefix.embeddings";
  }
  return "heads";
}

}  // namespace

bool matches_parameter(std::string_view pattern, std::string_view name) {
  if (matches_glob(pattern, name)) return true;
  return name.size() > pattern.size() && name.starts_with(pattern) && name[pattern.size()] == '.';
}

std::vector<Pi05Unit> pi05_units(const Pi05Model& model) {
  std::vector<Pi05Unit> units;
  for (const auto& [name, tensor] : model.named_parameters()) {
    const std::string unit = unit_of(name);
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
  // One product gives all modulations of a step, before anything else (Pi05Model::time_terms).
  const auto stage = [](const std::string& name) {
    if (name.starts_with("time_mlp_")) return 0;
    if (name.find(".dense.") != std::string::npos) return 1;
    if (name.find(".vision_tower.") != std::string::npos) return 2;
    if (name.find(".multi_modal_projector.") != std::string::npos) return 3;
    if (name.find(".lm_head.") != std::string::npos) return 4;
    if (name.starts_with(kPrefixStream)) return 5;
    if (name.starts_with("action_out_proj.")) return 8;
    return name.starts_with("paligemma_with_expert.gemma_expert.") ? 7 : 6;
  };
  std::vector<std::string> names;
  for (const auto& [name, tensor] : model.named_parameters()) names.push_back(name);
  std::stable_sort(names.begin(), names.end(),
                   [&](const std::string& a, const std::string& b) { return stage(a) < stage(b); });
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
    bool matched = false;
    for (ParamInfo& info : out) {
      if (!matches_parameter(pattern, info.name)) continue;
      info.role = ParamRole::kFrozen;
      matched = true;
    }
    LS_CHECK(matched, ConfigError,
             "model.freeze: '{}' matches no parameter; use 'vision', 'expert_only', a dotted "
             "prefix such as "
             "'paligemma_with_expert.gemma_expert.model.layers.0' or a pattern with * and ?",
             rule);
  }
  const bool any = std::any_of(out.begin(), out.end(), [](const ParamInfo& info) {
    return info.role == ParamRole::kTrainable;
  });
  LS_CHECK(any, ConfigError, "model.freeze leaves no parameter to train");
  return out;
}

}  // namespace longship::models
