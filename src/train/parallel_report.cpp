#include "train/parallel_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/speed_of_light.h"

namespace longship::train {
namespace {

std::map<std::string, dist::CollectiveCounter> over_all(const GradientSync::Traffic& traffic) {
  std::map<std::string, dist::CollectiveCounter> out;
  for (const auto& counters : traffic) {
    for (const auto& [name, counter] : counters) out[name] += counter;
  }
  return out;
}

}  // namespace

dist::CostOptions cost_options(const Recipe& recipe, const dist::LaunchInfo& launch,
                               const GradientSync* sync) {
  dist::CostOptions out;
  out.strategy = launch.world_size == 1 ? dist::Strategy::kNone
                                        : dist::parse_strategy(recipe.parallel.strategy);
  out.micro_batches = recipe.train.num_micro(launch.world_size);
  if (out.strategy == dist::Strategy::kHsdp) {
    out.shard_size = hsdp_shard_size(recipe.parallel, launch);
  }
  out.reshard = dist::parse_reshard(recipe.parallel.reshard);
  out.ema = recipe.optim.ema.has_value();
  out.gradients_stay = recipe.train.cuda_graph == "per_microbatch";
  out.widened = sync != nullptr && sync->widens();
  return out;
}

dist::MemoryForecast held_memory(const Assembly& assembly) {
  dist::MemoryForecast out;
  if (assembly.sync) {
    out = assembly.sync->held_memory();
  } else {
    std::set<const void*> counted;  // gradients of a stack share their storage
    const auto bytes = [&](const at::Tensor& t) -> int64_t {
      if (!t.defined() || !counted.insert(t.storage().data()).second) return 0;
      return static_cast<int64_t>(t.storage().nbytes());
    };
    for (const models::ParamInfo& info : assembly.policy->parameters()) {
      out.parameters += static_cast<int64_t>(info.tensor.nbytes());
      out.gradients += bytes(info.row_sparse ? info.row_sparse->grad : info.tensor.grad());
    }
  }
  const auto bytes = [](const at::Tensor& t) {
    return t.defined() ? static_cast<int64_t>(t.nbytes()) : 0;
  };
  for (const AdamW::Entry& entry : assembly.optimizer->entries()) {
    if (entry.param.scalar_type() != at::kFloat) out.masters += bytes(entry.master);
    out.moments += bytes(entry.exp_avg) + bytes(entry.exp_avg_sq);
    out.ema += bytes(entry.ema);
  }
  return out;
}

nlohmann::json memory_plan_json(const dist::MemoryForecast& planned,
                                const dist::MemoryForecast& held) {
  using Forecast = dist::MemoryForecast;
  constexpr std::pair<const char*, int64_t Forecast::*> kComponents[] = {
      {"parameters", &Forecast::parameters},
      {"gradients", &Forecast::gradients},
      {"reduce_buffers", &Forecast::reduce_buffers},
      {"masters", &Forecast::masters},
      {"moments", &Forecast::moments},
      {"ema", &Forecast::ema},
      {"gathered", &Forecast::gathered}};
  nlohmann::json out = nlohmann::json::object();
  double worst = 0;
  for (const auto& [name, member] : kComponents) {
    const int64_t plan = planned.*member, found = held.*member;
    if (plan == 0 && found == 0) continue;
    out[name] = {{"planned", plan}, {"held", found}};
    worst = std::max(
        worst,
        plan == 0 ? 1.0 : std::abs(static_cast<double>(found) / static_cast<double>(plan) - 1));
  }
  out["total"] = {{"planned", planned.total()}, {"held", held.total()}};
  out["worst"] = runtime::rounded(worst);
  return out;
}

nlohmann::json parallel_json(Parallel& parallel, const Recipe& recipe, const Assembly& assembly,
                             const OwnSteps& own) {
  const auto steps = static_cast<double>(std::max<size_t>(own.step_ms.size(), 1));
  const dist::CostOptions cost = cost_options(recipe, parallel.launch(), assembly.sync.get());
  const auto predicted = dist::predict_communication(assembly.sync->plan(), cost);
  nlohmann::json collectives = nlohmann::json::object();
  double sent = 0, planned = 0, spent = 0;
  for (const auto& [name, counter] : over_all(own.traffic)) {
    const auto found = predicted.find(name);
    const double mb = 1e-6 * static_cast<double>(counter.wire_bytes) / steps;
    const double plan_mb =
        found == predicted.end() ? 0 : 1e-6 * static_cast<double>(found->second.wire_bytes);
    sent += mb;
    planned += plan_mb;
    spent += counter.elapsed_ms / steps;
    collectives[name] = {{"count", runtime::rounded(static_cast<double>(counter.count) / steps)},
                         {"mb", runtime::rounded(mb)},
                         {"predicted_mb", runtime::rounded(plan_mb)},
                         {"ms", runtime::rounded(counter.elapsed_ms / steps)}};
  }
  const double median = runtime::percentiles(own.step_ms).median;
  const auto rows = parallel.gather({median, median - own.exposed_ms});
  nlohmann::json ranks = nlohmann::json::array();
  size_t slowest = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    ranks.push_back({{"rank", r},
                     {"step_ms", runtime::rounded(rows[r][0])},
                     {"own_ms", runtime::rounded(rows[r][1])}});
    if (rows[r][1] > rows[slowest][1]) slowest = r;
  }
  return {{"world_size", parallel.world_size()},
          {"strategy", assembly.sync->strategy()},
          {"collectives", collectives},
          {"sent_mb", runtime::rounded(sent)},
          {"predicted_mb", runtime::rounded(planned)},
          {"comm_ms", runtime::rounded(spent)},
          {"exposed_ms", runtime::rounded(own.exposed_ms)},
          {"ranks", ranks},
          {"slowest_rank", slowest}};
}

}  // namespace longship::train
