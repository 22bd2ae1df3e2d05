#pragma once
// The order in which samples are trained: a pure function of (seed, ids, batch size, step).

#include <cstdint>
#include <vector>

namespace longship::data {

/// A bijection of 0 .. size-1 chosen by (seed, epoch), computed per element without any table: a
/// Feistel network over the next power of four, walked until the value falls inside the range.
class IndexPermutation {
 public:
  /// size >= 1.
  IndexPermutation(int64_t size, uint64_t seed, uint64_t epoch);
  /// Image of i, 0 <= i < size.
  int64_t operator()(int64_t i) const;

 private:
  static constexpr int kRounds = 8;
  int64_t size_;
  int half_bits_;
  uint64_t keys_[kRounds];
};

/// A continuous stream of sample ids over reshuffled epochs, cut into global batches. An epoch may
/// end inside a batch; every id occurs exactly once per epoch. Nothing is stored beyond the ids, so
/// any step can be asked for in any order, on any rank, after any resume. Thread-safe.
class ShuffledStream {
 public:
  /// Throws ConfigError when there are no ids or global_batch < 1.
  ShuffledStream(std::vector<int64_t> sample_ids, uint64_t seed, int64_t global_batch);

  /// Ids of step `step` (>= 0), [global_batch].
  std::vector<int64_t> batch(int64_t step) const;
  /// Id at a position of the stream (>= 0); batch(s)[k] == at(s * global_batch + k).
  int64_t at(int64_t position) const;

  int64_t num_samples() const { return static_cast<int64_t>(ids_.size()); }
  int64_t global_batch() const { return global_batch_; }
  /// Passes over the data finished before `step` begins, as a fraction.
  double epochs_before(int64_t step) const;

 private:
  std::vector<int64_t> ids_;
  uint64_t seed_;
  int64_t global_batch_;
};

}  // namespace longship::data
