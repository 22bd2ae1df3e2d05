#include "models/groot/batch.h"

#include <fmt/core.h>

#include "base/error.h"

namespace longship::models {

std::vector<std::pair<std::string, at::Tensor*>> GrootBatch::tensors() {
  std::vector<std::pair<std::string, at::Tensor*>> out;
  const auto add = [&](const char* name, at::Tensor& tensor) {
    if (tensor.defined()) out.emplace_back(name, &tensor);
  };
  add("patches", patches);
  // Behind prepare() only the layout's tokens are read, whose number says nothing of lengths.
  if (!layout.ready()) add("token_ids", token_ids);
  add("state", state);
  add("actions", actions);
  add("action_mask", action_mask);
  add("embodiment", embodiment);
  add("noise", noise);
  add("beta", beta);
  add("state_u", state_u);
  add("dropout_keys", dropout_keys);
  add("features", features);
  for (auto& entry : layout.tensors()) out.push_back(entry);
  return out;
}

std::unique_ptr<Batch> GrootBatch::clone() const {
  return std::make_unique<GrootBatch>(*this);
}

std::string GrootBatch::signature() const {
  LS_CHECK(layout.ready(), InternalError, "GR00T batch: signature() before prepare()");
  std::string out = fmt::format("B{} {}", size(), layout.signature());
  if (one_embodiment) out += fmt::format(" E{}", *one_embodiment);
  if (text_and_images) out += " text and pictures";
  return out;
}

GrootBatch& groot_batch(Batch& batch) {
  return const_cast<GrootBatch&>(groot_batch(static_cast<const Batch&>(batch)));
}

const GrootBatch& groot_batch(const Batch& batch) {
  const auto* own = dynamic_cast<const GrootBatch*>(&batch);
  LS_CHECK(own != nullptr, InternalError,
           "GR00T: the batch was made by another family's transform");
  return *own;
}

}  // namespace longship::models
