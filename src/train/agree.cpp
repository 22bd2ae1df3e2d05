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
#include "train/checkpoint_io.h"
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

/// `from` gives the weights where it is not null.
std::unique_ptr<models::Policy> make_policy(const Recipe& recipe, models::Policy* from) {
  const at::Device device = runtime::parse_device(recipe.train.device);
  auto policy = recipe.family->build(*recipe.model, build_options(recipe, device));
  if (from != nullptr) {
    const at::NoGradGuard no_grad;
    const auto source = from->parameters(), target = policy->parameters();
    for (size_t i = 0; i < source.size(); ++i) {
      at::Tensor tensor = target[i].tensor;
      tensor.copy_(source[i].tensor);
    }
    return policy;
  }
  fill_weights(*policy, recipe);
  return policy;
}

struct Sums {
  double dot = 0, a = 0, b = 0;
};

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
                     const FamilyLookup& lookup) {
  const Recipe first = changed(recipe, {}, dataset, lookup);
  const Recipe second = changed(recipe, overrides, dataset, lookup);
  const auto batch = first_batch(first, dataset, options);
  const auto policy = make_policy(first, nullptr);
  const auto other = make_policy(second, policy.get());
  const auto [loss, grads] = one_step(first, *batch, *policy);
  const auto [loss_other, grads_other] = one_step(second, *batch, *other);
  std::map<std::string, Sums> groups;
  for (const auto& [name, a] : grads) {
    if (name.ends_with("k_proj.bias")) continue;  // its true gradient is zero
    const auto it = grads_other.find(name);
    LS_CHECK(it != grads_other.end(), InternalError, "'{}' has a gradient in one setting only",
             name);
    const at::Tensor x = a.flatten().to(at::kFloat), y = it->second.flatten().to(at::kFloat);
    Sums& sums = groups[layer_group(name)];
    sums.dot += x.dot(y).item<double>();
    sums.a += x.dot(x).item<double>();
    sums.b += y.dot(y).item<double>();
  }
  nlohmann::json out;
  double worst = 1;
  for (const auto& [group, sums] : groups) {
    const double scale = std::sqrt(sums.a * sums.b);
    const double cosine = scale > 0 ? sums.dot / scale : (sums.a == sums.b ? 1 : 0);
    worst = std::min(worst, cosine);
    out["groups"].push_back({{"group", group},
                             {"cosine", cosine},
                             {"norm", runtime::rounded(std::sqrt(sums.a))},
                             {"norm_other", runtime::rounded(std::sqrt(sums.b))}});
  }
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
