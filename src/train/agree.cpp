#include "train/agree.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/sampler.h"
#include "data/split.h"
#include "runtime/device.h"
#include "runtime/speed_of_light.h"
#include "train/assembly.h"
#include "train/checkpoint_io.h"
#include "train/schedule.h"
#include "train/session.h"

namespace longship::train {
namespace {

using Gradients = std::map<std::string, at::Tensor>;

Recipe changed(const Recipe& recipe, const std::vector<std::string>& overrides,
               const std::shared_ptr<const data::Dataset>& dataset, const FamilyLookup& lookup) {
  Recipe out = with_overrides(recipe, overrides, lookup);
  if (dataset) out.model->bind_dataset(*dataset);
  return out;
}

/// Loss and gradients of `batch`.
std::pair<double, Gradients> one_step(const Recipe& recipe, const models::Batch& batch,
                                      models::Policy& policy) {
  apply_library_settings(recipe);
  policy.begin_step();
  at::Tensor loss = policy.loss(batch, {static_cast<uint64_t>(recipe.train.seed), 0}).loss;
  loss.backward();
  Gradients out;
  for (const models::ParamInfo& info : policy.parameters()) {
    if (info.role != models::ParamRole::kTrainable) continue;
    const at::Tensor grad = info.row_sparse ? info.row_sparse->grad : info.tensor.grad();
    if (grad.defined()) out[info.name] = grad;
  }
  return {loss.item<double>(), std::move(out)};
}

std::unique_ptr<models::Policy> copy_of(models::Policy& from, const Recipe& recipe) {
  const at::Device device = runtime::parse_device(recipe.train.device);
  auto policy = recipe.family->build(*recipe.model, build_options(recipe, device));
  const at::NoGradGuard no_grad;
  const auto source = from.parameters(), target = policy->parameters();
  for (size_t i = 0; i < source.size(); ++i) {
    at::Tensor tensor = target[i].tensor;
    tensor.copy_(source[i].tensor);
  }
  return policy;
}

/// Weights of the recipe after `num_updates` of its steps on `batch`; their losses go to `losses`.
std::unique_ptr<models::Policy> trained(const Recipe& recipe, const models::Batch& batch,
                                        int64_t num_updates, std::vector<double>& losses) {
  const at::Device device = runtime::parse_device(recipe.train.device);
  if (num_updates == 0) {
    auto policy = recipe.family->build(*recipe.model, build_options(recipe, device));
    fill_weights(*policy, recipe);
    return policy;
  }
  apply_library_settings(recipe);
  Assembly assembly = assemble(recipe, device);
  const Schedule schedule(recipe.optim.schedule, recipe.optim.lr, recipe.train.steps);
  const auto scalars = [&](int64_t updates) {
    return UpdateScalars{schedule.lr(updates),
                         recipe.optim.weight_decay_ramp.value(recipe.optim.weight_decay, updates)};
  };
  for (int64_t i = 0; i < num_updates; ++i) {
    std::vector<std::unique_ptr<models::Batch>> micro;
    micro.push_back(batch.clone());
    assembly.policy->prepare(*micro.back(), {static_cast<uint64_t>(recipe.train.seed), 0});
    assembly.engine->submit(i, std::move(micro), i, scalars(i), scalars(i + 1));
    const StepReport report = assembly.engine->take_report();
    if (!report.fault.empty()) throw NonFiniteError("bench agree: " + report.fault);
    losses.push_back(report.loss);
  }
  for (const models::ParamInfo& info : assembly.policy->parameters()) {
    at::Tensor tensor = info.tensor;
    tensor.mutable_grad().reset();
  }
  return std::move(assembly.policy);
}

/// Sums over the elements of one or several gradients: a of the first setting, b of the second.
struct Sums {
  double dot = 0, a = 0, b = 0;
  double signed_b = 0;  // sum of sign(a) * b: what b promises for a step along the signs of a
  double l1_b = 0;

  void add(const Sums& other) {
    dot += other.dot;
    a += other.a;
    b += other.b;
    signed_b += other.signed_b;
    l1_b += other.l1_b;
  }
  double cosine() const {
    const double scale = std::sqrt(a * b);
    return scale > 0 ? dot / scale : (a == b ? 1 : 0);
  }
  nlohmann::json json() const {
    return {{"cosine", cosine()},
            {"norm", runtime::rounded(std::sqrt(a))},
            {"norm_other", runtime::rounded(std::sqrt(b))},
            {"l1_other", runtime::rounded(l1_b)},
            {"sign_agreement", l1_b > 0 ? signed_b / l1_b : 1}};
  }
};

Sums sums_of(const at::Tensor& first, const at::Tensor& second) {
  const at::Tensor x = first.flatten().to(at::kFloat), y = second.flatten().to(at::kFloat);
  return {x.dot(y).item<double>(), x.dot(x).item<double>(), y.dot(y).item<double>(),
          x.sign().dot(y).item<double>(), y.abs().sum().item<double>()};
}

}  // namespace

std::string layer_group(const std::string& name) {
  const size_t at = name.find(".layers.");
  if (at == std::string::npos) return name.substr(0, name.rfind('.'));
  size_t end = at + 8;
  while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
  return name.substr(0, end);
}

nlohmann::json agree(const Recipe& recipe, const std::vector<std::string>& overrides,
                     std::shared_ptr<const data::Dataset> dataset, const BenchOptions& options,
                     int64_t num_updates, const FamilyLookup& lookup) {
  const Recipe first = changed(recipe, {}, dataset, lookup);
  const Recipe second = changed(recipe, overrides, dataset, lookup);
  const auto batch = first_batch(first, dataset, options);
  std::vector<double> losses;
  const auto policy = trained(first, *batch, num_updates, losses);
  const auto other = copy_of(*policy, second);
  const auto [loss, grads] = one_step(first, *batch, *policy);
  const auto [loss_other, grads_other] = one_step(second, *batch, *other);
  nlohmann::json out;
  std::map<std::string, Sums> groups;
  for (const auto& [name, a] : grads) {
    if (name.ends_with("k_proj.bias")) continue;  // its true gradient is zero
    const auto it = grads_other.find(name);
    LS_CHECK(it != grads_other.end(), InternalError, "'{}' has a gradient in one setting only",
             name);
    const Sums sums = sums_of(a, it->second);
    groups[layer_group(name)].add(sums);
    nlohmann::json row = sums.json();
    row["tensor"] = name;
    out["tensors"].push_back(std::move(row));
  }
  double worst = 1;
  for (const auto& [group, sums] : groups) {
    worst = std::min(worst, sums.cosine());
    nlohmann::json row = sums.json();
    row["group"] = group;
    out["groups"].push_back(std::move(row));
  }
  out["updates"] = num_updates;
  out["losses_before"] = losses;
  out["loss"] = loss;
  out["loss_other"] = loss_other;
  out["loss_error"] = std::abs(loss - loss_other) / std::max(std::abs(loss_other), 1e-30);
  out["worst_cosine"] = worst;
  out["overrides"] = overrides;
  out["device"] = runtime::describe(runtime::parse_device(first.train.device));
  return out;
}

std::string agreement_text(const nlohmann::json& report) {
  std::string out =
      fmt::format("loss {:.6f} against {:.6f}: {:.2e}\nworst gradient cosine {:.6f}\n",
                  report["loss"].get<double>(), report["loss_other"].get<double>(),
                  report["loss_error"].get<double>(), report["worst_cosine"].get<double>());
  for (const auto& row : report["groups"]) {
    out +=
        fmt::format("  {:.6f}  {}\n", row["cosine"].get<double>(), row["group"].get<std::string>());
  }
  return out;
}

}  // namespace longship::train
