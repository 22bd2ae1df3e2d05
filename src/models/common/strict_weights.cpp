#include "models/common/strict_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <utility>

#include "base/error.h"

namespace longship::models {
namespace {

void list(std::string& out, std::string_view title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  out += fmt::format("\n{} {}:", lines.size(), title);
  for (const std::string& line : lines) out += fmt::format("\n  {}", line);
}

}  // namespace

std::string shape_text(at::IntArrayRef shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return out + "]";
}

bool is_float(io::DType dtype) {
  return dtype == io::DType::kF32 || dtype == io::DType::kBF16 || dtype == io::DType::kF16 ||
         dtype == io::DType::kF64;
}

void WeightFaults::raise(const std::filesystem::path& path, std::string_view check) const {
  if (missing.empty() && unexpected.empty() && mismatched.empty()) return;
  std::string text = fmt::format("{}: the weights do not fit the configured model (check {})",
                                 path.string(), check);
  list(text, "missing tensors", missing);
  list(text, "unexpected tensors", unexpected);
  list(text, "tensors of the wrong shape or type", mismatched);
  throw CheckpointError(text);
}

NamedInfos collect_weights(
    const io::Weights& weights,
    const std::function<std::optional<std::string>(std::string_view)>& canonical,
    WeightFaults& faults) {
  NamedInfos out;
  for (const io::TensorInfo& info : weights.tensors()) {
    const std::optional<std::string> name = canonical(info.name);
    if (!name) continue;
    const auto [it, fresh] = out.emplace(*name, &info);
    if (fresh) continue;
    const bool same = it->second->shape == info.shape && it->second->dtype == info.dtype &&
                      at::equal(io::to_tensor(weights, *it->second), io::to_tensor(weights, info));
    if (!same) {
      faults.mismatched.push_back(
          fmt::format("{}: '{}' and '{}' both define it with different values", *name,
                      it->second->name, info.name));
    }
  }
  return out;
}

void copy_weights(nn::Module& module, const io::Weights& weights, NamedInfos tensors,
                  const std::filesystem::path& path, std::string_view check, WeightFaults faults,
                  const PreciseSink& sink, const std::function<bool(std::string_view)>& optional) {
  std::vector<std::tuple<std::string, at::Tensor, const io::TensorInfo*>> copies;
  for (const auto& [name, parameter] : module.named_parameters()) {
    const auto it = tensors.find(name);
    if (it == tensors.end() && optional && optional(name)) {
      copies.emplace_back(name, parameter, nullptr);
      continue;
    }
    if (it == tensors.end()) {
      faults.missing.push_back(fmt::format("{} {}", name, shape_text(parameter.sizes())));
      continue;
    }
    if (parameter.sizes() != at::IntArrayRef(it->second->shape) || !is_float(it->second->dtype)) {
      faults.mismatched.push_back(fmt::format("{}: {} in the file, {} expected", name,
                                              io::describe(*it->second),
                                              shape_text(parameter.sizes())));
    }
    copies.emplace_back(name, parameter, it->second);
    tensors.erase(it);
  }
  for (const auto& [name, info] : tensors) {
    faults.unexpected.push_back(fmt::format("{} {}", info->name, io::describe(*info)));
  }
  faults.raise(path, check);
  for (auto& [name, parameter, info] : copies) {
    if (parameter.is_meta()) continue;
    const at::Tensor value =
        info != nullptr ? io::to_tensor(weights, *info) : at::zeros(parameter.sizes(), at::kFloat);
    if (nn::has_memory(parameter)) parameter.detach().copy_(value);
    if (sink) sink(name, value.to(at::kFloat));
  }
}

std::vector<NamedTensor> export_parameters(const nn::Module& module,
                                           std::span<const NamedTensor> values,
                                           std::string_view family) {
  std::map<std::string_view, at::Tensor> replaced;
  for (const NamedTensor& value : values) replaced[value.name] = value.tensor;
  std::vector<NamedTensor> out;
  for (const auto& [name, parameter] : module.named_parameters()) {
    const auto it = replaced.find(name);
    at::Tensor tensor = it == replaced.end() ? parameter.detach() : it->second;
    if (it != replaced.end()) {
      LS_CHECK(tensor.sizes() == parameter.sizes(), ShapeError,
               "{} export: the value given for '{}' has shape {}, the parameter {}", family, name,
               shape_text(tensor.sizes()), shape_text(parameter.sizes()));
      replaced.erase(it);
    }
    out.push_back({name, tensor});
  }
  LS_CHECK(replaced.empty(), InternalError, "{} export: no parameter is called '{}'", family,
           replaced.begin()->first);
  return out;
}

void initialise_parameters(nn::Module& module, const PreciseSink& sink,
                           const std::function<void(const std::string&, at::Tensor&)>& fill) {
  module.for_each_parameter([&](const std::string& name, at::Tensor& parameter) {
    const bool memory = parameter.is_meta() || nn::has_memory(parameter);
    LS_CHECK(memory || sink, InternalError, "'{}' has no memory to be initialised", name);
    if (memory && (!sink || parameter.scalar_type() == at::kFloat || parameter.is_meta())) {
      fill(name, parameter);
      if (sink && !parameter.is_meta()) sink(name, parameter.detach());
      return;
    }
    at::Tensor precise = at::empty(parameter.sizes(), parameter.options().dtype(at::kFloat));
    fill(name, precise);
    if (memory) parameter.detach().copy_(precise);
    sink(name, precise);
  });
}

}  // namespace longship::models
