#pragma once

namespace longship {

/// While it lives, the first SIGINT or SIGTERM only sets a flag (and says so on stderr), the second
/// ends the process at once with the signal's default action. One at a time; the old handlers come
/// back with the destructor.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  /// Whether a signal has come. Cheap; may be asked from any thread.
  bool interrupted() const;
  /// SIGINT or SIGTERM, 0 when none came.
  int signal_number() const;
};

}  // namespace longship
