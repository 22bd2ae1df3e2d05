#include "train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/strings.h"
#include "base/svg_chart.h"
#include "io/tfevents.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;

// JSON has no NaN; a value that is not finite becomes null.
nlohmann::ordered_json number(double value) {
  if (std::isfinite(value)) return value;
  return nullptr;
}

// Appends as much as there is room for and takes it out of `text`.
void append_from(const fs::path& path, std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    throw Error(ExitCode::kOther, fmt::format("{}: cannot be opened for writing: {}", path.string(),
                                              std::strerror(errno)));
  }
  const ssize_t written = ::write(fd, text.data(), text.size());
  const int reason = errno;
  ::close(fd);
  if (written > 0) text.erase(0, static_cast<size_t>(written));
  if (!text.empty()) {
    throw Error(ExitCode::kOther,
                fmt::format("{}: writing a record failed: {}", path.string(),
                            written < 0 ? std::strerror(reason) : "the disk is full"));
  }
}

/// (key, value) of a pipeline's record, for both kinds of file.
std::vector<std::pair<std::string, double>> flatten(const PipelineRecord& p) {
  std::vector<std::pair<std::string, double>> out = {
      {"data_queue", p.queue}, {"data_starved", p.starved}, {"data_blocked", p.blocked}};
  for (const auto& [stage, share] : p.stages) out.emplace_back("data_use_" + stage, share);
  return out;
}

std::vector<std::pair<std::string, double>> flatten(const ParallelRecord& p) {
  return {{"comm_mb", p.wire_mb},
          {"comm_ms", p.comm_ms},
          {"comm_exposed_ms", p.exposed_ms},
          {"slowest_rank", static_cast<double>(p.slowest_rank)},
          {"slowest_ms", p.slowest_ms},
          {"fastest_ms", p.fastest_ms}};
}

}  // namespace

std::string to_json_line(const MetricsRecord& r) {
  nlohmann::ordered_json line;
  line["step"] = r.step;
  line["loss"] = number(r.loss);
  line["grad_norm"] = number(r.grad_norm);
  line["lr"] = number(r.lr);
  line["samples_per_s"] = number(r.samples_per_s);
  line["data_wait_ms"] = number(r.data_wait_ms);
  line["step_time_ms"] = number(r.step_time_ms);
  line["epoch"] = number(r.epoch);
  line["num_samples"] = r.num_samples;
  line["skipped_steps"] = r.skipped_steps;
  if (r.pipeline) {
    line["data_queue_capacity"] = r.pipeline->queue_capacity;
    for (const auto& [name, value] : flatten(*r.pipeline)) line[name] = number(value);
  }
  if (r.parallel) {
    line["world_size"] = r.parallel->world_size;
    for (const auto& [name, value] : flatten(*r.parallel)) line[name] = number(value);
    line["slowest_rank"] = r.parallel->slowest_rank;
  }
  for (const auto& [name, value] : r.extra) line[name] = number(value);
  return line.dump();
}

std::string to_console_line(const MetricsRecord& r, int64_t num_steps, double eta_s) {
  std::string line = fmt::format(
      "step {}/{}  loss {:.4f}  grad_norm {:.3g}  lr {:.2e}  {:.1f} samples/s  data wait {:.1f} ms",
      r.step, num_steps, r.loss, r.grad_norm, r.lr, r.samples_per_s, r.data_wait_ms);
  if (r.pipeline && r.pipeline->queue_capacity > 0) {
    double busy = 0;
    for (const auto& [stage, share] : r.pipeline->stages) busy += share;
    line += fmt::format("  queue {:.1f}/{}  workers {:.0f} %", r.pipeline->queue,
                        r.pipeline->queue_capacity, 100 * busy);
  }
  if (r.parallel) {
    const ParallelRecord& p = *r.parallel;
    if (std::isfinite(p.exposed_ms))
      line += fmt::format("  exchange waits {:.1f} ms", p.exposed_ms);
    if (std::isfinite(p.slowest_ms) && p.fastest_ms > 0) {
      line += fmt::format("  slowest rank {} (+{:.0f} %)", p.slowest_rank,
                          100 * (p.slowest_ms / p.fastest_ms - 1));
    }
  }
  if (r.skipped_steps > 0) line += fmt::format("  skipped {}", r.skipped_steps);
  if (r.step < num_steps) line += "  ETA " + human_duration(eta_s);
  return line;
}

MetricsLog::MetricsLog(fs::path run_dir, int64_t resumed_step, bool tensorboard)
    : run_dir_(std::move(run_dir)) {
  const fs::path path = run_dir_ / "metrics.jsonl";
  if (fs::exists(path)) {
    std::string kept;
    const std::string text = read_file(path, uint64_t{4} << 30);
    for (const std::string& line : split(text, '\n')) {
      if (line.empty()) continue;
      const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
      if (!record.is_object() || !record.contains("step")) continue;
      const int64_t step = record["step"].get<int64_t>();
      if (step > resumed_step) continue;
      kept += line + '\n';
      if (record.contains("loss") && record["loss"].is_number()) {
        history_.emplace_back(step, record["loss"].get<double>());
      }
    }
    if (kept != text) write_file_atomic(path, kept);
  }
  if (tensorboard) {
    events_ = std::make_unique<io::EventWriter>(io::EventWriter::open(run_dir_ / "tensorboard"));
  }
}

MetricsLog::~MetricsLog() = default;

// A full disk must not end a run: what cannot be written waits for the next record.
void MetricsLog::unless_full(const std::function<void()>& work) {
  try {
    work();
    if (std::exchange(failing_, false)) log::info("records are written again");
  } catch (const Error& error) {
    if (!std::exchange(failing_, true)) {
      log::warn("{}; training goes on and tries again with the next record", error.what());
    }
  }
}

void MetricsLog::write(const MetricsRecord& r) {
  pending_ += to_json_line(r) + '\n';
  history_.emplace_back(r.step, r.loss);
  unless_full([&] {
    std::exception_ptr failure;
    try {
      append_from(run_dir_ / "metrics.jsonl", pending_);
    } catch (const Error&) {
      failure = std::current_exception();
    }
    if (events_) write_events(r);  // keeps what it cannot write, too
    if (failure) std::rethrow_exception(failure);
  });
}

void MetricsLog::write_events(const MetricsRecord& r) {
  events_->scalar("train/loss", r.step, r.loss);
  events_->scalar("train/grad_norm", r.step, r.grad_norm);
  events_->scalar("train/lr", r.step, r.lr);
  events_->scalar("train/epoch", r.step, r.epoch);
  events_->scalar("train/skipped_steps", r.step, static_cast<double>(r.skipped_steps));
  events_->scalar("speed/samples_per_s", r.step, r.samples_per_s);
  events_->scalar("speed/data_wait_ms", r.step, r.data_wait_ms);
  events_->scalar("speed/step_time_ms", r.step, r.step_time_ms);
  if (r.pipeline) {
    for (const auto& [name, value] : flatten(*r.pipeline)) {
      events_->scalar("speed/" + name, r.step, value);
    }
  }
  if (r.parallel) {
    for (const auto& [name, value] : flatten(*r.parallel)) {
      if (std::isfinite(value)) events_->scalar("parallel/" + name, r.step, value);
    }
  }
  for (const auto& [name, value] : r.extra) events_->scalar("train/" + name, r.step, value);
  events_->flush();
}

void MetricsLog::flush() {
  unless_full([&] {
    if (!pending_.empty()) append_from(run_dir_ / "metrics.jsonl", pending_);
    if (events_) events_->flush();
  });
}

void MetricsLog::draw_loss(const std::string& title) const {
  if (history_.size() < 2) return;
  chart::Series raw{.name = "loss", .x = {}, .y = {}, .y_low = {}, .y_high = {}};
  raw.faint = true;
  chart::Series smooth{.name = "smoothed", .x = {}, .y = {}, .y_low = {}, .y_high = {}};
  // A mean over about a twentieth of the curve around each point, so that the curve does not lag.
  const auto n = static_cast<int64_t>(history_.size());
  const int64_t reach = std::max<int64_t>(1, n / 40);
  for (int64_t i = 0; i < n; ++i) {
    raw.x.push_back(static_cast<double>(history_[static_cast<size_t>(i)].first));
    raw.y.push_back(history_[static_cast<size_t>(i)].second);
    // The window shrinks towards both ends, where only one side would pull the mean away.
    const int64_t half = std::min({reach, i, n - 1 - i});
    double sum = 0;
    int64_t count = 0;
    for (int64_t k = i - half; k <= i + half; ++k) {
      const double loss = history_[static_cast<size_t>(k)].second;
      if (!std::isfinite(loss)) continue;
      sum += loss;
      ++count;
    }
    smooth.x.push_back(raw.x.back());
    smooth.y.push_back(count > 0 ? sum / static_cast<double>(count) : std::nan(""));
  }
  chart::Panel panel;
  panel.x_label = "step";
  panel.y_label = "loss (normalised units, log scale)";
  panel.log_y = true;
  panel.series = {raw, smooth};
  chart::Figure figure;
  figure.title = title;
  const size_t tail = std::min<size_t>(history_.size(), static_cast<size_t>(2 * reach + 1));
  double end = 0;
  for (size_t i = history_.size() - tail; i < history_.size(); ++i) end += history_[i].second;
  figure.subtitle = fmt::format(
      "{:.4g} at step {}, {:.4g} at step {} (mean of the last {} records)", history_.front().second,
      history_.front().first, end / static_cast<double>(tail), history_.back().first, tail);
  figure.panels = {panel};
  try {
    write_file_atomic(run_dir_ / "loss.svg", chart::render(figure));
  } catch (const Error& error) {
    log::warn("{}; training goes on without the picture", error.what());
  }
}

}  // namespace longship::train
