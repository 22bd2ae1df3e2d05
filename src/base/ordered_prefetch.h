#pragma once
// Produces items begin, begin+1, ... on several threads and hands them out in that order.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace longship {

/// What a prefetcher has done so far. Times are sums in seconds.
struct PrefetchCounters {
  int64_t num_taken = 0;    // items handed out
  int64_t num_starved = 0;  // of these, the ones that next() had to wait for
  int64_t ready_sum = 0;    // over the calls of next(): how many finished items lay there
  double wait_s = 0;        // the consumer waited
  double work_s = 0;        // producing, over all workers
  double blocked_s = 0;     // finished workers waited for room: the consumer is the slower side
};

/// What next() returns depends on `produce` alone, never on the number of workers. At most
/// `capacity` items are finished or in work ahead of the consumer. `produce` must be callable from
/// several threads at once.
template <class T>
class OrderedPrefetcher {
 public:
  /// num_workers 0 produces inside next(). capacity must be >= 1 when there are workers. end is
  /// exclusive.
  OrderedPrefetcher(int64_t num_workers, int64_t capacity, std::function<T(int64_t)> produce,
                    int64_t begin, int64_t end = std::numeric_limits<int64_t>::max())
      : produce_(std::move(produce)), end_(end), next_out_(begin), next_in_(begin) {
    LS_CHECK(num_workers >= 0, InternalError, "OrderedPrefetcher: num_workers {} is negative",
             num_workers);
    LS_CHECK(num_workers == 0 || capacity >= 1, InternalError,
             "OrderedPrefetcher: capacity {} must be at least 1", capacity);
    LS_CHECK(0 <= begin && begin <= end, InternalError, "OrderedPrefetcher: bad range [{}, {})",
             begin, end);
    if (num_workers == 0) return;
    slots_.resize(static_cast<size_t>(capacity));
    // More threads than slots could never all be busy.
    const int64_t n = std::min(num_workers, capacity);
    try {
      for (int64_t i = 0; i < n; ++i) workers_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  /// Waits for the items in work, drops them.
  ~OrderedPrefetcher() { stop(); }
  OrderedPrefetcher(const OrderedPrefetcher&) = delete;
  OrderedPrefetcher& operator=(const OrderedPrefetcher&) = delete;

  /// Index that the coming next() returns.
  int64_t position() const { return next_out_; }
  bool done() const { return next_out_ >= end_; }

  /// The next item, or the exception its production threw; the call after that goes on with the
  /// item behind it. Throws InternalError past the end. One consumer thread only.
  T next() {
    LS_CHECK(next_out_ < end_, InternalError, "OrderedPrefetcher: no item {}, the range ends there",
             next_out_);
    const auto start = Clock::now();
    if (workers_.empty()) {
      const int64_t i = next_out_++;
      struct Timer {
        OrderedPrefetcher& owner;
        Clock::time_point from;
        ~Timer() {
          const double seconds = seconds_since(from);
          owner.wait_ms_ = 1e3 * seconds;
          const std::lock_guard lock(owner.mutex_);
          owner.counters_.wait_s += seconds;
          owner.counters_.work_s += seconds;
          ++owner.counters_.num_taken;
          ++owner.counters_.num_starved;
        }
      } timer{*this, start};
      return produce_(i);
    }
    Slot taken;
    {
      std::unique_lock lock(mutex_);
      Slot& slot = slots_[static_cast<size_t>(next_out_ % capacity())];
      const auto is_there = [&] { return slot.value.has_value() || slot.error; };
      counters_.ready_sum += num_ready_;
      ++counters_.num_taken;
      if (!is_there()) {
        ++counters_.num_starved;
        ready_.wait(lock, is_there);
      }
      taken = std::exchange(slot, Slot{});
      --num_ready_;
      ++next_out_;
      counters_.wait_s += seconds_since(start);
    }
    space_.notify_one();
    wait_ms_ = 1e3 * seconds_since(start);
    if (taken.error) std::rethrow_exception(taken.error);
    return std::move(*taken.value);
  }

  /// Milliseconds the last next() waited for its item (produced it, without workers).
  double wait_ms() const { return wait_ms_; }
  /// Any thread may ask.
  PrefetchCounters counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
  }
  /// Finished items that lie there now.
  int64_t num_ready() const {
    const std::lock_guard lock(mutex_);
    return num_ready_;
  }
  int64_t num_workers() const { return static_cast<int64_t>(workers_.size()); }
  /// 0 without workers.
  int64_t capacity() const { return static_cast<int64_t>(slots_.size()); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {
    std::optional<T> value;
    std::exception_ptr error;
  };
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      const auto before = Clock::now();
      space_.wait(
          lock, [&] { return stopping_ || next_in_ >= end_ || next_in_ < next_out_ + capacity(); });
      counters_.blocked_s += seconds_since(before);
      if (stopping_ || next_in_ >= end_) return;
      const int64_t i = next_in_++;
      lock.unlock();
      const auto start = Clock::now();
      Slot made;
      try {
        made.value.emplace(produce_(i));
      } catch (...) {
        made.error = std::current_exception();
      }
      lock.lock();
      counters_.work_s += seconds_since(start);
      ++num_ready_;
      slots_[static_cast<size_t>(i % capacity())] = std::move(made);
      ready_.notify_one();
    }
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    space_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  std::function<T(int64_t)> produce_;
  int64_t end_;
  mutable std::mutex mutex_;
  std::condition_variable space_, ready_;
  std::vector<Slot> slots_;  // item i lives in slot i % capacity
  int64_t next_out_;  // written by the consumer under the lock, so that it may read it without
  int64_t next_in_;
  int64_t num_ready_ = 0;
  PrefetchCounters counters_;
  bool stopping_ = false;
  double wait_ms_ = 0;
  std::vector<std::thread> workers_;
};

}  // namespace longship
