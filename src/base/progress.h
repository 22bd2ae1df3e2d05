#pragma once
// Progress with rate and remaining time: a bar that redraws itself on a terminal, sparse plain
// lines elsewhere.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace longship {

class Progress {
 public:
  /// `unit` names one thing counted, e.g. "step". `plain_interval_s` is the least time between
  /// plain lines.
  Progress(std::string label, int64_t total, std::string unit, int64_t start = 0,
           double plain_interval_s = 30);
  ~Progress();  // removes the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// `note` is appended as it is, e.g. "loss 0.1234".
  void update(int64_t done, std::string_view note = {});
  /// Removes the bar and logs one line with total and duration.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_, unit_;
  int64_t total_, start_, done_;
  double plain_interval_s_;
  Clock::time_point begin_, last_;
  bool shown_ = false, finished_ = false;
};

/// "train  [#####-----]  50/100 step  2.5 step/s  ETA 20 s  loss 0.1". Pure function, used by
/// Progress.
std::string format_progress(std::string_view label, int64_t done, int64_t total,
                            std::string_view unit, double per_second, bool with_bar,
                            std::string_view note);

}  // namespace longship
