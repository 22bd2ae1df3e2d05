#include "train/ablate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/config/load.h"
#include "base/error.h"
#include "base/log.h"
#include "runtime/stream.h"

namespace longship::train {
namespace {

/// A setting and the value that is the plain way.
struct Switch {
  std::string key, off;
};

const std::vector<Switch>& all_switches() {
  static const std::vector<Switch> switches = {{"perf.fused_norms", "false"},
                                               {"perf.fused_activations", "false"},
                                               {"perf.fused_rope", "false"},
                                               {"perf.fused_loss", "false"},
                                               {"perf.fused_optimizer", "false"},
                                               {"perf.sparse_embedding", "false"},
                                               {"perf.stacked_linears", "false"},
                                               {"perf.flash_attention", "false"},
                                               {"perf.pack_text", "false"},
                                               {"perf.copy_ahead", "false"},
                                               {"perf.two_graphs", "false"},
                                               {"model.train_slots", "all"},
                                               {"perf.feature_cache", "0"},
                                               {"perf.grid_cache", "false"},
                                               {"train.cuda_graph", "none"},
                                               {"train.recompute", "none"},
                                               {"train.fp8", "null"}};
  return switches;
}

std::vector<Switch> chosen(const Recipe& recipe, const std::vector<std::string>& only) {
  std::vector<Switch> out;
  const auto values = flatten(recipe);
  for (const Switch& one : all_switches()) {
    const auto it = std::find_if(values.begin(), values.end(),
                                 [&](const auto& entry) { return entry.first == one.key; });
    const bool on = it != values.end() && it->second != one.off;
    const bool asked = std::find(only.begin(), only.end(), one.key) != only.end();
    LS_CHECK(!asked || on, ConfigError, "--only: {} is off already in this recipe", one.key);
    if (on && (only.empty() || asked)) out.push_back(one);
  }
  for (const std::string& key : only) {
    const bool known = std::any_of(all_switches().begin(), all_switches().end(),
                                   [&](const Switch& one) { return one.key == key; });
    std::vector<std::string> names;
    for (const Switch& one : all_switches()) names.push_back(one.key);
    LS_CHECK(known, ConfigError, "--only: '{}' is no switch; choose from {}", key,
             fmt::join(names, ", "));
  }
  return out;
}

double loss_error(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  const size_t n = std::min(a.size(), b.size());
  for (size_t i = 0; i < n; ++i) sum += std::abs(a[i] - b[i]) / std::max(std::abs(a[i]), 1e-12);
  return n == 0 ? 0 : sum / static_cast<double>(n);
}

/// The number at a path such as "/memory/named"; 0 where the report has none.
double number(const nlohmann::json& report, const char* path) {
  const nlohmann::json::json_pointer at(path);
  return report.contains(at) && report.at(at).is_number() ? report.at(at).get<double>() : 0;
}

}  // namespace

nlohmann::json ablate(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
                      const BenchOptions& options, const std::vector<std::string>& only,
                      const FamilyLookup& lookup) {
  const std::vector<Switch> switches = chosen(recipe, only);
  const double bound = recipe.train.fp8 ? 5e-2 : recipe.train.dtype == "bf16" ? 2e-2 : 1e-4;
  BenchLosses base_losses;
  nlohmann::json out;
  out["base"] = bench_train(recipe, dataset, options, lookup, &base_losses);
  out["loss_bound"] = bound;
  bool agree = true;
  for (const Switch& one : switches) {
    runtime::release_cached_memory();
    std::vector<std::string> overrides{one.key + "=" + one.off};
    if (one.key == "perf.fused_optimizer") overrides.push_back("train.cuda_graph=none");
    log::info("without {}", one.key);
    BenchLosses losses;
    const nlohmann::json report =
        bench_train(with_overrides(recipe, overrides, lookup), dataset, options, lookup, &losses);
    const auto added = [&](const char* path) {
      return number(report, path) - number(out["base"], path);
    };
    const double error = loss_error(base_losses.losses, losses.losses);
    agree = agree && error <= bound;
    out["rows"].push_back({{"switch", one.key},
                           {"off", fmt::format("{}", fmt::join(overrides, " "))},
                           {"ms", added("/ms_per_step/median")},
                           {"gib", added("/memory/allocator/reserved_peak") / (1 << 30)},
                           {"launches", added("/profile/kernels_per_step")},
                           {"idle_ms", added("/profile/idle_us_per_step") / 1e3},
                           {"loss_error", error},
                           {"agrees", error <= bound}});
  }
  out["agree"] = agree;
  return out;
}

std::string ablation_text(const nlohmann::json& report) {
  std::string out = fmt::format("{:<26} {:>9} {:>8} {:>9} {:>9} {:>11}\n", "turned off", "ms",
                                "GiB", "launches", "idle ms", "loss error");
  if (!report.contains("rows")) return out + "(no switch is on)\n";
  for (const auto& row : report["rows"]) {
    out += fmt::format("{:<26} {:>+9.2f} {:>+8.2f} {:>+9.0f} {:>+9.2f} {:>11.2e}{}\n",
                       row["switch"].get<std::string>(), row["ms"].get<double>(),
                       row["gib"].get<double>(), row["launches"].get<double>(),
                       row["idle_ms"].get<double>(), row["loss_error"].get<double>(),
                       row["agrees"].get<bool>() ? "" : "  TOO LARGE");
  }
  return out;
}

}  // namespace longship::train
