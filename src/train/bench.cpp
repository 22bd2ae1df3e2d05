#include "train/bench.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/version.h"
#include "data/split.h"
#include "runtime/device.h"
#include "runtime/gpu_facts.h"
#include "runtime/memory_report.h"
#include "runtime/profiler.h"
#include "runtime/speed_of_light.h"
#include "runtime/stream.h"
#include "runtime/trace_summary.h"
#include "train/assembly.h"
#include "train/checkpoint_io.h"
#include "train/feed.h"
#include "train/parallel_report.h"
#include "train/session.h"

namespace longship::train {
namespace {

using Clock = std::chrono::steady_clock;
using Batches = std::vector<std::unique_ptr<models::Batch>>;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Where batches come from: the dataset, or two random batches in turn.
class Source {
 public:
  Source(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
         const models::Policy& policy, const BenchOptions& options, at::Device device,
         int64_t total_steps, const BatchShare& share)
      : recipe_(recipe), policy_(policy), pin_(device.is_cuda()), share_(share) {
    if (options.synthetic_tokens) {
      const models::SyntheticShape shape{recipe.train.micro_size(share.world_size),
                                         options.synthetic_images, *options.synthetic_tokens};
      const auto first = 1 + 2 * static_cast<uint64_t>(share.rank);
      for (uint64_t seed : {first, first + 1}) {
        made_.push_back(recipe.family->synthetic_batch(*recipe.model, shape, seed));
        // Samples of their own: what is kept by sample must not be another's.
        for (int64_t& id : made_.back()->sample_ids) id += static_cast<int64_t>(seed) * shape.batch;
        policy.prepare(*made_.back(), {static_cast<uint64_t>(recipe.train.seed), seed});
        if (!pin_) continue;
        for (auto& [name, tensor] : made_.back()->tensors()) *tensor = tensor->pin_memory();
      }
      return;
    }
    dataset_ = std::move(dataset);
    place_augmentation(recipe, device);
    transform_ = make_transform(recipe, *dataset_);
    transform_->check_dataset(*dataset_);
    const TrainingSamples samples = training_samples(recipe, *dataset_, transform_->windows());
    stream_ = std::make_unique<data::ShuffledStream>(samples.order, recipe.train.global_batch);
    feed_ = std::make_unique<BatchFeed>(recipe, *dataset_, *transform_, policy, *stream_, pin_, 0,
                                        total_steps, share);
    if (!options.preload) return;
    for (int64_t i = 0; i < total_steps; ++i) preloaded_.push_back(feed_->next_step());
    feed_.reset();
  }

  Batches next() {
    if (feed_) return feed_->next_step();
    Batches out;
    if (!preloaded_.empty()) {
      out = std::move(preloaded_.front());
      preloaded_.pop_front();
      return out;
    }
    for (int64_t m = 0; m < recipe_.train.num_micro(share_.world_size); ++m) {
      out.push_back(made_[turn_++ % made_.size()]->clone());
    }
    return out;
  }
  double wait_ms() const { return feed_ ? feed_->wait_ms() : 0; }

 private:
  const Recipe& recipe_;
  const models::Policy& policy_;
  bool pin_;
  BatchShare share_;
  Batches made_;
  std::deque<Batches> preloaded_;
  size_t turn_ = 0;
  std::shared_ptr<const data::Dataset> dataset_;
  std::unique_ptr<models::Transform> transform_;
  std::unique_ptr<data::ShuffledStream> stream_;
  std::unique_ptr<BatchFeed> feed_;
};

std::vector<runtime::TensorGroup> named_tensors(const Assembly& assembly) {
  runtime::TensorGroup weights{"weights", {}}, masters{"master", {}}, means{"exp_avg", {}},
      squares{"exp_avg_sq", {}}, averages{"ema", {}}, rows{"row_gradients", {}};
  for (const models::ParamInfo& info : assembly.policy->parameters()) {
    weights.tensors.push_back(info.tensor);
    if (info.row_sparse) rows.tensors.push_back(info.row_sparse->grad);
  }
  for (const AdamW::Entry& entry : assembly.optimizer->entries()) {
    masters.tensors.push_back(entry.master);
    means.tensors.push_back(entry.exp_avg);
    squares.tensors.push_back(entry.exp_avg_sq);
    averages.tensors.push_back(entry.ema);
  }
  runtime::TensorGroup gradients{"gradients", {}};
  for (const models::ParamInfo& info : assembly.policy->parameters()) {
    gradients.tensors.push_back(info.tensor.grad());
  }
  std::vector<runtime::TensorGroup> out{weights,  masters, means,    squares,
                                        averages, rows,    gradients};
  for (auto& [name, tensors] : assembly.policy->extra_memory()) out.push_back({name, tensors});
  return out;
}

class Bench {
 public:
  Bench(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
        const BenchOptions& options, Parallel& parallel)
      : recipe_(recipe),
        options_(options),
        parallel_(parallel),
        device_(parallel.device(recipe)),
        schedule_(recipe.optim.schedule, recipe.optim.lr, recipe.train.steps) {
    apply_library_settings(recipe);
    if (options.profile_steps > 0) runtime::Profiler::prepare_for_graphs();
    start_ = Clock::now();
    runtime::reset_peak_memory(device_);
    parallel_.open_data_plane(device_);
    parallel_.together([&] { assembly_ = assemble(recipe, device_, &parallel_); });
    total_ = options.warmup + options.steps + options.profile_steps;
    source_ =
        std::make_unique<Source>(recipe, std::move(dataset), *assembly_.policy, options, device_,
                                 total_, BatchShare{parallel.rank(), parallel.world_size()});
    build_s_ = seconds_since(start_);
  }

  nlohmann::json run(BenchLosses* losses);

 private:
  void submit();
  void take(int64_t leave_in_flight);
  nlohmann::json speed(double flops_executed, double flops_reference) const;
  nlohmann::json memory() const;
  nlohmann::json profile();

  const Recipe& recipe_;
  const BenchOptions& options_;
  Parallel& parallel_;
  at::Device device_;
  Schedule schedule_;
  Assembly assembly_;
  std::unique_ptr<Source> source_;
  Clock::time_point start_;
  double build_s_ = 0, warmup_s_ = 0, wall_ms_ = 0, wait_ms_ = 0;
  int64_t total_ = 0, next_ = 0, num_updates_ = 0;
  std::vector<double> step_ms_, exposed_ms_;
  std::vector<double> losses_, grad_norms_;
  models::BatchCost cost_;  // of the last step
};

void Bench::submit() {
  Batches micro = source_->next();
  wait_ms_ += source_->wait_ms();
  cost_ = {};
  for (const auto& batch : micro) {
    const models::BatchCost one = recipe_.family->cost(*recipe_.model, *batch);
    cost_.executed += one.executed;
    cost_.reference += one.reference;
  }
  const auto scalars = [&](int64_t updates) {
    return UpdateScalars{schedule_.lr(updates), recipe_.optim.weight_decay_ramp.value(
                                                    recipe_.optim.weight_decay, updates)};
  };
  assembly_.engine->submit(next_++, std::move(micro), num_updates_, scalars(num_updates_),
                           scalars(num_updates_ + 1));
}

void Bench::take(int64_t leave_in_flight) {
  while (assembly_.engine->in_flight() > leave_in_flight) {
    const StepReport report = assembly_.engine->take_report();
    if (!report.fault.empty()) throw NonFiniteError("bench: " + report.fault);
    ++num_updates_;
    losses_.push_back(report.loss);
    grad_norms_.push_back(report.grad_norm);
    step_ms_.push_back(report.device_ms);
    exposed_ms_.push_back(report.exposed_ms);
  }
}

// Of what the plan speaks of, beside the plan.
nlohmann::json Bench::memory() const {
  dist::BucketPlan plan;
  if (assembly_.sync) {
    plan = assembly_.sync->plan();
  } else {
    plan = plan_gradients(parameters_to_plan(*assembly_.policy, 0).specs, recipe_.parallel, 1);
  }
  const auto cost = cost_options(recipe_, parallel_.launch(), assembly_.sync.get());
  return memory_plan_json(dist::predict_memory(plan, cost), held_memory(assembly_));
}

nlohmann::json Bench::profile() {
  if (options_.profile_steps == 0) return nullptr;
  runtime::Profiler profiler({.host_operators = !options_.trace.empty()});
  profiler.start();
  for (int64_t i = 0; i < options_.profile_steps; ++i) {
    profiler.mark_step();
    submit();
    take(assembly_.engine->lag());
  }
  take(0);
  profiler.mark_step();
  const runtime::DeviceTrace trace = profiler.stop();
  if (!options_.trace.empty()) profiler.save_trace(options_.trace);
  if (trace.events.empty()) return nullptr;
  return runtime::trace_summary_json(runtime::summarise_trace(trace.events, trace.boundaries_ns));
}

nlohmann::json Bench::speed(double executed, double reference) const {
  // Of this process; all of them do the same at the same time.
  const auto processes = static_cast<double>(parallel_.world_size());
  const double samples = static_cast<double>(recipe_.train.global_batch) / processes;
  std::vector<double> timed(step_ms_.begin() + options_.warmup,
                            step_ms_.begin() + options_.warmup + options_.steps);
  const double mean = wall_ms_ / static_cast<double>(options_.steps);
  const runtime::Percentiles p = runtime::percentiles(timed);
  const double rate = 1e3 * samples / p.median;
  nlohmann::json out;
  out["samples_per_s"] = runtime::rounded(processes * rate);
  out["samples_per_s_wall"] = runtime::rounded(processes * 1e3 * samples / mean);
  out["ms_per_step"] = runtime::percentiles_json(p);
  out["ms_per_step_wall"] = runtime::rounded(mean);
  out["jitter"] = runtime::rounded((p.p90 - p.p10) / p.median);
  out["data_wait_ms"] = runtime::rounded(wait_ms_ / static_cast<double>(options_.steps));
  std::string name = "CPU";
  if (device_.is_cuda()) name = runtime::gpu_facts(device_).name;
  const auto ceilings = runtime::device_ceilings(name);
  const runtime::Utilisation used = runtime::utilisation(
      3 * reference / samples, 3 * executed / samples, rate, ceilings ? ceilings->bf16_tflops : 0);
  out["mfu"] = {{"reference", runtime::rounded(used.reference_mfu)},
                {"hardware", runtime::rounded(used.hardware_mfu)},
                {"executed_tflops", runtime::rounded(used.executed_tflops)},
                {"reference_tflop_per_sample", runtime::rounded(3e-12 * reference / samples)},
                {"executed_tflop_per_sample", runtime::rounded(3e-12 * executed / samples)}};
  return out;
}

nlohmann::json Bench::run(BenchLosses* losses) {
  const int64_t lag = assembly_.engine->lag();
  for (int64_t i = 0; i < options_.warmup; ++i) {
    submit();
    take(lag);
  }
  take(0);
  warmup_s_ = seconds_since(start_);
  wait_ms_ = 0;
  GradientSync::Traffic before;
  if (assembly_.sync) before = assembly_.sync->traffic();
  const auto timed_start = Clock::now();
  for (int64_t i = 0; i < options_.steps; ++i) {
    submit();
    take(lag);
  }
  take(0);
  wall_ms_ = 1e3 * seconds_since(timed_start);
  nlohmann::json out = speed(cost_.executed, cost_.reference);
  if (assembly_.sync) {
    OwnSteps own;
    own.step_ms.assign(step_ms_.begin() + options_.warmup, step_ms_.end());
    for (size_t i = static_cast<size_t>(options_.warmup); i < exposed_ms_.size(); ++i) {
      own.exposed_ms += exposed_ms_[i] / static_cast<double>(options_.steps);
    }
    own.traffic = assembly_.sync->traffic_since(before);
    out["parallel"] = parallel_json(parallel_, recipe_, assembly_, own);
  }
  const runtime::MemoryReport report = runtime::memory_report(named_tensors(assembly_), device_);
  out["memory"] = runtime::memory_report_json(report);
  out["memory"]["plan"] = memory();
  out["warmup_s"] = runtime::rounded(warmup_s_);
  out["build_s"] = runtime::rounded(build_s_);
  const EngineFacts facts = assembly_.engine->facts();
  out["graph_nodes"] = facts.graph_nodes;
  out["captures"] = facts.captures;
  out["eager_steps"] = facts.eager_steps;
  out["steps_from_cache"] = facts.steps_from_cache;
  out["batch"] = recipe_.train.global_batch;
  out["steps"] = options_.steps;
  out["profile"] = profile();
  out["longship"] = std::string(version());
  out["device"] = runtime::describe(device_);
  if (device_.is_cuda()) out["gpu"] = runtime::gpu_facts_json(runtime::gpu_facts(device_));
  out["loss"] = {{"first", losses_.front()}, {"last", losses_.back()}};
  out["losses"] = losses_;
  out["grad_norms"] = grad_norms_;
  if (losses != nullptr) losses->losses = losses_;
  return out;
}

}  // namespace

std::unique_ptr<models::Batch> first_batch(const Recipe& recipe,
                                           std::shared_ptr<const data::Dataset> dataset,
                                           const BenchOptions& options) {
  if (!dataset) {
    return recipe.family->synthetic_batch(*recipe.model,
                                          {recipe.train.global_batch, options.synthetic_images,
                                           options.synthetic_tokens.value_or(60)},
                                          1);
  }
  const auto transform = make_transform(recipe, *dataset);
  transform->check_dataset(*dataset);
  const TrainingSamples samples = training_samples(recipe, *dataset, transform->windows());
  const data::ShuffledStream stream(samples.order, recipe.train.global_batch);
  std::vector<std::unique_ptr<models::Transform::Item>> items;
  for (const int64_t id : stream.batch(0)) {
    items.push_back(transform->prepare(dataset->get(id, transform->windows())));
  }
  return transform->collate(items);
}

nlohmann::json bench_train(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
                           const BenchOptions& options, const FamilyLookup& lookup,
                           BenchLosses* losses, Parallel* parallel) {
  Recipe bound = with_overrides(recipe, {}, lookup);
  if (dataset) bound.model->bind_dataset(*dataset);
  Parallel alone;
  Bench bench(bound, std::move(dataset), options, parallel != nullptr ? *parallel : alone);
  return bench.run(losses);
}

nlohmann::json find_batch(const Recipe& recipe, const BenchOptions& options, int64_t granularity,
                          const FamilyLookup& lookup) {
  LS_CHECK(granularity >= 1, ConfigError, "--find-batch: the granularity must be at least 1");
  nlohmann::json tried = nlohmann::json::array();
  const auto fits = [&](int64_t batch) {
    Recipe one = with_overrides(recipe, {}, lookup);
    one.train.global_batch = batch;
    one.train.micro_batch.reset();
    BenchOptions few = options;
    few.warmup = 2;
    few.steps = 1;
    few.profile_steps = 0;
    few.synthetic_tokens = options.synthetic_tokens.value_or(60);
    nlohmann::json entry = {{"batch", batch}, {"fits", true}};
    try {
      const nlohmann::json report = bench_train(one, nullptr, few, lookup);
      if (!report["memory"]["allocator"].is_null()) {
        entry["peak_gib"] =
            report["memory"]["allocator"]["reserved_peak"].get<double>() / (1 << 30);
      }
    } catch (const c10::OutOfMemoryError&) {
      entry["fits"] = false;
    }
    runtime::release_cached_memory();
    log::info("batch {}: {}", batch, entry["fits"].get<bool>() ? "fits" : "does not fit");
    tried.push_back(entry);
    return entry["fits"].get<bool>();
  };
  constexpr int64_t kMost = 4096;
  int64_t good = 0, bad = granularity;
  while (bad <= kMost && fits(bad)) {
    good = bad;
    bad *= 2;
  }
  LS_CHECK(good > 0, DeviceError,
           "not even a batch of {} fits the device; try train.recompute=full", granularity);
  while (bad - good > granularity && bad <= kMost) {
    const int64_t middle = good + (bad - good) / (2 * granularity) * granularity;
    if (middle == good) break;
    (fits(middle) ? good : bad) = middle;
  }
  return {{"batch", good}, {"granularity", granularity}, {"tried", tried}};
}

std::string bench_text(const nlohmann::json& report) {
  const auto& ms = report["ms_per_step"];
  std::string out = fmt::format(
      "{:.2f} samples/s; {:.2f} ms per step (p10 {:.2f}, p90 {:.2f}), batch {}\n"
      "MFU {:.1f} % of the reference's work, {:.1f} % of the executed work\n"
      "warm-up {:.1f} s, data wait {:.2f} ms per step, {} graph nodes\n",
      report["samples_per_s"].get<double>(), ms["median"].get<double>(), ms["p10"].get<double>(),
      ms["p90"].get<double>(), report["batch"].get<int64_t>(),
      100 * report["mfu"]["reference"].get<double>(), 100 * report["mfu"]["hardware"].get<double>(),
      report["warmup_s"].get<double>(), report["data_wait_ms"].get<double>(),
      report["graph_nodes"].get<int64_t>());
  if (report.contains("parallel")) {
    const auto& p = report["parallel"];
    out += fmt::format(
        "{} processes, {}: {:.1f} MB sent per step by each in {:.2f} ms, of it waited for {:.2f} "
        "ms\n",
        p["world_size"].dump(), p["strategy"].get<std::string>(), p["sent_mb"].get<double>(),
        p["comm_ms"].get<double>(), p["exposed_ms"].get<double>());
  }
  return out;
}

}  // namespace longship::train
