#include "train/bench_sample.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "runtime/device.h"
#include "runtime/gpu_facts.h"
#include "runtime/profiler.h"
#include "runtime/speed_of_light.h"
#include "runtime/trace_summary.h"
#include "train/captured_sampler.h"
#include "train/checkpoint_io.h"
#include "train/session.h"

namespace longship::train {
namespace {

double ms_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

nlohmann::json bench_sample(const Recipe& recipe, const BenchOptions& options,
                            const FamilyLookup& lookup) {
  const at::NoGradGuard no_grad;
  Recipe bound = with_overrides(recipe, {}, lookup);
  bound.train.fp8.reset();  // one observation has too few rows to gain from FP8
  apply_library_settings(bound);
  const at::Device device = runtime::parse_device(bound.train.device);
  const auto policy = bound.family->build(*bound.model, build_options(bound, device));
  fill_weights(*policy, bound);
  const models::SyntheticShape shape{bound.train.global_batch, options.synthetic_images,
                                     options.synthetic_tokens.value_or(60)};
  const auto batch = bound.family->synthetic_batch(*bound.model, shape, 1);
  if (options.profile_steps > 0) runtime::Profiler::prepare_for_graphs();
  CapturedSampler sampler(*policy, device);
  at::Tensor first, later;
  const models::DrawKey key{static_cast<uint64_t>(bound.train.seed), 0};
  const double first_ms = ms_of([&] { first = sampler.sample(*batch, key).to(at::kCPU); });
  std::vector<double> eager;
  for (int64_t i = 0; i < 3; ++i) {
    eager.push_back(ms_of([&] {
      const auto own = batch->clone();
      policy->prepare_sampling(*own, key);
      own->to(device);
      first = policy->sample(*own, key).to(at::kCPU);
    }));
  }
  for (int64_t i = 0; i < options.warmup; ++i) later = sampler.sample(*batch, key).to(at::kCPU);
  std::vector<double> times;
  for (int64_t i = 0; i < options.steps; ++i) {
    times.push_back(ms_of([&] { later = sampler.sample(*batch, key).to(at::kCPU); }));
  }
  nlohmann::json out;
  if (options.profile_steps > 0) {
    runtime::Profiler profiler({.host_operators = false});
    profiler.start();
    for (int64_t i = 0; i < options.profile_steps; ++i) {
      profiler.mark_step();
      sampler.sample(*batch, key).to(at::kCPU);
    }
    profiler.mark_step();
    const runtime::DeviceTrace trace = profiler.stop();
    out["profile"] = nullptr;
    if (!trace.events.empty()) {
      out["profile"] =
          runtime::trace_summary_json(runtime::summarise_trace(trace.events, trace.boundaries_ns));
    }
  }
  out["ms"] = runtime::percentiles_json(runtime::percentiles(times));
  out["ms"]["p99"] = runtime::rounded(runtime::percentile(times, 0.99));
  out["eager_ms"] = runtime::rounded(runtime::percentile(eager, 0.5));
  out["first_ms"] = runtime::rounded(first_ms);
  out["graph_nodes"] = sampler.graph_nodes();
  out["max_difference"] = first.sub(later).abs().max().item<double>();
  out["batch"] = bound.train.global_batch;
  out["device"] = runtime::describe(device);
  if (device.is_cuda()) out["gpu"] = runtime::gpu_facts_json(runtime::gpu_facts(device));
  return out;
}

std::string bench_sample_text(const nlohmann::json& report) {
  return fmt::format(
      "{:.2f} ms per call (p10 {:.2f}, p90 {:.2f}, p99 {:.2f}), batch {}; eager {:.1f} ms\n",
      report["ms"]["median"].get<double>(), report["ms"]["p10"].get<double>(),
      report["ms"]["p90"].get<double>(), report["ms"]["p99"].get<double>(),
      report["batch"].get<int64_t>(), report["eager_ms"].get<double>());
}

}  // namespace longship::train
