#pragma once
// The SHA-256 of the order of samples: written to the log for every epoch, and compared with the
// recipe's before anything is trained.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/sampler.h"

namespace longship::train {

/// Compares every epoch that steps 0 .. num_steps-1 reach with its entry of `expected` (an empty
/// entry compares nothing). Throws ConfigError naming epoch, expected and found.
void check_order(const data::ShuffledStream& stream, const std::vector<std::string>& expected,
                 int64_t num_steps);

/// Logs "order of epoch E: sha256 ..." once for every epoch that a run enters. A large epoch is
/// hashed by a thread of its own while training goes on.
class OrderLog {
 public:
  /// The stream must outlive the log.
  explicit OrderLog(const data::ShuffledStream& stream);
  ~OrderLog();
  OrderLog(const OrderLog&) = delete;
  OrderLog& operator=(const OrderLog&) = delete;

  /// Before step `step` is trained; steps rise.
  void enter(int64_t step);

 private:
  void work(const std::stop_token& stop);
  void log(int64_t epoch, const std::string& hash) const;

  const data::ShuffledStream& stream_;
  int64_t next_epoch_ = -1;  // -1: not begun
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::vector<int64_t> wanted_;
  std::jthread worker_;  // last: joined first
};

}  // namespace longship::train
