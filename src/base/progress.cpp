#include "base/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/strings.h"

namespace longship {

namespace {

constexpr double kRedrawInterval_s = 0.1;

double seconds_between(std::chrono::steady_clock::time_point a,
                       std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

// A status line longer than the terminal would wrap, and only its last row could be cleared.
std::string fit_terminal(std::string line) {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return line;
  if (line.size() >= size.ws_col) line.resize(size.ws_col - size_t{1});
  return line;
}

}  // namespace

std::string format_progress(std::string_view label, int64_t done, int64_t total,
                            std::string_view unit, double per_second, bool with_bar,
                            std::string_view note) {
  std::string out(label);
  if (with_bar) {
    constexpr int64_t kCells = 24;
    const int64_t filled = total > 0 ? std::clamp<int64_t>(done * kCells / total, 0, kCells) : 0;
    out += fmt::format("  [{}{}]", std::string(static_cast<size_t>(filled), '#'),
                       std::string(static_cast<size_t>(kCells - filled), '-'));
  }
  out += fmt::format("  {}/{} {}", with_thousands(done), with_thousands(total), unit);
  if (per_second > 0) {
    // A slow process reads better as time per thing.
    out += per_second >= 0.1 ? fmt::format("  {:.3g} {}/s", per_second, unit)
                             : fmt::format("  {}/{}", human_duration(1 / per_second), unit);
    out += "  ETA " +
           human_duration(static_cast<double>(std::max<int64_t>(total - done, 0)) / per_second);
  }
  if (!note.empty()) out += fmt::format("  {}", note);
  return out;
}

Progress::Progress(std::string label, int64_t total, std::string unit, int64_t start,
                   double plain_interval_s)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      start_(start),
      done_(start),
      plain_interval_s_(plain_interval_s),
      begin_(Clock::now()),
      last_(begin_) {}

Progress::~Progress() {
  if (shown_ && !finished_) log::set_status("");
}

void Progress::update(int64_t done, std::string_view note) {
  done_ = done;
  const bool terminal = log::is_terminal();
  const auto now = Clock::now();
  const double since_last = seconds_between(last_, now);
  if (since_last < (terminal ? kRedrawInterval_s : plain_interval_s_)) return;
  last_ = now;
  const double elapsed = seconds_between(begin_, now);
  const double rate = elapsed > 0 ? static_cast<double>(done - start_) / elapsed : 0;
  const std::string line = format_progress(label_, done, total_, unit_, rate, terminal, note);
  if (terminal) {
    log::set_status(fit_terminal(line));
    shown_ = true;
  } else {
    log::info("{}", line);
  }
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  if (shown_) log::set_status("");
  log::info("{}: {} {} in {}", label_, with_thousands(done_ - start_), unit_,
            human_duration(seconds_between(begin_, Clock::now())));
}

}  // namespace longship
