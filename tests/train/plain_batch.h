#pragma once
// A batch that is nothing but its tensors.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/spec.h"

namespace longship::train::testing {

struct PlainBatch : models::Batch {
  std::vector<std::pair<std::string, at::Tensor>> values;
  std::string mark = "plain";
  std::vector<std::pair<std::string, at::Tensor*>> tensors() override {
    std::vector<std::pair<std::string, at::Tensor*>> out;
    for (auto& [name, tensor] : values) out.emplace_back(name, &tensor);
    return out;
  }
  std::unique_ptr<models::Batch> clone() const override {
    return std::make_unique<PlainBatch>(*this);
  }
  std::string signature() const override { return mark; }
};

}  // namespace longship::train::testing
