#include "train/step_engine.h"

#include <fmt/ranges.h>

#include <chrono>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "train/device_step_engine.h"
#include "train/frozen_stage.h"

namespace longship::train {
namespace {

// Runs a step at once and reads every number back.
class HostStepEngine : public StepEngine {
 public:
  HostStepEngine(models::Policy& policy, AdamW& optimizer, const StepEngineOptions& options)
      : policy_(policy), optimizer_(optimizer), options_(options) {
    if (options.feature_cache_bytes > 0) {
      stage_ = std::make_unique<FrozenStage>(
          policy, FrozenStageOptions{options.device, false, options.feature_cache_bytes});
    }
  }

  void submit(int64_t step, std::vector<std::unique_ptr<models::Batch>> micro,
              int64_t /*num_updates*/, const UpdateScalars& scalars,
              const UpdateScalars& /*next*/) override {
    const auto start = std::chrono::steady_clock::now();
    StepReport report;
    report.step = step;
    std::vector<std::vector<int64_t>> ids;
    std::vector<double> losses;
    GradientSync* sync = options_.sync;
    const dist::CollectiveCounter before =
        sync == nullptr ? dist::CollectiveCounter() : sync->total_traffic();
    if (sync == nullptr) {
      optimizer_.zero_grad(options_.hand_over_gradients ? GradReset::kDrop : GradReset::kZero);
    } else {
      sync->begin_step();
    }
    policy_.begin_step();
    pass_frozen_part(micro);
    const double count = static_cast<double>(micro.size());
    for (size_t m = 0; m < micro.size(); ++m) {
      ids.push_back(micro[m]->sample_ids);
      if (!stage_ && !options_.device.is_cpu()) micro[m]->to(options_.device);
      if (sync != nullptr) sync->begin_micro_batch(m + 1 == micro.size());
      const models::LossResult loss = policy_.loss(*micro[m]);
      (micro.size() == 1 ? loss.loss : loss.loss.div(count)).backward();
      losses.push_back(loss.loss.item<double>());
      report.loss += losses.back() / count;
      for (size_t i = 0; i < loss.metrics.size(); ++i) {
        if (m == 0) report.extra.emplace_back(loss.metrics[i].first, 0.0);
        report.extra[i].second += loss.metrics[i].second.item<double>() / count;
      }
    }
    if (sync != nullptr) sync->finish();
    report.grad_norm = optimizer_.grad_norm();
    if (sync != nullptr) {
      // A loss that is not finite on one process keeps all of them from the update.
      const bool bad = !describe_fault(losses, 0, ids).empty();
      report.grad_norm = sync->combine_norm(report.grad_norm, bad);
      report.missing = sync->missing();
    }
    report.fault = describe_fault(losses, report.grad_norm, ids);
    report.updated = report.fault.empty();
    if (report.updated) {
      optimizer_.apply(scalars.lr, report.grad_norm, scalars.weight_decay);
      if (sync != nullptr) sync->weights_changed();
    }
    if (sync != nullptr) {
      const dist::CollectiveCounter now = sync->total_traffic();
      report.exposed_ms = now.exposed_ms - before.exposed_ms;
      report.comm_ms = now.elapsed_ms - before.elapsed_ms;
      report.wire_bytes = now.wire_bytes - before.wire_bytes;
    }
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    report.device_ms = spent.count();
    report_ = std::move(report);
  }
  int64_t in_flight() const override { return report_ ? 1 : 0; }
  int64_t lag() const override { return 0; }
  StepReport take_report() override {
    LS_CHECK(report_.has_value(), InternalError, "no step was submitted");
    StepReport out = std::move(*report_);
    report_.reset();
    return out;
  }
  void reset(int64_t /*num_updates*/) override {
    if (stage_) stage_->reset();
  }
  EngineFacts facts() const override {
    EngineFacts out;
    if (stage_) out.steps_from_cache = stage_->served();
    return out;
  }

 private:
  // Where results of the frozen part are kept: puts batches behind it in the place of `micro`.
  void pass_frozen_part(FrozenStage::Batches& micro) {
    if (!stage_) return;
    stage_->from_cache(micro);
    for (const auto& batch : micro) batch->to(options_.device);
    std::vector<FrozenStage::Fresh> fresh;
    const runtime::Stream stream = runtime::Stream::current(options_.device);
    micro = stage_->run(micro, runtime::Event(), stream, fresh);
    if (!fresh.empty()) stream.synchronize();
    stage_->keep(fresh);
  }

  models::Policy& policy_;
  AdamW& optimizer_;
  StepEngineOptions options_;
  std::unique_ptr<FrozenStage> stage_;
  std::optional<StepReport> report_;
};

}  // namespace

GraphMode parse_graph_mode(const std::string& name) {
  if (name == "none") return GraphMode::kNone;
  if (name == "per_microbatch") return GraphMode::kPerMicrobatch;
  if (name == "full_iteration") return GraphMode::kFullIteration;
  throw ConfigError(
      fmt::format("train.cuda_graph: '{}' is none of none, per_microbatch, full_iteration", name));
}

std::string describe_fault(const std::vector<double>& losses, double grad_norm,
                           const std::vector<std::vector<int64_t>>& sample_ids) {
  double mean = 0;
  std::vector<int64_t> all;
  for (size_t m = 0; m < losses.size(); ++m) {
    if (!std::isfinite(losses[m])) {
      return fmt::format("the loss is {} (micro-batch {} of {}, samples {})", losses[m], m + 1,
                         losses.size(), fmt::join(sample_ids[m], ", "));
    }
    mean += losses[m] / static_cast<double>(losses.size());
    all.insert(all.end(), sample_ids[m].begin(), sample_ids[m].end());
  }
  if (std::isfinite(grad_norm)) return {};
  return fmt::format("the gradients are not finite (norm {}, loss {}, samples {})", grad_norm, mean,
                     fmt::join(all, ", "));
}

std::unique_ptr<StepEngine> make_step_engine(models::Policy& policy, AdamW& optimizer,
                                             const StepEngineOptions& options) {
  if (options.device.is_cuda() && options.fused_update) {
    return make_device_step_engine(policy, optimizer, options);
  }
  LS_CHECK(options.graph == GraphMode::kNone, ConfigError,
           "train.cuda_graph needs a CUDA device and perf.fused_optimizer; set train.cuda_graph: "
           "none");
  return std::make_unique<HostStepEngine>(policy, optimizer, options);
}

}  // namespace longship::train
