#include "models/pi05/mapping.h"

#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <array>
#include <map>
#include <utility>

#include "base/error.h"
#include "io/tensor_io.h"
#include "models/common/strict_weights.h"

namespace longship::models {
namespace {

constexpr std::string_view kEmbedTokens =
    "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight";

constexpr std::array<std::string_view, 4> kOuterPrefixes = {
    "model.architecture.pi05_model.", "architecture.pi05_model.", "model.", "pi05."};

/// First parts of every public name; an outer prefix is stripped only in front of one of these.
bool is_public_start(std::string_view name) {
  for (const std::string_view start :
       {"paligemma_with_expert.", "action_", "time_mlp_", "state_proj."}) {
    if (name.starts_with(start)) return true;
  }
  return false;
}

struct Rename {
  std::string_view from, to;
};
/// Layouts of older transformers versions.
constexpr std::array<Rename, 4> kOldLayouts = {{
    {"paligemma_with_expert.paligemma.language_model.model.",
     "paligemma_with_expert.paligemma.model.language_model."},
    {"paligemma_with_expert.paligemma.language_model.lm_head.",
     "paligemma_with_expert.paligemma.lm_head."},
    {"paligemma_with_expert.paligemma.vision_tower.",
     "paligemma_with_expert.paligemma.model.vision_tower."},
    {"paligemma_with_expert.paligemma.multi_modal_projector.",
     "paligemma_with_expert.paligemma.model.multi_modal_projector."},
}};
constexpr std::array<Rename, 2> kTimeHeads = {{
    {"action_time_mlp_in.", "time_mlp_in."},
    {"action_time_mlp_out.", "time_mlp_out."},
}};

void refuse_other_variant(const std::map<std::string, const io::TensorInfo*>& tensors, bool is_pi05,
                          const std::filesystem::path& path) {
  constexpr std::string_view kNorm =
      "paligemma_with_expert.gemma_expert.model.layers.0.input_layernorm.";
  const bool has_plain = tensors.contains(fmt::format("{}weight", kNorm));
  const bool has_dense = tensors.contains(fmt::format("{}dense.weight", kNorm));
  LS_CHECK(!(is_pi05 && has_plain && !has_dense), CheckpointError,
           "{}: this is a pi0 checkpoint (its action expert has plain norms: '{}weight'), but "
           "model.variant is pi05; "
           "set model.variant: pi0 or use a pi05 checkpoint",
           path.string(), kNorm);
  LS_CHECK(!(!is_pi05 && has_dense && !has_plain), CheckpointError,
           "{}: this is a pi05 checkpoint (its action expert has adaptive norms: "
           "'{}dense.weight'), but model.variant "
           "is pi0; set model.variant: pi05 or use a pi0 checkpoint",
           path.string(), kNorm);
}

}  // namespace

std::optional<std::string> pi05_canonical_name(std::string_view name, bool is_pi05) {
  for (const std::string_view prefix : kOuterPrefixes) {
    if (name.starts_with(prefix) && is_public_start(name.substr(prefix.size()))) {
      name.remove_prefix(prefix.size());
      break;
    }
  }
  if (is_pi05 && name.starts_with("state_proj.")) return std::nullopt;
  const auto renamed = [&](const Rename& rule) {
    return fmt::format("{}{}", rule.to, name.substr(rule.from.size()));
  };
  for (const Rename& rule : kOldLayouts) {
    if (name.starts_with(rule.from)) return renamed(rule);
  }
  if (is_pi05) {
    for (const Rename& rule : kTimeHeads) {
      if (name.starts_with(rule.from)) return renamed(rule);
    }
  }
  return std::string(name);
}

void pi05_load_weights(Pi05Model& model, const std::filesystem::path& path,
                       const PreciseSink& sink) {
  const io::Weights weights = io::open_weights(path);
  const bool is_pi05 = model.config().is_pi05();
  WeightFaults faults;
  // LoongForge's own saves hold every tensor twice under two prefixes: equal copies are fine.
  NamedInfos tensors = collect_weights(
      weights, [&](std::string_view name) { return pi05_canonical_name(name, is_pi05); }, faults);
  refuse_other_variant(tensors, is_pi05, path);

  // The embedding is tied to lm_head. Where both are stored, embed_tokens is the one that
  // fine-tuning changed.
  if (const auto embed = tensors.find(std::string(kEmbedTokens)); embed != tensors.end()) {
    tensors[std::string(kPi05Embedding)] = embed->second;
    tensors.erase(embed);
  }
  const io::TensorInfo* expert_head = nullptr;
  if (const auto head = tensors.find(std::string(kPi05ExpertHead)); head != tensors.end()) {
    expert_head = head->second;
    tensors.erase(head);
    const std::vector<int64_t> expected = {model.sizes().vocab_size, model.sizes().expert_width};
    if (expert_head->shape != expected || !is_float(expert_head->dtype)) {
      faults.mismatched.push_back(fmt::format("{}: {} in the file, {} expected", kPi05ExpertHead,
                                              io::describe(*expert_head), shape_text(expected)));
    }
  }

  copy_weights(model, weights, std::move(tensors), path,
               "model.size, model.variant and the overrides", std::move(faults), sink);
  model.expert_lm_head = at::Tensor();
  if (expert_head != nullptr) model.expert_lm_head = io::to_tensor(weights, *expert_head);
}

std::vector<NamedTensor> pi05_export_weights(const Pi05Model& model,
                                             std::span<const NamedTensor> values) {
  std::vector<NamedTensor> out = export_parameters(model, values, "pi05");
  at::ScalarType embedding_dtype = at::kFloat;
  for (const NamedTensor& one : out) {
    if (one.name == kPi05Embedding) embedding_dtype = one.tensor.scalar_type();
  }
  at::Tensor head = model.expert_lm_head;
  if (!head.defined()) {
    const at::Device device = out.front().tensor.is_meta() ? at::kMeta : at::kCPU;
    head = at::zeros({model.sizes().vocab_size, model.sizes().expert_width},
                     at::TensorOptions().dtype(embedding_dtype).device(device));
  }
  out.push_back({std::string(kPi05ExpertHead), head});
  return out;
}

}  // namespace longship::models
