#include "nn/module.h"

#include <ATen/ops/empty.h>

namespace longship::nn {

void Module::register_parameter(std::string name, at::Tensor& member, std::vector<int64_t> shape) {
  member = at::empty(shape, at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
  parameters_.emplace_back(std::move(name), &member);
}

void Module::register_child(std::string name, Module& child) {
  children_.emplace_back(std::move(name), &child);
}

void Module::walk(const std::string& prefix,
                  const std::function<void(const std::string&, at::Tensor&)>& visit) const {
  for (const auto& [name, tensor] : parameters_) visit(prefix + name, *tensor);
  for (const auto& [name, child] : children_) child->walk(prefix + name + ".", visit);
}

std::vector<std::pair<std::string, at::Tensor>> Module::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  walk("", [&](const std::string& name, at::Tensor& tensor) { out.emplace_back(name, tensor); });
  return out;
}

void Module::for_each_parameter(const std::function<void(const std::string&, at::Tensor&)>& visit) {
  walk("", visit);
}

int64_t Module::num_elements() const {
  int64_t n = 0;
  walk("", [&](const std::string&, at::Tensor& tensor) { n += tensor.numel(); });
  return n;
}

void Module::materialise(at::Device device,
                         const std::function<at::ScalarType(std::string_view)>& dtype_of) {
  walk("", [&](const std::string& name, at::Tensor& tensor) {
    tensor = at::empty(tensor.sizes(), at::TensorOptions().dtype(dtype_of(name)).device(device));
  });
}

}  // namespace longship::nn
