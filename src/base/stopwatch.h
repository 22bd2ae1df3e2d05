#pragma once
// Where time goes: wall clock and CPU time of the calling thread.

#include <time.h>

namespace longship {

struct Elapsed {
  double wall_s = 0;
  double cpu_s = 0;  // of one thread, or of several added up
  Elapsed& operator+=(const Elapsed& other) {
    wall_s += other.wall_s;
    cpu_s += other.cpu_s;
    return *this;
  }
  Elapsed operator-(const Elapsed& other) const {
    return {wall_s - other.wall_s, cpu_s - other.cpu_s};
  }
};

/// Started where it is made; belongs to one thread.
class Stopwatch {
 public:
  Stopwatch() : last_(now()) {}
  /// Time since the last lap or the start.
  Elapsed lap() {
    const Elapsed at = now();
    const Elapsed out = at - last_;
    last_ = at;
    return out;
  }

 private:
  static double seconds(clockid_t clock) {
    timespec t{};
    ::clock_gettime(clock, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  static Elapsed now() { return {seconds(CLOCK_MONOTONIC), seconds(CLOCK_THREAD_CPUTIME_ID)}; }

  Elapsed last_;
};

}  // namespace longship
