#include "models/groot/mapping.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <list>
#include <map>

#include "base/error.h"
#include "models/common/strict_weights.h"

namespace longship::models {
namespace {

constexpr std::string_view kCheck = "model.family, model.size and the overrides";

// Public names of the output head of the language model and of its layers.
constexpr std::string_view kHeadN16 = "backbone.model.language_model.lm_head.weight";
constexpr std::string_view kHeadN17 = "backbone.model.lm_head.weight";
constexpr std::string_view kLayersN16 = "backbone.model.language_model.model.layers.";
constexpr std::string_view kLayersN17 = "backbone.model.model.language_model.layers.";
constexpr std::string_view kEmbedding = ".embed_tokens.weight";

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

bool same_bytes(const io::Weights& weights, const io::TensorInfo& a, const io::TensorInfo& b) {
  return a.dtype == b.dtype && a.shape == b.shape &&
         std::memcmp(weights.data(a), weights.data(b), a.num_bytes()) == 0;
}

/// Moves what the model has no parameter for out of `tensors`: the output head, which is mostly the
/// embedding once more, and layers behind the kept ones.
void take_unused(const GrootModel& model, const io::Weights& weights, NamedInfos& tensors,
                 StoredWeights& out) {
  const auto embedding = std::find_if(tensors.begin(), tensors.end(),
                                      [](const auto& t) { return t.first.ends_with(kEmbedding); });
  for (auto it = tensors.begin(); it != tensors.end();) {
    const auto& [name, info] = *it;
    if (!groot_is_unused(name, model)) {
      ++it;
      continue;
    }
    if (embedding != tensors.end() && same_bytes(weights, *info, *embedding->second)) {
      out.copies[name] = embedding->first;
      out.dtypes[name] = io::to_scalar_type(info->dtype);
    } else {
      out.unused[name] = io::to_tensor(weights, *info);
    }
    it = tensors.erase(it);
  }
}

/// Keeps a frozen parameter's `value` where `held`, the parameter's dtype, rounds it.
void keep_exact(StoredWeights& out, const std::string& name, const at::Tensor& value,
                at::ScalarType held) {
  const at::ScalarType stored = value.scalar_type();
  if (stored != held && !at::equal(value.to(held).to(stored), value)) out.exact[name] = value;
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

std::string groot_public_name(std::string_view name) {
  if (name.starts_with("model.backbone.") || name.starts_with("model.action_head.")) {
    name.remove_prefix(std::string_view("model.").size());
  }
  return std::string(name);
}

bool groot_is_unused(std::string_view name, const GrootModel& model) {
  const GrootSizes& sizes = model.sizes();
  const bool n17 = sizes.version == GrootVersion::kN17;
  if (name == (n17 ? kHeadN17 : kHeadN16)) return true;
  const std::string_view layers = n17 ? kLayersN17 : kLayersN16;
  if (!name.starts_with(layers)) return false;
  const char* end = name.data() + name.size();
  int64_t layer = 0;
  const auto [rest, error] = std::from_chars(name.data() + layers.size(), end, layer);
  if (error != std::errc() || layer < sizes.text.depth) return false;
  // A layer has the tensors that the first one has.
  const std::string same = fmt::format("{}0{}", layers, std::string_view(rest, end));
  const auto parameters = model.named_parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const auto& own) { return own.first == same; });
}

StoredWeights groot_load_weights(GrootModel& model, const std::filesystem::path& path,
                                 const PreciseSink& sink,
                                 const std::function<bool(std::string_view)>& frozen) {
  const io::Weights weights = io::open_weights(path);
  WeightFaults faults;
  NamedInfos tensors = collect_weights(
      weights, [](std::string_view name) { return groot_public_name(name); }, faults);
  StoredWeights out;
  take_unused(model, weights, tensors, out);
  const NamedInfos sources = tensors;
  const std::vector<GrootSlotTable> tables = groot_slot_tables(model);
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
      if (part.tensor.is_meta()) continue;
      const at::Tensor precise = at::empty(part.tensor.sizes(), whole.options());
      groot_take_slots(whole, part.rows, precise);
      if (frozen(part.name)) keep_exact(out, part.name, precise, part.tensor.scalar_type());
      if (sink) sink(part.name, precise.to(at::kFloat));
    }
  }
  for (const auto& [name, parameter] : own.named_parameters()) {
    const auto source = sources.find(name);
    if (source == sources.end()) {
      out.absent.insert(name);
      continue;
    }
    const at::ScalarType dtype = io::to_scalar_type(source->second->dtype);
    out.dtypes[name] = dtype;
    if (parameter.is_meta() || dtype == parameter.scalar_type() || !frozen(name)) continue;
    keep_exact(out, name, io::to_tensor(weights, *source->second), parameter.scalar_type());
  }
  return out;
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
