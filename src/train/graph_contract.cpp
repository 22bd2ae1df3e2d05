#include "train/graph_contract.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.h"

namespace longship::train {
namespace {

std::string shape_of(c10::IntArrayRef sizes, at::ScalarType dtype) {
  return fmt::format("[{}] {}", fmt::join(sizes, ", "), c10::toString(dtype));
}

}  // namespace

GraphContract::GraphContract(const std::vector<std::unique_ptr<models::Batch>>& inputs,
                             const std::vector<Named>& touched) {
  for (const auto& batch : inputs) {
    signatures_.push_back(batch->signature());
    std::vector<Input>& own = inputs_.emplace_back();
    for (const auto& [name, tensor] : batch->tensors()) {
      own.push_back({name, tensor->sizes().vec(), tensor->scalar_type(), tensor->device()});
      touched_.push_back({"input " + name, *tensor, tensor->const_data_ptr(), tensor->sizes().vec(),
                          tensor->strides().vec()});
    }
  }
  for (const auto& [name, tensor] : touched) {
    if (!tensor.defined()) continue;
    touched_.push_back(
        {name, tensor, tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec()});
  }
}

std::string GraphContract::mismatch(const std::vector<std::unique_ptr<models::Batch>>& micro,
                                    bool one_input) const {
  std::string why = memory_mismatch();
  for (size_t m = 0; m < micro.size() && why.empty(); ++m) {
    why = input_mismatch(*micro[m], one_input ? 0 : m);
  }
  return why;
}

std::string GraphContract::input_mismatch(models::Batch& batch, size_t index) const {
  if (index >= inputs_.size()) {
    return fmt::format("the graph has {} micro-batches, the step more", inputs_.size());
  }
  const auto given = batch.tensors();
  const std::vector<Input>& own = inputs_[index];
  for (size_t i = 0; i < std::min(given.size(), own.size()); ++i) {
    const at::Tensor& tensor = *given[i].second;
    if (given[i].first != own[i].name) {
      return fmt::format("input '{}' where the graph has '{}'", given[i].first, own[i].name);
    }
    if (tensor.sizes() != own[i].sizes || tensor.scalar_type() != own[i].dtype) {
      return fmt::format("input '{}' is {}, the graph was captured with {}", own[i].name,
                         shape_of(tensor.sizes(), tensor.scalar_type()),
                         shape_of(own[i].sizes, own[i].dtype));
    }
  }
  if (given.size() != own.size()) {
    return fmt::format("the step has {} inputs, the graph {}", given.size(), own.size());
  }
  const std::string signature = batch.signature();
  if (signature == signatures_[index]) return {};
  return fmt::format("the batch is '{}', the graph was captured with '{}'", signature,
                     signatures_[index]);
}

std::string GraphContract::memory_mismatch() const {
  for (const Touched& one : touched_) {
    if (!one.tensor.defined() || !one.tensor.has_storage()) {
      return fmt::format("{} has lost its memory", one.name);
    }
    if (one.tensor.const_data_ptr() != one.address) {
      return fmt::format("{} has moved from {} to {}", one.name, fmt::ptr(one.address),
                         fmt::ptr(one.tensor.const_data_ptr()));
    }
    if (one.tensor.sizes() != one.sizes || one.tensor.strides() != one.strides) {
      return fmt::format("{} is [{}] with strides [{}], at the capture [{}] with [{}]", one.name,
                         fmt::join(one.tensor.sizes(), ", "), fmt::join(one.tensor.strides(), ", "),
                         fmt::join(one.sizes, ", "), fmt::join(one.strides, ", "));
    }
  }
  return {};
}

std::string graph_key(const std::vector<std::unique_ptr<models::Batch>>& micro) {
  std::string key;
  for (const auto& batch : micro) key += batch->signature() + ";";
  return key;
}

void warn_graphs_dropped(std::string_view what) {
  log::warn(
      "more than {} shapes of {}: their graphs are dropped and captured again; a larger "
      "perf.token_bucket gives fewer shapes where texts differ in length",
      kMaxGraphs, what);
}

}  // namespace longship::train
