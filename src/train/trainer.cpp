#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/signals.h"
#include "base/strings.h"
#include "base/version.h"
#include "data/sampler.h"
#include "runtime/device.h"
#include "train/assembly.h"
#include "train/checkpoint.h"
#include "train/checkpoint_io.h"
#include "train/checkpoint_saver.h"
#include "train/feed.h"
#include "train/metrics.h"
#include "train/order_log.h"
#include "train/parallel_checkpoint.h"
#include "train/parallel_window.h"
#include "train/report_exchange.h"
#include "train/run_folder.h"
#include "train/session.h"
#include "train/step_engine.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Run {
 public:
  Run(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
      const TrainOptions& options, const FamilyLookup& lookup)
      : recipe_(recipe),
        dataset_(std::move(dataset)),
        options_(options),
        lookup_(lookup),
        parallel_(options.parallel != nullptr ? *options.parallel : alone_),
        store_(recipe.output_dir),
        group_(make_checkpoint_group(parallel_)),
        saver_(
            store_, *group_,
            {recipe.checkpoint.async, recipe.checkpoint.keep_last, recipe.checkpoint.keep_every}),
        schedule_(recipe.optim.schedule, recipe.optim.lr, recipe.train.steps) {}

  TrainOutcome train();

 private:
  void prepare();
  void make_contents(const std::string& recipe_yaml);
  void open_log(const StartPlan& plan);
  void say_what_trains(const TrainingSamples& samples);
  void put_together(const StartPlan& plan);
  void say_what_runs();
  void start_feed();
  void run_steps();
  int64_t last_step() const { return recipe_.train.stop_after.value_or(recipe_.train.steps); }
  void fetch(int64_t step);
  void submit_step(int64_t step);
  void take_reports(int64_t leave_in_flight);
  bool interrupted() const;
  void exchange(StepReport& report);
  [[noreturn]] void stop_for_data();
  void handle(const StepReport& report);
  void skip_or_stop(const StepReport& report);
  void record(int64_t step, bool force);
  void write_record(int64_t step);
  void report_progress(const StepReport& report);
  PipelineRecord pipeline_record(double seconds);
  UpdateScalars scalars_of(int64_t num_updates) const;
  void draw_loss();
  void save(bool last);
  void finish();

  const Recipe& recipe_;  // as given
  Recipe bound_;          // with what the dataset fills in
  std::shared_ptr<const data::Dataset> dataset_;
  const TrainOptions& options_;
  const FamilyLookup& lookup_;
  Parallel alone_;
  Parallel& parallel_;
  CheckpointStore store_;
  std::unique_ptr<CheckpointGroup> group_;  // of those who write checkpoints together
  CheckpointSaver saver_;
  Schedule schedule_;
  at::Device device_ = at::kCPU;
  std::unique_ptr<models::Transform> transform_;
  Assembly assembly_;
  std::unique_ptr<data::ShuffledStream> stream_;
  std::unique_ptr<OrderLog> order_log_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<Progress> progress_;
  std::optional<InterruptGuard> guard_;
  // Declared after everything its workers use, so that they are joined first.
  std::unique_ptr<BatchFeed> feed_;
  CheckpointContents contents_;
  TrainerState state_;
  TrainOutcome outcome_;
  int64_t resumed_step_ = 0;
  Clock::time_point run_start_, window_start_;
  int64_t timed_steps_ = 0;
  double device_ms_ = 0;
  double wait_ms_ = 0;
  FeedCounters feed_before_;  // at the last record
  double last_lr_ = 0;
  // Of several processes: the batches of the step at hand, taken one step early so that all know
  // whether everybody has its own.
  std::vector<std::unique_ptr<models::Batch>> fetched_;
  std::string data_fault_;  // why this process has none
  bool data_fault_anywhere_ = false;
  bool interrupted_anywhere_ = false;
  int64_t exchanges_ = 0;
  ParallelWindow window_;
};

// Everything that can be wrong is found before the run folder is touched, an earlier run in it
// removed or a weight loaded.
void Run::prepare() {
  check_parallel(recipe_, parallel_.launch());
  const std::string recipe_yaml = dump(recipe_);
  bound_ = recipe_from(config::parse_yaml_text(recipe_yaml, "resolved recipe"), lookup_);
  bound_.model->bind_dataset(*dataset_);
  device_ = parallel_.device(recipe_);
  place_augmentation(bound_, device_);
  transform_ = make_transform(bound_, *dataset_);
  transform_->check_dataset(*dataset_);
  parallel_.together([&] { make_contents(recipe_yaml); });
  const TrainingSamples samples = training_samples(recipe_, *dataset_, transform_->windows());
  stream_ = std::make_unique<data::ShuffledStream>(samples.order, recipe_.train.global_batch);
  check_order(*stream_, recipe_.data.expect_order_sha256, last_step());

  state_.dataset_identity =
      identify(*dataset_, {bound_.model->state_column(), bound_.model->action_column()});
  state_.dataset_fingerprint = fingerprint(state_.dataset_identity);
  parallel_.agree("contents of the datasets", state_.dataset_fingerprint);
  const StartPlan plan =
      plan_start_together(parallel_, recipe_, options_.overwrite, state_.dataset_identity, lookup_);
  open_log(plan);
  say_what_trains(samples);
  put_together(plan);
  if (parallel_.first()) {
    const fs::path folder = recipe_.output_dir;
    write_file_atomic(folder / "config.yaml", recipe_yaml);
    metrics_ = std::make_unique<MetricsLog>(folder, resumed_step_, recipe_.log.tensorboard);
  }
  say_what_runs();
}

// Of rank 0, which writes checkpoints; whole columns may be read for it. Files of the checkpoint
// that the run starts from go into those that it writes, so that a broken one stops the run here.
void Run::make_contents(const std::string& recipe_yaml) {
  if (!parallel_.first()) return;
  const auto stats = checkpoint_stats(*dataset_, *transform_);
  const models::Transform::Described described{transform_.get(), stats};
  contents_ = {&bound_, recipe_yaml, dataset_.get(), stats_to_json(stats),
               transform_->checkpoint_files({&described, 1})};
}

void Run::open_log(const StartPlan& plan) {
  const fs::path folder = recipe_.output_dir;
  const bool first = parallel_.first();
  log::init(options_.quiet || !first ? log::Level::kError : log::Level::kInfo,
            folder / (first ? "train.log" : fmt::format("train.rank{}.log", parallel_.rank())));
  plan.report();
  if (first) store_.remove_partials();
  apply_library_settings(recipe_);
  log::info("longship {}; {}, {}", version(), runtime::describe(device_), recipe_.train.dtype);
  if (!parallel_.distributed()) return;
  log::info("{}: process {} of {}, started by {}{}", recipe_.parallel.strategy, parallel_.rank(),
            parallel_.world_size(), dist::launcher_name(parallel_.launch().launcher),
            parallel_.launch().restart_count > 0
                ? fmt::format(", restart {}", parallel_.launch().restart_count)
                : "");
}

void Run::say_what_trains(const TrainingSamples& samples) {
  log::info("{}: {} samples of {} episodes for training, {} episodes held out",
            dataset_->root().string(), with_thousands(stream_->num_samples()),
            samples.split.train_episodes.size(), samples.split.val_episodes.size());
  if (!samples.summary.empty()) {
    for (const std::string& line : split(samples.summary, '\n')) log::info("{}", line);
  }
  if (samples.num_bad > 0) {
    log::warn("{} bad samples are left out of the training (data.on_bad_sample skip)",
              samples.num_bad);
  }
  if (stream_->num_samples() < recipe_.train.global_batch) {
    log::info("{} samples for batches of {}: samples are repeated inside a batch",
              stream_->num_samples(), recipe_.train.global_batch);
  }
}

// Model, optimizer and engine, with the state to go on from.
void Run::put_together(const StartPlan& plan) {
  parallel_.open_data_plane(device_);
  if (plan.resume_from) {
    TrainerState resumed = plan.state;
    resumed.dataset_identity = state_.dataset_identity;
    resumed.dataset_fingerprint = state_.dataset_fingerprint;
    state_ = std::move(resumed);
  }
  parallel_.together([&] {
    assembly_ = assemble(bound_, device_, &parallel_);
    if (!plan.resume_from) return;
    load_training_state(*plan.resume_from, *assembly_.policy, *assembly_.optimizer,
                        state_.num_updates, assembly_.sync.get());
  });
  if (assembly_.sync) {
    // With zero1 a rank has rounded its own parts only.
    assembly_.sync->weights_changed();
    assembly_.sync->wait_weights();
    check_same_weights(parallel_, *assembly_.sync);
  }
  if (plan.resume_from) {
    assembly_.engine->reset(state_.num_updates);
    log::info("resumed from {} at step {}", plan.resume_from->string(), state_.step);
    outcome_.checkpoint = *plan.resume_from;
    if (!plan.is_fork) saver_.assume_saved(state_.step, *plan.resume_from);
  }
  state_.seed = recipe_.train.seed;
  state_.global_batch = recipe_.train.global_batch;
  resumed_step_ = state_.step;
}

void Run::say_what_runs() {
  int64_t total = 0, frozen = 0;
  for (const models::ParamInfo& info : assembly_.policy->parameters()) {
    total += info.tensor.numel();
    if (info.role == models::ParamRole::kFrozen) frozen += info.tensor.numel();
  }
  log::info("{}: {} parameters, {} frozen", recipe_.family->name(), with_thousands(total),
            with_thousands(frozen));
  const int64_t world = parallel_.world_size();
  log::info("{} steps of {} samples ({}{} x {}), {:.1f} passes over the data; run folder {}",
            recipe_.train.steps, recipe_.train.global_batch,
            world > 1 ? fmt::format("{} processes x ", world) : "", recipe_.train.num_micro(world),
            recipe_.train.micro_size(world), stream_->epochs_before(recipe_.train.steps),
            recipe_.output_dir);
}

void Run::start_feed() {
  if (parallel_.first()) order_log_ = std::make_unique<OrderLog>(*stream_);
  feed_ = std::make_unique<BatchFeed>(recipe_, *dataset_, *transform_, *assembly_.policy, *stream_,
                                      device_.is_cuda(), state_.step, last_step(),
                                      BatchShare{parallel_.rank(), parallel_.world_size()});
}

UpdateScalars Run::scalars_of(int64_t num_updates) const {
  return {schedule_.lr(num_updates),
          recipe_.optim.weight_decay_ramp.value(recipe_.optim.weight_decay, num_updates)};
}

// The batches of a step. Alone, what goes wrong is thrown; of several processes each keeps it for
// the next exchange, because the others must know before they begin the step.
void Run::fetch(int64_t step) {
  if (step >= last_step()) return;
  try {
    fetched_ = feed_->next_step();
    wait_ms_ += feed_->wait_ms();
  } catch (const DataError& error) {
    if (!parallel_.distributed()) throw;
    data_fault_ = error.what();
  }
}

void Run::submit_step(int64_t step) {
  parallel_.set_step(step + 1);
  if (order_log_) order_log_->enter(step);
  assembly_.engine->submit(step, std::move(fetched_), state_.num_updates,
                           scalars_of(state_.num_updates), scalars_of(state_.num_updates + 1));
}

void Run::take_reports(int64_t leave_in_flight) {
  while (assembly_.engine->in_flight() > leave_in_flight) {
    StepReport report = assembly_.engine->take_report();
    if (parallel_.distributed()) exchange(report);
    handle(report);
  }
}

// Whether to leave after the steps that are under way; of several processes this changes in
// exchange() only, at the same step on all.
bool Run::interrupted() const {
  return parallel_.distributed() ? interrupted_anywhere_ : guard_->interrupted();
}

// This process's report becomes that of all: mean loss, faults and signals of any rank.
void Run::exchange(StepReport& report) {
  const ExchangedReport all =
      exchange_report(parallel_, report, guard_->interrupted(), !data_fault_.empty());
  ++exchanges_;
  interrupted_anywhere_ = interrupted_anywhere_ || all.interrupted;
  data_fault_anywhere_ = data_fault_anywhere_ || all.data_fault;
  window_.add(report, all);
}

void Run::skip_or_stop(const StepReport& report) {
  const std::string what = fmt::format("step {}: {}", report.step + 1, report.fault);
  // A step behind this one may be in flight; with 'stop' the device leaves it without effect.
  if (recipe_.train.on_nonfinite == "stop") {
    while (assembly_.engine->in_flight() > 0) assembly_.engine->take_report();
    save(/*last=*/true);
    parallel_.all_leave();
    throw NonFiniteError(fmt::format(
        "{}; nothing was updated, and the state before this step is in {}. Look at these samples, "
        "lower optim.lr, or set train.on_nonfinite=skip train.max_skipped_steps=N",
        what, outcome_.checkpoint.string()));
  }
  const int64_t most = recipe_.train.max_skipped_steps.value_or(10);
  if (state_.skipped_steps >= most) {
    save(/*last=*/true);
    parallel_.all_leave();
    throw NonFiniteError(
        fmt::format("{}; {} steps were skipped already and train.max_skipped_steps is {}. The "
                    "state before this step is in {}",
                    what, state_.skipped_steps, most, outcome_.checkpoint.string()));
  }
  ++state_.skipped_steps;
  log::warn("{}; the step is skipped ({} of at most {})", what, state_.skipped_steps, most);
  assembly_.engine->reset(state_.num_updates);
}

void Run::handle(const StepReport& report) {
  outcome_.losses.push_back(report.loss);
  outcome_.last_loss = report.loss;
  if (!report.fault.empty()) {
    skip_or_stop(report);
  } else {
    last_lr_ = schedule_.lr(state_.num_updates);
    ++state_.num_updates;
    ++state_.window_updates;
    state_.window_loss += report.loss;
    state_.window_grad_norm += report.grad_norm;
    if (state_.window_extra.size() != report.extra.size())
      state_.window_extra = report.extra;
    else
      for (size_t i = 0; i < report.extra.size(); ++i)
        state_.window_extra[i].second += report.extra[i].second;
  }
  ++state_.window_steps;
  ++timed_steps_;
  device_ms_ += report.device_ms;
  state_.step = report.step + 1;
  state_.num_samples += recipe_.train.global_batch;
  report_progress(report);
  record(state_.step, state_.step == recipe_.train.steps);
}

void Run::report_progress(const StepReport& report) {
  if (!progress_) return;
  std::string note = fmt::format("loss {:.4f}  lr {:.1e}", report.loss, last_lr_);
  if (feed_->capacity() > 0) {
    note += fmt::format("  queue {}/{}", feed_->num_ready(), feed_->capacity());
  }
  progress_->update(state_.step, note);
}

/// How the feed was used since the last record, `seconds` ago.
PipelineRecord Run::pipeline_record(double seconds) {
  const FeedCounters now = feed_->counters();
  const PrefetchCounters &queue = now.queue, &before = feed_before_.queue;
  // Without workers the training thread does their work.
  const double time = seconds * static_cast<double>(std::max<int64_t>(feed_->num_workers(), 1));
  const auto taken = static_cast<double>(std::max<int64_t>(queue.num_taken - before.num_taken, 1));
  PipelineRecord out;
  out.queue = static_cast<double>(queue.ready_sum - before.ready_sum) / taken;
  out.queue_capacity = feed_->capacity();
  out.starved = static_cast<double>(queue.num_starved - before.num_starved) / taken;
  out.blocked = (queue.blocked_s - before.blocked_s) / time;
  for (size_t i = 0; i < kNumFeedStages; ++i) {
    // Fetching is what is left of a batch without decoding, which is on the books earlier.
    const double spent = (now.stages[i] - feed_before_.stages[i]).wall_s;
    out.stages.emplace_back(to_string(static_cast<FeedStage>(i)), std::max(spent, 0.0) / time);
  }
  feed_before_ = now;
  return out;
}

void Run::record(int64_t step, bool force) {
  if (!force && step != 1 && step % recipe_.log.every != 0) return;
  if (metrics_) write_record(step);
  state_.window_steps = state_.window_updates = 0;
  state_.window_loss = state_.window_grad_norm = 0;
  state_.window_extra.clear();
  timed_steps_ = 0;
  device_ms_ = wait_ms_ = 0;
  window_.clear();
  window_start_ = Clock::now();
}

void Run::write_record(int64_t step) {
  // Where the host was slower than the device, several reports are there at once before a save.
  const double seconds = std::max(seconds_since(window_start_), 1e-3 * device_ms_);
  const double updates = static_cast<double>(state_.window_updates);
  MetricsRecord r;
  r.step = step;
  r.loss = state_.window_loss / updates;  // NaN, written as null, when every step was skipped
  r.grad_norm = state_.window_grad_norm / updates;
  r.lr = last_lr_;
  r.samples_per_s = static_cast<double>(timed_steps_ * recipe_.train.global_batch) / seconds;
  r.data_wait_ms = wait_ms_ / static_cast<double>(timed_steps_);
  r.step_time_ms = 1e3 * seconds / static_cast<double>(timed_steps_);
  r.epoch = stream_->epochs_before(step);
  r.skipped_steps = state_.skipped_steps;
  r.num_samples = state_.num_samples;
  if (feed_) r.pipeline = pipeline_record(seconds);
  if (parallel_.distributed()) {
    r.parallel = window_.record(timed_steps_);
  }
  for (const auto& [name, sum] : state_.window_extra) r.extra.emplace_back(name, sum / updates);
  metrics_->write(r);
  const double per_step = seconds_since(run_start_) / static_cast<double>(step - resumed_step_);
  const std::string line =
      to_console_line(r, recipe_.train.steps, per_step * static_cast<double>(last_step() - step));
  if (progress_) {
    log::debug("{}", line);
  } else {
    log::info("{}", line);
  }
}

void Run::draw_loss() {
  metrics_->draw_loss(
      fmt::format("{}: training loss", fs::path(recipe_.output_dir).filename().string()));
}

// The last save of a run is there when this returns, or throws; others may go on behind training.
void Run::save(bool last) {
  const auto before = Clock::now();
  const auto parts = [this] {
    return collect_parts(contents_, *assembly_.policy, *assembly_.optimizer, state_,
                         assembly_.sync.get());
  };
  try {
    if (last) {
      saver_.finish(state_.step, parts);
      outcome_.checkpoint = saver_.newest();
    } else {
      saver_.begin(state_.step, parts);
    }
  } catch (const CheckpointError&) {
    parallel_.all_leave();  // all ranks throw it
    throw;
  }
  if (metrics_) draw_loss();
  // Saving is no part of the step time.
  window_start_ += Clock::now() - before;
}

void Run::run_steps() {
  // Of several processes each has its first batch before any begins.
  const bool ahead = parallel_.distributed();
  if (ahead) {
    fetch(state_.step);
    data_fault_anywhere_ = parallel_.any(!data_fault_.empty());
  }
  for (int64_t next = state_.step; next < last_step() && !interrupted(); ++next) {
    if (data_fault_anywhere_) stop_for_data();
    if (!ahead) fetch(next);
    submit_step(next);
    if (ahead) fetch(next + 1);
    const bool saves = next + 1 == last_step() ||
                       (recipe_.checkpoint.every && (next + 1) % *recipe_.checkpoint.every == 0);
    // With 'skip' the host has to know before the next step whether this one counted.
    const bool wait = saves || recipe_.train.on_nonfinite == "skip";
    const int64_t exchanges = exchanges_;
    take_reports(wait ? 0 : assembly_.engine->lag());
    // Where no report was due, the exchange that says whether all have their next batch is made up
    // for.
    if (ahead && exchanges_ == exchanges) {
      data_fault_anywhere_ = parallel_.any(!data_fault_.empty());
    }
    if (saves && recipe_.checkpoint.every && state_.step % *recipe_.checkpoint.every == 0) {
      save(/*last=*/false);
    }
  }
  take_reports(0);
}

// A sample of a rank could not be read, so the step did not begin: what was learned so far is kept.
void Run::stop_for_data() {
  take_reports(0);
  save(/*last=*/true);
  const std::vector<std::string> faults = parallel_.gather_texts(data_fault_);
  const auto first = std::find_if(faults.begin(), faults.end(),
                                  [](const std::string& text) { return !text.empty(); });
  parallel_.all_leave();
  throw DataError(fmt::format("rank {}: {}", first - faults.begin(), *first));
}

TrainOutcome Run::train() {
  prepare();
  guard_.emplace();
  run_start_ = window_start_ = Clock::now();
  if (log::is_terminal() && !options_.quiet && parallel_.first()) {
    progress_ = std::make_unique<Progress>("train", recipe_.train.steps, "step", state_.step);
  }
  if (state_.step >= last_step()) {
    log::info("step {} of {} is reached already; nothing to train", state_.step,
              recipe_.train.steps);
  } else {
    start_feed();
  }
  try {
    run_steps();
  } catch (const DataError&) {
    if (parallel_.distributed()) throw;
    take_reports(0);
    save(/*last=*/true);
    throw;
  }
  outcome_.interrupted = interrupted() && state_.step < last_step();
  feed_.reset();
  save(/*last=*/true);
  finish();
  return outcome_;
}

void Run::finish() {
  outcome_.step = state_.step;
  outcome_.finished = state_.step >= recipe_.train.steps;
  progress_.reset();
  if (metrics_) {
    metrics_->flush();
    draw_loss();
  }
  const fs::path folder = recipe_.output_dir;
  if (outcome_.interrupted) {
    log::info("interrupted after step {} of {}; the state is saved in {}", state_.step,
              recipe_.train.steps, outcome_.checkpoint.string());
    log::info("resume with: {}", options_.command);
    return;
  }
  if (!outcome_.finished) {
    log::info("stopped after step {} as train.stop_after says; go on with train.stop_after=null",
              state_.step);
  }
  if (!outcome_.losses.empty()) {
    log::info("trained to step {} in {}", state_.step, human_duration(seconds_since(run_start_)));
  }
  log::info("  checkpoint    {}", outcome_.checkpoint.string());
  log::info("  loss picture  {}", (folder / "loss.svg").string());
  log::info("  metrics       {}{}", (folder / "metrics.jsonl").string(),
            recipe_.log.tensorboard
                ? fmt::format(", tensorboard --logdir {}", (folder / "tensorboard").string())
                : "");
}

}  // namespace

TrainOutcome train(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
                   const TrainOptions& options, const FamilyLookup& lookup) {
  Run run(recipe, std::move(dataset), options, lookup);
  try {
    return run.train();
  } catch (const std::exception& error) {
    if (options.parallel != nullptr) options.parallel->leave(error.what());
    throw;
  }
}

}  // namespace longship::train
