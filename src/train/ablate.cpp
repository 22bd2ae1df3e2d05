#include "train/ablate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "runtime/device.h"
#include "runtime/stream.h"
#include "train/switches.h"

namespace longship::train {
namespace {

struct Outcome {
  nlohmann::json report;
  std::vector<double> losses;
};

/// Runs a recipe under settings, each combination once.
class Variants {
 public:
  Variants(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
           const BenchOptions& options, const FamilyLookup& lookup)
      : recipe_(recipe), dataset_(std::move(dataset)), options_(options), lookup_(lookup) {}

  const Outcome& run(const std::vector<std::string>& settings) {
    const std::string name = fmt::format("{}", fmt::join(settings, " "));
    const auto known = outcomes_.find(name);
    if (known != outcomes_.end()) return known->second;
    runtime::release_cached_memory();
    log::info("measuring {}", name.empty() ? "the recipe" : name);
    BenchLosses losses;
    nlohmann::json report = bench_train(with_overrides(recipe_, settings, lookup_), dataset_,
                                        options_, lookup_, &losses);
    return outcomes_[name] = {std::move(report), std::move(losses.losses)};
  }

 private:
  const Recipe& recipe_;
  std::shared_ptr<const data::Dataset> dataset_;
  const BenchOptions& options_;
  const FamilyLookup& lookup_;
  std::map<std::string, Outcome> outcomes_;
};

double loss_error(const std::vector<double>& a, const std::vector<double>& b) {
  LS_CHECK(a.size() == b.size() && !a.empty(), InternalError,
           "ablate compares runs of {} and {} steps", a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += std::abs(a[i] - b[i]) / std::max(std::abs(a[i]), 1e-12);
  }
  return sum / static_cast<double>(a.size());
}

/// The number at a path such as "/memory/named"; 0 where the report has none.
double number(const nlohmann::json& report, const char* path) {
  const nlohmann::json::json_pointer at(path);
  return report.contains(at) && report.at(at).is_number() ? report.at(at).get<double>() : 0;
}

SwitchFacts facts_of(const Recipe& recipe, const data::Dataset* dataset,
                     const BenchOptions& options, const FamilyLookup& lookup) {
  SwitchFacts out;
  out.device = runtime::parse_device(recipe.train.device);
  out.random_batches = options.synthetic_tokens.has_value();
  out.preloaded = options.preload;
  const Recipe bound = with_overrides(recipe, {}, lookup);
  if (dataset != nullptr) bound.model->bind_dataset(*dataset);
  const models::BuildOptions shapes{.device = at::kMeta, .initialise = false};
  out.frozen_part = bound.family->build(*bound.model, shapes)->has_frozen_part();
  return out;
}

nlohmann::json row_of(const SwitchRow& row, const Outcome& with, const Outcome& without,
                      double bound) {
  const auto added = [&](const char* path) {
    return number(without.report, path) - number(with.report, path);
  };
  const double error = loss_error(with.losses, without.losses);
  return {{"switch", row.key},
          {"off", fmt::format("{}", fmt::join(row.plain, " "))},
          {"against", fmt::format("{}", fmt::join(row.both, " "))},
          {"ms", added("/ms_per_step/median")},
          {"wall_ms", added("/ms_per_step_wall")},
          {"data_wait_ms", added("/data_wait_ms")},
          {"gib", added("/memory/allocator/reserved_peak") / (1 << 30)},
          {"launches", added("/profile/kernels_per_step")},
          {"idle_ms", added("/profile/idle_us_per_step") / 1e3},
          {"loss_error", error},
          {"agrees", error <= bound}};
}

}  // namespace

nlohmann::json ablate(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
                      const BenchOptions& options, const std::vector<std::string>& only,
                      const FamilyLookup& lookup) {
  const SwitchPlan plan =
      plan_switches(recipe, facts_of(recipe, dataset.get(), options, lookup), only);
  const double bound = recipe.train.fp8 ? 5e-2 : recipe.train.dtype == "bf16" ? 2e-2 : 1e-4;
  Variants variants(recipe, std::move(dataset), options, lookup);
  nlohmann::json out;
  out["base"] = variants.run({}).report;
  out["loss_bound"] = bound;
  out["rows"] = nlohmann::json::array();
  out["left_out"] = nlohmann::json::array();
  bool agree = true;
  for (const SwitchRow& row : plan.rows) {
    const Outcome& with = variants.run(row.both);
    out["rows"].push_back(row_of(row, with, variants.run(row.plain), bound));
    agree = agree && out["rows"].back()["agrees"].get<bool>();
  }
  for (const auto& [key, why] : plan.left_out) {
    out["left_out"].push_back({{"switch", key}, {"why", why}});
  }
  out["agree"] = agree;
  return out;
}

std::string ablation_text(const nlohmann::json& report) {
  std::string out =
      fmt::format("{:<26} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9} {:>11}\n", "turned off", "ms",
                  "wall ms", "data ms", "GiB", "launches", "idle ms", "loss error");
  for (const auto& row : report["rows"]) {
    const std::string against = row["against"].get<std::string>();
    out += fmt::format(
        "{:<26} {:>+9.2f} {:>+9.2f} {:>+9.2f} {:>+8.2f} {:>+9.0f} {:>+9.2f} {:>11.2e}{}{}\n",
        row["switch"].get<std::string>(), row["ms"].get<double>(), row["wall_ms"].get<double>(),
        row["data_wait_ms"].get<double>(), row["gib"].get<double>(), row["launches"].get<double>(),
        row["idle_ms"].get<double>(), row["loss_error"].get<double>(),
        row["agrees"].get<bool>() ? "" : "  TOO LARGE",
        against.empty() ? "" : "  (both sides with " + against + ")");
  }
  if (report["rows"].empty()) out += "(no switch is on)\n";
  for (const auto& one : report["left_out"]) {
    out += fmt::format("not tried: {}: {}\n", one["switch"].get<std::string>(),
                       one["why"].get<std::string>());
  }
  return out;
}

}  // namespace longship::train
