#pragma once
// Samples that turn out unreadable while training, where data.on_bad_sample is skip.

#include <cstdint>
#include <mutex>
#include <set>
#include <string>

namespace longship::train {

/// Counts and names samples that cannot be read. Which ones those are depends on the data only, so
/// every run leaves out the same. Thread-safe.
class UnreadableSamples {
 public:
  /// `max_fraction` of `num_samples` may be unreadable.
  UnreadableSamples(int64_t num_samples, double max_fraction);
  /// Logs a sample the first time. Throws DataError with `reason` when there are too many.
  void note(int64_t sample_id, const std::string& reason);

 private:
  int64_t num_samples_;
  double max_fraction_;
  std::mutex mutex_;
  std::set<int64_t> ids_;
};

}  // namespace longship::train
