#include "train/bench_scaling.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "runtime/speed_of_light.h"
#include "train/gradient_sync.h"
#include "train/session.h"

namespace longship::train {
namespace {

using runtime::rounded;

constexpr std::pair<const char*, int64_t dist::MemoryForecast::*> kComponents[] = {
    {"parameters", &dist::MemoryForecast::parameters},
    {"gradients", &dist::MemoryForecast::gradients},
    {"reduce_buffers", &dist::MemoryForecast::reduce_buffers},
    {"masters", &dist::MemoryForecast::masters},
    {"moments", &dist::MemoryForecast::moments},
    {"ema", &dist::MemoryForecast::ema},
    {"gathered", &dist::MemoryForecast::gathered}};

std::vector<dist::ParamSpec> specs_of(const Recipe& recipe) {
  // Operators as on a GPU: they decide where gradients come from.
  models::BuildOptions build = build_options(recipe, at::kCUDA);
  build.device = at::kMeta;
  build.fp8.reset();  // changes products, neither parameters nor what is exchanged
  const std::unique_ptr<models::Policy> policy = recipe.family->build(*recipe.model, build);
  return parameters_to_plan(*policy, recipe.train.global_batch).specs;
}

std::vector<const char*> strategies(const Recipe& recipe, bool several_nodes) {
  std::vector<const char*> out = {"ddp", "zero1"};
  // As check_parallel() has it.
  if (recipe.train.fp8 || recipe.train.cuda_graph == "per_microbatch") return out;
  out.push_back("fsdp");
  if (several_nodes) out.push_back("hsdp");
  return out;
}

// `one_node`: all GPUs are one group of a node; with hsdp those that share a copy always are.
dist::CostOptions cost_of(const Recipe& recipe, const char* strategy, int64_t shard,
                          bool one_node) {
  dist::CostOptions out;
  out.strategy = dist::parse_strategy(strategy);
  out.micro_batches = recipe.train.num_micro();
  out.shard_size = out.strategy == dist::Strategy::kHsdp ? shard : 0;
  out.reshard = dist::parse_reshard(recipe.parallel.reshard);
  out.ema = recipe.optim.ema.has_value();
  out.gradients_stay = recipe.train.cuda_graph == "per_microbatch";
  // Copy engines widen.
  const bool near = one_node || out.strategy == dist::Strategy::kHsdp;
  out.widened =
      near && recipe.parallel.transport != "nccl" && out.micro_batches == 1 && !out.gradients_stay;
  return out;
}

nlohmann::json memory_json(const dist::MemoryForecast& memory) {
  nlohmann::json out = nlohmann::json::object();
  for (const auto& [name, member] : kComponents) out[name] = memory.*member;
  out["total"] = memory.total();
  return out;
}

nlohmann::json times_json(const dist::StepForecast& step, double samples) {
  return {{"compute_ms", rounded(step.compute_ms)},
          {"conversion_ms", rounded(step.conversion_ms)},
          {"update_ms", rounded(step.update_ms)},
          {"slowdown_ms", rounded(step.slowdown_ms)},
          {"exposed_ms", rounded(step.exposed_ms)},
          {"step_ms", rounded(step.step_ms())},
          {"communication_ms", rounded(step.communication_ms)},
          {"samples_per_s", rounded(1e3 * samples / step.step_ms())},
          {"efficiency", rounded(step.efficiency())}};
}

nlohmann::json row(const dist::BucketPlan& plan, const dist::CostOptions& cost,
                   const char* strategy, const Recipe& recipe, const ScalingOptions& options,
                   const dist::ScalingConstants& constants) {
  const int64_t gpus = plan.options.world_size;
  nlohmann::json collectives = nlohmann::json::object();
  double sent = 0;
  for (const auto& [name, counter] : dist::predict_communication(plan, cost)) {
    const double mb = 1e-6 * static_cast<double>(counter.wire_bytes);
    sent += mb;
    collectives[name] = {{"count", counter.count}, {"mb", rounded(mb)}};
  }
  const bool whole =
      cost.strategy == dist::Strategy::kDdp || cost.strategy == dist::Strategy::kZero1;
  nlohmann::json out = {{"gpus", gpus},
                        {"strategy", strategy},
                        {"shard", whole ? 1 : (cost.shard_size == 0 ? gpus : cost.shard_size)},
                        {"memory", memory_json(dist::predict_memory(plan, cost))},
                        {"collectives", collectives},
                        {"sent_mb", rounded(sent)},
                        {"times", nullptr}};
  if (!options.step_ms) return out;
  const double samples = static_cast<double>(recipe.train.global_batch * gpus);
  out["times"] = times_json(
      dist::predict_step(plan, cost, options.per_node, *options.step_ms, constants), samples);
  return out;
}

nlohmann::json constants_json(const dist::ScalingConstants& c) {
  return {{"peer", c.peer},
          {"peer_gb_s", c.peer_gb_s},
          {"peer_slowdown_ms_per_gb", c.peer_slowdown_ms_per_gb},
          {"peer_slowdown_ms_per_collective", c.peer_slowdown_ms_per_collective},
          {"nvlink_gb_s", c.nvlink_gb_s},
          {"slowdown_ms_per_gb", c.slowdown_ms_per_gb},
          {"convert_tb_s", c.convert_tb_s},
          {"update_tb_s", c.update_tb_s},
          {"network_gb_s", c.network_gb_s},
          {"network_reached", c.network_reached},
          {"forward_share", rounded(c.forward_share)}};
}

std::string memory_text(const nlohmann::json& rows) {
  std::string out = fmt::format("{:>6} {:<6}", "GPUs", "GB");
  for (const auto& [name, member] : kComponents) out += fmt::format(" {:>14}", name);
  out += fmt::format(" {:>8} {:>8}\n", "total", "sent");
  for (const auto& one : rows) {
    out +=
        fmt::format("{:>6} {:<6}", one["gpus"].get<int64_t>(), one["strategy"].get<std::string>());
    for (const auto& [name, member] : kComponents) {
      out += fmt::format(" {:>14.2f}", 1e-9 * one["memory"][name].get<double>());
    }
    out += fmt::format(" {:>8.2f} {:>8.2f}\n", 1e-9 * one["memory"]["total"].get<double>(),
                       1e-3 * one["sent_mb"].get<double>());
  }
  return out;
}

std::string times_text(const nlohmann::json& rows) {
  std::string out = fmt::format("{:>6} {:<6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>6}\n",
                                "GPUs", "ms", "convert", "update", "commun.", "slowdown", "exposed",
                                "step", "samples/s", "eff.");
  for (const auto& one : rows) {
    const auto& t = one["times"];
    const auto ms = [&](const char* name) { return t[name].get<double>(); };
    out += fmt::format(
        "{:>6} {:<6} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>10.0f} {:>4.0f} %\n",
        one["gpus"].get<int64_t>(), one["strategy"].get<std::string>(), ms("conversion_ms"),
        ms("update_ms"), ms("communication_ms"), ms("slowdown_ms"), ms("exposed_ms"), ms("step_ms"),
        ms("samples_per_s"), 100 * ms("efficiency"));
  }
  return out;
}

}  // namespace

nlohmann::json bench_scaling(const Recipe& recipe, const ScalingOptions& options) {
  const std::vector<dist::ParamSpec> specs = specs_of(recipe);
  int64_t parameters = 0;
  for (const dist::ParamSpec& spec : specs) parameters += spec.numel;
  dist::ScalingConstants constants = options.constants;
  constants.peer = recipe.parallel.transport != "nccl";
  nlohmann::json rows = nlohmann::json::array();
  for (const int64_t gpus : options.gpus) {
    const dist::RankGroup all = dist::whole_group(gpus, options.per_node);
    LS_CHECK(gpus > 1, ConfigError, "--gpus: {} GPU exchanges nothing; at least 2", gpus);
    const dist::BucketPlan plan = plan_gradients(specs, recipe.parallel, gpus);
    for (const char* strategy : strategies(recipe, all.nodes() > 1 && options.per_node > 1)) {
      rows.push_back(row(plan, cost_of(recipe, strategy, options.per_node, all.nodes() == 1),
                         strategy, recipe, options, constants));
    }
  }
  return {{"family", recipe.family->name()},
          {"parameters", parameters},
          {"samples_per_gpu", recipe.train.global_batch},
          {"micro_batches", recipe.train.num_micro()},
          {"dtype", recipe.train.dtype},
          {"reduce_dtype", recipe.parallel.reduce_dtype},
          {"bucket_mb", recipe.parallel.bucket_mb},
          {"reshard", recipe.parallel.reshard},
          {"per_node", options.per_node},
          {"step_ms", options.step_ms ? nlohmann::json(*options.step_ms) : nlohmann::json(nullptr)},
          {"constants", constants_json(constants)},
          {"rows", rows}};
}

std::string bench_scaling_text(const nlohmann::json& report) {
  std::string out = fmt::format(
      "{}, {:.2f} G parameters, {}, gradients sent in {}; {} samples a GPU; {} GPUs a node\n"
      "Memory of a GPU without activations, and what it sends in a step:\n{}",
      report["family"].get<std::string>(), 1e-9 * report["parameters"].get<double>(),
      report["dtype"].get<std::string>(), report["reduce_dtype"].get<std::string>(),
      report["samples_per_gpu"].get<int64_t>(), report["per_node"].get<int64_t>(),
      memory_text(report["rows"]));
  if (report["step_ms"].is_null()) {
    return out + "Give --step-ms, the step of one GPU, for times.\n";
  }
  return out + fmt::format("A step of one GPU takes {:.1f} ms; with others (predicted):\n{}",
                           report["step_ms"].get<double>(), times_text(report["rows"]));
}

}  // namespace longship::train
