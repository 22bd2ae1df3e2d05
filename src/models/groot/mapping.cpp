#include "models/groot/mapping.h"

#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <list>
#include <map>

#include "base/error.h"
#include "models/common/strict_weights.h"

namespace longship::models {
namespace {

constexpr std::string_view kCheck = "model.family, model.size and the overrides";

/// Parts that published files have or leave out.
bool is_optional(std::string_view name) {
  return name.find(".vision_model.head.") != std::string_view::npos ||
         name == "action_head.mask_token";
}

/// Tensors under the names of the checkpoint: the model's parameters, and for a table in two parts
/// what `whole` answers.
class PublicTensors : public nn::Module {
 public:
  PublicTensors(const GrootModel& model, const std::vector<GrootSlotTable>& tables,
                const std::function<at::Tensor(const GrootSlotTable&)>& whole) {
    for (auto& [name, tensor] : model.named_parameters()) {
      if (name.ends_with(nn::kUnusedCategories)) continue;
      const auto table = std::find_if(tables.begin(), tables.end(),
                                      [&](const GrootSlotTable& t) { return t.name == name; });
      at::Tensor& own = tensors_.emplace_back();
      register_parameter(name, own, {0});
      own = table == tables.end() ? tensor : whole(*table);
    }
  }

 private:
  std::list<at::Tensor> tensors_;
};

/// A table from its parts, in the dtype of the first.
at::Tensor put_together(const GrootSlotTable& table) {
  const at::TensorOptions options = table.parts.front().tensor.options().requires_grad(false);
  for (const GrootSlotTable::Part& part : table.parts) {
    if (!nn::has_memory(part.tensor)) return at::empty(table.shape, options.device(at::kMeta));
  }
  const at::Tensor out = at::empty(table.shape, options);
  for (const GrootSlotTable::Part& part : table.parts) {
    for (size_t i = 0; i < part.rows.size(); ++i) {
      out.select(0, part.rows[i]).copy_(part.tensor.detach().select(0, static_cast<int64_t>(i)));
    }
  }
  return out;
}

}  // namespace

std::vector<GrootSlotTable> groot_slot_tables(const GrootModel& model) {
  std::vector<GrootSlotTable> out;
  if (model.slots().empty()) return out;
  const auto parameters = model.named_parameters();
  const std::map<std::string, at::Tensor> by_name(parameters.begin(), parameters.end());
  for (const auto& [name, tensor] : parameters) {
    const std::string rest = name + std::string(nn::kUnusedCategories);
    const auto unused = by_name.find(rest);
    if (unused == by_name.end()) continue;
    GrootSlotTable& table = out.emplace_back();
    table.name = name;
    table.shape = tensor.sizes().vec();
    table.shape[0] = model.sizes().embodiments;
    table.parts[0] = {name, tensor, model.slots()};
    table.parts[1] = {rest, unused->second,
                      nn::unused_categories(model.slots(), model.sizes().embodiments)};
  }
  return out;
}

void groot_take_slots(const at::Tensor& whole, const std::vector<int64_t>& rows, at::Tensor part) {
  const at::Tensor out = part.detach();
  for (size_t i = 0; i < rows.size(); ++i) {
    out.select(0, static_cast<int64_t>(i)).copy_(whole.select(0, rows[i]));
  }
}

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
  const std::vector<GrootSlotTable> tables = groot_slot_tables(model);
  NamedInfos sources;
  for (const GrootSlotTable& table : tables) {
    if (const auto it = tensors.find(table.name); it != tensors.end()) sources.insert(*it);
  }
  // Shapes of tables are checked there, values copied here.
  PublicTensors own(model, tables, [](const GrootSlotTable& table) {
    return at::empty(table.shape, at::TensorOptions().device(at::kMeta));
  });
  copy_weights(own, weights, std::move(tensors), path, kCheck, std::move(faults), sink,
               is_optional);
  for (const GrootSlotTable& table : tables) {
    const at::Tensor whole = io::to_tensor(weights, *sources.at(table.name));
    for (const GrootSlotTable::Part& part : table.parts) {
      if (nn::has_memory(part.tensor)) groot_take_slots(whole, part.rows, part.tensor);
      if (!sink || part.tensor.is_meta()) continue;
      const at::Tensor precise = at::empty(part.tensor.sizes(), at::TensorOptions());
      groot_take_slots(whole, part.rows, precise);
      sink(part.name, precise);
    }
  }
}

std::vector<NamedTensor> groot_export_weights(const GrootModel& model,
                                              std::span<const NamedTensor> values) {
  std::vector<GrootSlotTable> tables = groot_slot_tables(model);
  std::vector<NamedTensor> others;
  for (const NamedTensor& value : values) {
    GrootSlotTable::Part* found = nullptr;
    for (GrootSlotTable& table : tables) {
      for (GrootSlotTable::Part& part : table.parts) {
        if (part.name == value.name) found = &part;
      }
    }
    if (found == nullptr) {
      others.push_back(value);
      continue;
    }
    LS_CHECK(value.tensor.sizes() == found->tensor.sizes(), ShapeError,
             "{} export: the value given for '{}' has shape {}, the parameter {}",
             model.config().family, value.name, shape_text(value.tensor.sizes()),
             shape_text(found->tensor.sizes()));
    found->tensor = value.tensor;
  }
  return export_parameters(PublicTensors(model, tables, put_together), others,
                           model.config().family);
}

}  // namespace longship::models
