#include "nn/module.h"

#include <ATen/ops/empty.h>

#include <map>

#include "base/error.h"

namespace longship::nn {
namespace {

/// One allocation for the members of a stack; false when their dtypes differ.
bool place_stack(const std::vector<at::Tensor*>& members,
                 const std::map<const at::Tensor*, at::ScalarType>& dtypes, at::Device device) {
  const at::ScalarType dtype = dtypes.at(members.front());
  std::vector<int64_t> shape = members.front()->sizes().vec();
  shape[0] = 0;
  for (const at::Tensor* member : members) {
    if (dtypes.at(member) != dtype) return false;
    shape[0] += member->size(0);
  }
  const at::Tensor all = at::empty(shape, at::TensorOptions().dtype(dtype).device(device));
  int64_t row = 0;
  for (at::Tensor* member : members) {
    const int64_t rows = member->size(0);
    *member = all.narrow(0, row, rows).detach();
    row += rows;
  }
  return true;
}

}  // namespace

void Module::register_parameter(std::string name, at::Tensor& member, std::vector<int64_t> shape) {
  member = at::empty(shape, at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
  parameters_.emplace_back(std::move(name), &member);
}

void Module::register_child(std::string name, Module& child) {
  children_.emplace_back(std::move(name), &child);
}

void Module::register_stack(std::vector<at::Tensor*> members) {
  LS_CHECK(!members.empty(), InternalError, "an empty stack of parameters");
  for (const at::Tensor* member : members) {
    LS_CHECK(member->sizes().slice(1) == members.front()->sizes().slice(1), InternalError,
             "stacked parameters differ in more than the first dimension");
  }
  stacks_.push_back(std::move(members));
}

void Module::walk(const std::string& prefix,
                  const std::function<void(const std::string&, at::Tensor&)>& visit) const {
  for (const auto& [name, tensor] : parameters_) visit(prefix + name, *tensor);
  for (const auto& [name, child] : children_) child->walk(prefix + name + ".", visit);
}

void Module::collect_stacks(std::vector<std::vector<at::Tensor*>>& out) const {
  out.insert(out.end(), stacks_.begin(), stacks_.end());
  for (const auto& [name, child] : children_) child->collect_stacks(out);
}

std::vector<std::pair<std::string, at::Tensor>> Module::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  walk("", [&](const std::string& name, at::Tensor& tensor) { out.emplace_back(name, tensor); });
  return out;
}

void Module::for_each_parameter(const std::function<void(const std::string&, at::Tensor&)>& visit) {
  walk("", visit);
}

std::vector<std::vector<std::string>> Module::stacks() const {
  std::map<const at::Tensor*, std::string> names;
  walk("", [&](const std::string& name, at::Tensor& tensor) { names[&tensor] = name; });
  std::vector<std::vector<at::Tensor*>> stacks;
  collect_stacks(stacks);
  std::vector<std::vector<std::string>> out;
  for (const auto& stack : stacks) {
    out.emplace_back();
    for (const at::Tensor* member : stack) out.back().push_back(names.at(member));
  }
  return out;
}

int64_t Module::num_elements() const {
  int64_t n = 0;
  walk("", [&](const std::string&, at::Tensor& tensor) { n += tensor.numel(); });
  return n;
}

void Module::materialise(at::Device device,
                         const std::function<at::ScalarType(std::string_view)>& dtype_of,
                         bool memory) {
  if (!memory && device.type() != at::kMeta) {
    walk("", [&](const std::string& name, at::Tensor& tensor) {
      const std::vector<int64_t> shape = tensor.sizes().vec();
      tensor = at::empty({0}, at::TensorOptions().dtype(dtype_of(name)).device(device));
      tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
    });
    return;
  }
  std::map<const at::Tensor*, at::ScalarType> dtypes;
  walk("", [&](const std::string& name, at::Tensor& tensor) { dtypes[&tensor] = dtype_of(name); });
  std::vector<std::vector<at::Tensor*>> stacks;
  collect_stacks(stacks);
  for (const auto& stack : stacks) {
    if (!place_stack(stack, dtypes, device)) continue;
    for (const at::Tensor* member : stack) dtypes.erase(member);
  }
  walk("", [&](const std::string&, at::Tensor& tensor) {
    const auto it = dtypes.find(&tensor);
    if (it == dtypes.end()) return;
    tensor = at::empty(tensor.sizes(), at::TensorOptions().dtype(it->second).device(device));
  });
}

}  // namespace longship::nn
