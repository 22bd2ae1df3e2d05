#include "train/switches.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace longship::train {
namespace {

using Values = std::map<std::string, std::string>;

bool contains(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

/// Why `need` is not met; empty where it is.
std::string unmet(Need need, const Recipe& r, const SwitchFacts& facts) {
  const auto unless = [](bool met, std::string why) { return met ? std::string() : why; };
  switch (need) {
    case Need::kCuda:
      return unless(facts.device.is_cuda(), "needs a CUDA device");
    case Need::kOperators:
      return unless(facts.device.is_cuda() || r.perf.cpu_oracles,
                    "fused operators need a CUDA device (or perf.cpu_oracles)");
    case Need::kBf16:
      return unless(r.train.dtype == "bf16", "works in bf16, train.dtype is " + r.train.dtype);
    case Need::kFusedUpdate:
      return unless(r.perf.fused_optimizer, "needs perf.fused_optimizer, which is off");
    case Need::kWholeGraph:
      return unless(r.train.cuda_graph == "full_iteration",
                    "needs train.cuda_graph full_iteration, which is " + r.train.cuda_graph);
    case Need::kFrozenPart:
      return unless(facts.frozen_part, "no frozen layers at the beginning of this model");
    case Need::kReading:
      if (facts.random_batches) return "random batches (--synthetic) are made before the steps";
      return unless(!facts.preloaded, "--preload makes the batches before the steps");
    case Need::kWorkers:
      return unless(r.data.workers > 0, "data.workers is 0, so nothing is prepared ahead");
    case Need::kLooseGradients:
      if (r.parallel.strategy != "none") {
        return "gradients go into buckets with parallel.strategy " + r.parallel.strategy;
      }
      return unless(r.train.cuda_graph != "per_microbatch",
                    "train.cuda_graph per_microbatch keeps the gradients' buffers anyway");
  }
  return {};
}

std::string why_not(const Switch& one, const Recipe& recipe, const SwitchFacts& facts,
                    const Values& values) {
  const auto value = values.find(one.key);
  const std::string& family = recipe.family->name();
  if (value == values.end()) return fmt::format("{} has no such setting", family);
  if (value->second == one.off) return fmt::format("off already ({})", one.off);
  if (contains(recipe.family->unused_switches(), one.key)) {
    return fmt::format("nothing of {} uses it", family);
  }
  for (const Need need : one.needs) {
    if (const std::string why = unmet(need, recipe, facts); !why.empty()) return why;
  }
  return {};
}

/// Those of `settings` that change something.
std::vector<std::string> effective(const std::vector<std::string>& settings, const Recipe& recipe,
                                   const Values& values) {
  std::vector<std::string> out;
  for (const std::string& setting : settings) {
    const size_t at = setting.find('=');
    const std::string key = setting.substr(0, at);
    const auto value = values.find(key);
    if (value == values.end() || value->second == setting.substr(at + 1)) continue;
    if (!contains(recipe.family->unused_switches(), key)) out.push_back(setting);
  }
  return out;
}

}  // namespace

const std::vector<Switch>& all_switches() {
  static const std::vector<Switch> switches = {
      // The pipeline: threads that read, batches ahead, copies ahead.
      {"data.workers",
       "0",
       {Need::kReading},
       {fmt::format("data.prefetch={}", DataSection{}.prefetch)}},
      {"data.prefetch", "1", {Need::kReading, Need::kWorkers}},
      {"perf.copy_ahead", "false", {Need::kCuda, Need::kFusedUpdate}},
      {"data.share_decoding", "false", {Need::kReading}},
      {"perf.grid_cache", "false", {Need::kReading}},
      // Operators.
      {"perf.fused_norms", "false", {Need::kOperators}},
      {"perf.fused_activations", "false", {Need::kOperators}},
      {"perf.fused_rope", "false", {Need::kOperators}},
      {"perf.fused_loss", "false", {Need::kOperators}},
      {"perf.sparse_embedding", "false", {Need::kOperators, Need::kFusedUpdate}},
      {"perf.stacked_linears", "false"},
      {"perf.flash_attention", "false", {Need::kCuda, Need::kBf16}},
      {"perf.pack_text", "false"},
      {"perf.early_launch", "false", {Need::kCuda}},
      {"train.fp8", "null", {Need::kCuda}},
      // The step. The library's optimizer reads on the host, which no graph can hold, and knows no
      // row-sparse gradients.
      {"perf.fused_optimizer",
       "false",
       {Need::kCuda},
       {},
       {"train.cuda_graph=none", "perf.sparse_embedding=false"}},
      {"perf.hand_over_gradients", "false", {Need::kLooseGradients}},
      {"perf.two_graphs",
       "false",
       {Need::kCuda, Need::kFusedUpdate, Need::kWholeGraph, Need::kFrozenPart}},
      {"train.cuda_graph", "none", {Need::kCuda}},
      // Work and memory.
      {"model.train_slots", "all"},
      {"perf.feature_cache", "0", {Need::kFrozenPart}},
      {"train.recompute", "none"}};
  return switches;
}

SwitchPlan plan_switches(const Recipe& recipe, const SwitchFacts& facts,
                         const std::vector<std::string>& only) {
  std::vector<std::string> names;
  for (const Switch& one : all_switches()) names.push_back(one.key);
  for (const std::string& key : only) {
    LS_CHECK(contains(names, key), ConfigError, "--only: '{}' is no switch; choose from {}", key,
             fmt::join(names, ", "));
  }
  Values values;
  for (auto& [key, value] : flatten(recipe)) values[key] = value;
  SwitchPlan out;
  for (const Switch& one : all_switches()) {
    if (!only.empty() && !contains(only, one.key)) continue;
    const std::string why = why_not(one, recipe, facts, values);
    LS_CHECK(why.empty() || only.empty(), ConfigError, "--only: {} changes nothing here: {}",
             one.key, why);
    if (!why.empty()) {
      out.left_out.emplace_back(one.key, why);
      continue;
    }
    SwitchRow row{one.key, {one.key + "=" + one.off}, effective(one.both, recipe, values)};
    for (const auto& more : {one.with, row.both}) {
      const std::vector<std::string> settings = effective(more, recipe, values);
      row.plain.insert(row.plain.end(), settings.begin(), settings.end());
    }
    out.rows.push_back(std::move(row));
  }
  return out;
}

}  // namespace longship::train
