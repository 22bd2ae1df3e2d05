#pragma once
// The order in which samples are trained: a pure function of (seed, ids, batch size, step).

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "data/id_ranges.h"

namespace longship::data {

/// A bijection of 0 .. size-1 chosen by a key, computed per element without any table: a Feistel
/// network over the next power of four, walked until the value falls inside the range.
class IndexPermutation {
 public:
  /// size >= 1.
  IndexPermutation(int64_t size, const RngKey& key);
  /// The permutation of an epoch.
  IndexPermutation(int64_t size, uint64_t seed, uint64_t epoch)
      : IndexPermutation(size, make_key(seed, RngStream::kShuffle, epoch)) {}
  /// Image of i, 0 <= i < size.
  int64_t operator()(int64_t i) const;

 private:
  static constexpr int kRounds = 8;
  int64_t size_;
  int half_bits_;
  uint64_t keys_[kRounds];
};

/// An endless sequence of sample ids. Every position can be asked for in any order, on any rank,
/// after any resume. Thread-safe.
class SampleOrder {
 public:
  virtual ~SampleOrder() = default;
  /// Samples per epoch: epoch e is positions e * epoch_size() .. (e + 1) * epoch_size() - 1.
  virtual int64_t epoch_size() const = 0;
  /// Ids at positions first .. first + out.size() - 1, first >= 0.
  virtual void fill(int64_t first, std::span<int64_t> out) const = 0;
  int64_t at(int64_t position) const;
};

/// Every epoch is a permutation of all ids: each occurs exactly once. Nothing is stored beyond the
/// ranges.
class FullShuffle final : public SampleOrder {
 public:
  /// `part` tells the orders of several datasets of one run apart. Throws ConfigError when there
  /// are no ids.
  FullShuffle(IdRanges ids, uint64_t seed, uint64_t part = 0);
  int64_t epoch_size() const override { return static_cast<int64_t>(ids_.size()); }
  void fill(int64_t first, std::span<int64_t> out) const override;

 private:
  IdRanges ids_;
  uint64_t seed_, part_;
};

/// Every epoch shuffles the episodes, joins each `block_episodes` neighbours of that order to a
/// block, and shuffles the samples inside a block: each id occurs exactly once per epoch, and at
/// any time one block is read, so that few files are open and few key frames are decoded again.
/// Keeps 16 bytes an episode, and 16 more for each of the last two epochs asked for.
class BlockShuffle final : public SampleOrder {
 public:
  /// One range per episode. Throws ConfigError when there are no ids or block_episodes < 1.
  BlockShuffle(std::vector<IdRange> episodes, int64_t block_episodes, uint64_t seed,
               uint64_t part = 0);
  int64_t epoch_size() const override { return size_; }
  void fill(int64_t first, std::span<int64_t> out) const override;

 private:
  struct Epoch {
    std::vector<int64_t> episode;  // shuffled order of episodes
    std::vector<int64_t> begin;    // position of each one's first sample, and the size at the end
  };
  std::shared_ptr<const Epoch> epoch(int64_t number) const;

  std::vector<IdRange> episodes_;
  int64_t block_episodes_;
  uint64_t seed_, part_;
  int64_t size_ = 0;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::shared_ptr<const Epoch>> epochs_;
};

/// Several orders in fixed shares: every period of kPeriod positions gives each part a whole number
/// of them, at places chosen by the seed. Inside the mixture each part keeps its own order.
/// An epoch has as many samples as the parts have together.
class WeightedMix final : public SampleOrder {
 public:
  static constexpr int64_t kPeriod = 65536;
  /// Weights are positive and scaled to sum 1. Throws ConfigError when they are not, or when one
  /// share rounds to less than one position of a period.
  WeightedMix(std::vector<std::shared_ptr<const SampleOrder>> parts,
              const std::vector<double>& weights, uint64_t seed);
  int64_t epoch_size() const override { return epoch_size_; }
  void fill(int64_t first, std::span<int64_t> out) const override;
  /// Positions of a period that part p gets; they sum to kPeriod.
  const std::vector<int64_t>& quotas() const { return quotas_; }

 private:
  struct Period {
    std::vector<uint16_t> part;   // [kPeriod]
    std::vector<int32_t> number;  // [kPeriod] how many positions before it in the period have its
                                  // part
  };
  std::shared_ptr<const Period> period(int64_t number) const;

  std::vector<std::shared_ptr<const SampleOrder>> parts_;
  std::vector<int64_t> quotas_;
  uint64_t seed_;
  int64_t epoch_size_ = 0;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::shared_ptr<const Period>> periods_;
};

/// An order cut into global batches. An epoch may end inside a batch. Thread-safe.
class ShuffledStream {
 public:
  /// Throws ConfigError when there are no ids or global_batch < 1.
  ShuffledStream(IdRanges sample_ids, uint64_t seed, int64_t global_batch);
  ShuffledStream(std::shared_ptr<const SampleOrder> order, int64_t global_batch);

  /// Ids of step `step` (>= 0), [global_batch].
  std::vector<int64_t> batch(int64_t step) const;
  /// Id at a position of the stream (>= 0); batch(s)[k] == at(s * global_batch + k).
  int64_t at(int64_t position) const { return order_->at(position); }

  const SampleOrder& order() const { return *order_; }
  int64_t num_samples() const { return order_->epoch_size(); }
  int64_t global_batch() const { return global_batch_; }
  /// Passes over the data finished before `step` begins, as a fraction.
  double epochs_before(int64_t step) const;

 private:
  std::shared_ptr<const SampleOrder> order_;
  int64_t global_batch_;
};

/// SHA-256 over the ids of one epoch in order, as little-endian int64. Of a subset or of another
/// order it is another one. Returns "" when `cancelled` says true.
std::string order_sha256(const SampleOrder& order, int64_t epoch,
                         const std::function<bool()>& cancelled = {});

}  // namespace longship::data
