#include "train/device_step_engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "ops/adamw.h"
#include "runtime/device.h"
#include "runtime/stream.h"
#include "train/batch_transfer.h"
#include "train/frozen_stage.h"
#include "train/generator_watch.h"
#include "train/graph_contract.h"

namespace longship::train {
namespace {

/// A shape of step: its input buffers and, from its second occurrence on, its graph.
struct Plan {
  Batches inputs;
  std::unique_ptr<runtime::CapturedGraph> graph;
  bool ran = false;   // once eagerly, so that libraries have made their plans and workspaces
  std::string draws;  // why it may not be captured: what the eager step drew
  GraphContract contract;
  std::string refused;  // why the last step was not replayed
  /// Collectives inside the graph, which the communicator does not see when it is replayed.
  GradientSync::Traffic traffic;
  GradientSync::Timed timed;  // stamps of a replay
};

/// A step whose report has not been taken. Holds the device batches until the device is done.
struct Pending {
  int64_t step = 0;
  std::vector<std::vector<int64_t>> sample_ids;  // per micro-batch
  Batches batches, behind;  // as copied; behind the frozen part, where that is a stage of its own
  std::vector<FrozenStage::Fresh> fresh;
  at::Tensor losses;  // pinned [num_micro, 1 + metrics] fp32
  at::Tensor report;  // pinned, the optimizer's
  std::vector<std::string> missing;
  GradientSync::Timed timed;
  std::vector<at::Tensor> stamps;  // pinned
  int64_t wire_bytes = 0;
  runtime::Event done{/*with_time=*/true};
};

class DeviceStepEngine : public StepEngine {
 public:
  DeviceStepEngine(models::Policy& policy, AdamW& optimizer, const StepEngineOptions& options)
      : policy_(policy),
        optimizer_(optimizer),
        options_(options),
        compute_(runtime::Stream::make(options.device, true)),
        copy_(runtime::Stream::make(options.device)),
        pool_(options.device) {
    if (options.sync != nullptr) options_.sync->time_on(options.device);
    if (options.frozen_beside || options.feature_cache_bytes > 0) {
      stage_ = std::make_unique<FrozenStage>(
          policy,
          FrozenStageOptions{options.device, options.frozen_beside, options.feature_cache_bytes});
    }
    runtime::synchronize(options.device);  // weights were made on another stream
  }
  ~DeviceStepEngine() override {
    copy_.synchronize();
    compute_.synchronize();
  }

  void submit(int64_t step, Batches micro, int64_t num_updates, const UpdateScalars& now,
              const UpdateScalars& next) override;
  int64_t in_flight() const override { return static_cast<int64_t>(pending_.size()); }
  int64_t lag() const override { return 1; }
  StepReport take_report() override;
  void reset(int64_t num_updates) override;
  EngineFacts facts() const override;

 private:
  Plan& plan_for(const Batches& micro);
  GradReset how_gradients_begin() const;
  void reset_gradients();
  void micro_step(const models::Batch& batch, at::Tensor row, int64_t count);
  void update();
  at::Tensor loss_row(int64_t m) { return losses_.defined() ? losses_.select(0, m) : losses_; }
  GradientSync::Timed whole_step(const Batches& batches);
  GradientSync::Timed run(Plan& plan, const Batches& batches);
  GradientSync::Timed run_captured(Plan& plan, const Batches& batches);
  bool may_replay(Plan& plan, const Batches& batches);
  std::vector<GraphContract::Named> touched() const;
  void inputs_taken() {
    if (stage_) stage_->taken(compute_);
  }
  void capture(Plan& plan, const std::function<void()>& work);
  void await(const runtime::Event& event) const;

  models::Policy& policy_;
  AdamW& optimizer_;
  StepEngineOptions options_;
  runtime::Stream compute_, copy_;
  runtime::GraphPool pool_;
  std::unique_ptr<FrozenStage> stage_;
  std::map<std::string, Plan> plans_;
  std::deque<Pending> pending_;
  std::vector<std::string> metric_names_;
  at::Tensor losses_;  // device [num_micro, 1 + metrics] fp32
  at::Tensor row_;     // device [1 + metrics] fp32, where a captured micro-batch puts them
  std::optional<runtime::Event> last_end_;  // where the oldest step in flight begins
  int64_t num_micro_ = 1;
  EngineFacts facts_;
};

// Forward and backward of one micro-batch; its loss and metrics end in `row` (undefined in the very
// first step, which finds out how many there are).
void DeviceStepEngine::micro_step(const models::Batch& batch, at::Tensor row, int64_t count) {
  const models::LossResult result = policy_.loss(batch);
  (count == 1 ? result.loss : result.loss.div(static_cast<double>(count))).backward();
  std::vector<at::Tensor> values{result.loss.detach()};
  for (const auto& [name, value] : result.metrics) values.push_back(value);
  const at::NoGradGuard no_grad;
  if (!losses_.defined()) {
    for (const auto& [name, value] : result.metrics) metric_names_.push_back(name);
    losses_ = at::zeros({num_micro_, static_cast<int64_t>(values.size())},
                        values.front().options().dtype(at::kFloat));
    row_ = at::zeros({losses_.size(1)}, losses_.options());
    row = losses_.select(0, 0);
  }
  row.copy_(at::stack(values));
}

// With kDrop the backward pass hands over its own gradient buffers; per-micro-batch graphs add to
// buffers that stay, and so do the buckets of several processes.
GradReset DeviceStepEngine::how_gradients_begin() const {
  const bool drop = options_.hand_over_gradients && options_.graph != GraphMode::kPerMicrobatch;
  return drop ? GradReset::kDrop : GradReset::kZero;
}

void DeviceStepEngine::reset_gradients() {
  if (options_.sync != nullptr) return options_.sync->begin_step();
  optimizer_.zero_grad(how_gradients_begin());
}

// From the gradients to the weights.
void DeviceStepEngine::update() {
  GradientSync* sync = options_.sync;
  if (sync == nullptr) return optimizer_.enqueue_step();
  sync->finish();
  if (!sync->sums_norm()) return optimizer_.enqueue_step();
  optimizer_.enqueue_norm();
  sync->combine_norm(optimizer_.norm());
  optimizer_.enqueue_update();
  sync->weights_changed();
}

GradientSync::Timed DeviceStepEngine::whole_step(const Batches& batches) {
  const int64_t count = static_cast<int64_t>(batches.size());
  if (options_.sync != nullptr) options_.sync->begin_times();
  reset_gradients();
  policy_.begin_step();
  for (int64_t m = 0; m < count; ++m) {
    if (options_.sync != nullptr) options_.sync->begin_micro_batch(m + 1 == count);
    micro_step(*batches[static_cast<size_t>(m)], loss_row(m), count);
  }
  update();
  return options_.sync != nullptr ? options_.sync->end_times() : GradientSync::Timed();
}

void DeviceStepEngine::capture(Plan& plan, const std::function<void()>& work) {
  if (facts_.captures > 0) {
    log::warn("a step of a new shape is captured ({} graphs so far)", facts_.captures);
  }
  plan.graph = std::make_unique<runtime::CapturedGraph>();
  plan.graph->capture(compute_, pool_, work);
  plan.contract = GraphContract(plan.inputs, touched());
  ++facts_.captures;
}

// What stays where it is from step to step. Divided weights come and go, the optimizer's parts of
// them do not.
std::vector<GraphContract::Named> DeviceStepEngine::touched() const {
  std::vector<GraphContract::Named> out;
  if (options_.sync == nullptr || options_.sync->has_whole_weights()) {
    for (const models::ParamInfo& info : policy_.parameters()) {
      out.emplace_back("parameter " + info.name, info.tensor);
    }
  }
  for (const AdamW::Entry& entry : optimizer_.entries()) {
    out.emplace_back("master of " + entry.name, entry.master);
    out.emplace_back("first moment of " + entry.name, entry.exp_avg);
    out.emplace_back("second moment of " + entry.name, entry.exp_avg_sq);
    out.emplace_back("average of " + entry.name, entry.ema);
    if (entry.row_sparse) {
      out.emplace_back("gradient of " + entry.name, entry.row_sparse->grad);
      out.emplace_back("row flags of " + entry.name, entry.row_sparse->row_flags);
    }
  }
  return out;
}

bool DeviceStepEngine::may_replay(Plan& plan, const Batches& batches) {
  std::string why = plan.draws;
  if (why.empty() && plan.graph) {
    why = plan.contract.mismatch(batches, options_.graph == GraphMode::kPerMicrobatch);
  }
  if (!why.empty() && why != plan.refused) {
    log::warn("a step is not replayed as a graph: {}; such steps run eagerly, which is slower",
              why);
  }
  plan.refused = why;
  facts_.eager_steps += why.empty() ? 0 : 1;
  return why.empty();
}

EngineFacts DeviceStepEngine::facts() const {
  EngineFacts out = facts_;
  if (stage_) {
    out.captures += stage_->captures();
    out.graph_nodes += stage_->graph_nodes();
    out.steps_from_cache = stage_->served();
  }
  return out;
}

GradientSync::Timed DeviceStepEngine::run_captured(Plan& plan, const Batches& batches) {
  const int64_t count = static_cast<int64_t>(batches.size());
  GradientSync* sync = options_.sync;
  if (options_.graph == GraphMode::kFullIteration) {
    for (size_t m = 0; m < batches.size(); ++m) take_values(*plan.inputs[m], *batches[m]);
    inputs_taken();
    if (plan.graph) {
      if (sync != nullptr) sync->count_again(plan.traffic);
    } else {
      // The capture's own buffers take the place of those of the eager step.
      if (sync == nullptr) optimizer_.zero_grad(how_gradients_begin());
      const auto before = sync == nullptr ? plan.traffic : sync->traffic();
      capture(plan, [&] { plan.timed = whole_step(plan.inputs); });
      if (sync != nullptr) plan.traffic = sync->traffic_since(before);
    }
    plan.graph->replay();
    if (sync != nullptr) sync->weights_changed();
    facts_.graph_nodes = plan.graph->num_nodes();
    return plan.timed;
  }
  if (sync != nullptr) sync->begin_times();
  reset_gradients();
  policy_.begin_step();
  models::Batch& input = *plan.inputs.front();
  // Before any micro-batch is begun: one graph serves all of them, so nothing is sent inside.
  if (!plan.graph) capture(plan, [&] { micro_step(input, row_, count); });
  for (int64_t m = 0; m < count; ++m) {
    take_values(input, *batches[static_cast<size_t>(m)]);
    if (sync != nullptr) sync->begin_micro_batch(m + 1 == count);
    plan.graph->replay();
    loss_row(m).copy_(row_);
  }
  inputs_taken();
  facts_.graph_nodes = plan.graph->num_nodes() * count;
  if (sync != nullptr) sync->all_gradients_ready();
  update();
  return sync != nullptr ? sync->end_times() : GradientSync::Timed();
}

// A step by its plan: eagerly the first time, then captured, then replayed.
GradientSync::Timed DeviceStepEngine::run(Plan& plan, const Batches& batches) {
  if (options_.graph != GraphMode::kNone && plan.ran && may_replay(plan, batches)) {
    return run_captured(plan, batches);
  }
  GradientSync::Timed timed;
  if (options_.graph == GraphMode::kNone) {
    timed = whole_step(batches);
  } else {
    const runtime::PoolScope in_pool(pool_, compute_);
    const GeneratorWatch watch(options_.device);
    timed = whole_step(batches);
    plan.draws = watch.moved();
    plan.ran = true;
  }
  inputs_taken();
  return timed;
}

Plan& DeviceStepEngine::plan_for(const Batches& micro) {
  const std::string key = graph_key(micro);
  if (plans_.size() >= kMaxGraphs && !plans_.contains(key)) {
    warn_graphs_dropped("steps");
    compute_.synchronize();
    plans_.clear();
  }
  Plan& plan = plans_[key];
  if (!plan.inputs.empty() || options_.graph == GraphMode::kNone) return plan;
  const size_t copies = options_.graph == GraphMode::kFullIteration ? micro.size() : 1;
  plan.inputs = graph_inputs(micro, copies);
  return plan;
}

void DeviceStepEngine::submit(int64_t step, Batches micro, int64_t num_updates,
                              const UpdateScalars& now, const UpdateScalars& next) {
  num_micro_ = static_cast<int64_t>(micro.size());
  GradientSync* sync = options_.sync;
  Pending pending;
  pending.step = step;
  if (sync != nullptr) pending.wire_bytes = -sync->total_traffic().wire_bytes;
  for (const auto& batch : micro) {
    pending.sample_ids.push_back(batch->sample_ids);
  }
  if (stage_) stage_->from_cache(micro);
  runtime::Event copied;
  {
    const runtime::Stream& stream = options_.copy_ahead ? copy_ : compute_;
    const runtime::StreamScope scope(stream);
    for (const auto& batch : micro) send(*batch, options_.device);
    copied.record(stream);
  }
  pending.batches = std::move(micro);
  if (stage_) pending.behind = stage_->run(pending.batches, copied, compute_, pending.fresh);
  const Batches& batches = stage_ ? pending.behind : pending.batches;
  const runtime::StreamScope scope(compute_);
  if (pending_.empty()) last_end_.emplace(/*with_time=*/true).record(compute_);
  copied.block(compute_);
  if (stage_) stage_->ready(compute_);
  optimizer_.upload_scalars({num_updates, now.lr, now.weight_decay},
                            {num_updates + 1, next.lr, next.weight_decay});
  pending.timed = run(plan_for(batches), batches);
  if (sync != nullptr) {
    pending.missing = sync->missing();
    pending.stamps = sync->copy_stamps(pending.timed);
    pending.wire_bytes += sync->total_traffic().wire_bytes;
  }
  const auto to_host = [](const at::Tensor& device) {
    at::Tensor host =
        at::empty(device.sizes(), device.options().device(at::kCPU).pinned_memory(true));
    host.copy_(device, /*non_blocking=*/true);
    return host;
  };
  pending.losses = to_host(losses_);
  pending.report = to_host(optimizer_.report());
  pending.done.record(compute_);
  pending_.push_back(std::move(pending));
}

void DeviceStepEngine::await(const runtime::Event& event) const {
  if (!options_.while_waiting) return event.synchronize();
  const auto begin = std::chrono::steady_clock::now();
  const auto look = [&] {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    options_.while_waiting(waited.count());
  };
  while (!event.done()) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    look();
  }
  look();  // the step may have ended because a lost peer's exchange was
}

StepReport DeviceStepEngine::take_report() {
  LS_CHECK(!pending_.empty(), InternalError, "no step was submitted");
  Pending pending = std::move(pending_.front());
  pending_.pop_front();
  await(pending.done);
  StepReport out;
  out.step = pending.step;
  out.device_ms = pending.done.ms_since(*last_end_);
  last_end_ = std::move(pending.done);
  if (stage_) stage_->keep(pending.fresh);
  if (options_.sync != nullptr) {
    out.missing = std::move(pending.missing);
    const GradientSync::Times times = options_.sync->read_times(pending.timed, pending.stamps);
    out.comm_ms = times.collectives;
    out.exposed_ms = times.waited;
    out.wire_bytes = pending.wire_bytes;
  }
  const int64_t columns = pending.losses.size(1);
  const float* values = pending.losses.const_data_ptr<float>();
  for (const std::string& name : metric_names_) out.extra.emplace_back(name, 0.0);
  std::vector<double> losses;
  for (int64_t m = 0; m < pending.losses.size(0); ++m) {
    const double share = static_cast<double>(pending.losses.size(0));
    losses.push_back(static_cast<double>(values[m * columns]));
    out.loss += losses.back() / share;
    for (int64_t c = 1; c < columns; ++c) {
      out.extra[static_cast<size_t>(c - 1)].second +=
          static_cast<double>(values[m * columns + c]) / share;
    }
  }
  const ops::AdamWReport update = ops::read_report(pending.report);
  out.grad_norm = update.norm;
  out.updated = update.updated;
  out.fault = describe_fault(losses, out.grad_norm, pending.sample_ids);
  return out;
}

void DeviceStepEngine::reset(int64_t num_updates) {
  compute_.synchronize();
  optimizer_.set_num_updates(num_updates);
  optimizer_.clear_fault();
  if (stage_) stage_->reset();
}

}  // namespace

std::unique_ptr<StepEngine> make_device_step_engine(models::Policy& policy, AdamW& optimizer,
                                                    const StepEngineOptions& options) {
  return std::make_unique<DeviceStepEngine>(policy, optimizer, options);
}

}  // namespace longship::train
