#pragma once
// Batches of a run in order: read, prepared, collated and completed by worker threads ahead of the
// training thread.

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/ordered_prefetch.h"
#include "base/stopwatch.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "models/spec.h"
#include "train/recipe.h"
#include "train/unreadable_samples.h"

namespace longship::train {

/// What a worker does with a batch, in this order.
enum class FeedStage { kFetch, kDecode, kTransform, kCollate, kPin };
inline constexpr size_t kNumFeedStages = 5;
/// "fetch", "decode", "transform", "collate", "pin".
const char* to_string(FeedStage stage);

/// Time spent in each stage, over all threads.
using StageTimes = std::array<Elapsed, kNumFeedStages>;

/// Makes whole batches of samples: reads, prepares, collates, completes, pins. Everything given by
/// reference must outlive it. Thread-safe.
class BatchMaker {
 public:
  /// Samples that cannot be used are left out and noted where `unreadable` is given. The samples
  /// of a batch share the decoding of their pictures, or are read one by one.
  BatchMaker(const data::Dataset& dataset, const models::Transform& transform,
             const models::Policy& policy, bool pin,
             std::shared_ptr<UnreadableSamples> unreadable = nullptr, bool share_decoding = true);
  /// Throws DataError naming dataset, episode, frame and file of a sample that cannot be used, or
  /// when none of the batch can.
  std::unique_ptr<models::Batch> make(std::span<const int64_t> sample_ids,
                                      const models::DrawKey& key) const;
  /// Since it was made.
  StageTimes times() const;

 private:
  std::vector<data::RawSample> read(std::span<const int64_t> sample_ids) const;
  std::vector<std::unique_ptr<models::Transform::Item>> prepare(
      const std::vector<data::RawSample>& samples) const;

  const data::Dataset& dataset_;
  const models::Transform& transform_;
  const models::Policy& policy_;
  bool pin_;
  std::shared_ptr<UnreadableSamples> unreadable_;  // guards itself
  bool share_decoding_;
  data::WindowSpec windows_;
  Elapsed decoding_before_;  // of the dataset, when this was made
  mutable std::mutex mutex_;
  mutable StageTimes times_;
};

/// How a feed was used; differences of two of these describe the time between.
struct FeedCounters {
  PrefetchCounters queue;
  StageTimes stages;
};

/// Which of several processes reads: of a step's global batch it takes the samples
/// [(j * world_size + rank) * m, + m) as its micro-batch j of m samples, so that the order of the
/// samples is the same for every number of processes.
struct BatchShare {
  int64_t rank = 0, world_size = 1;
};

class BatchFeed {
 public:
  /// This process's micro-batches of steps `first_step` .. `last_step`. Pinned when `pin`.
  /// Everything given by reference must outlive the feed; its workers are joined in the destructor.
  BatchFeed(const Recipe& recipe, const data::Dataset& dataset, const models::Transform& transform,
            const models::Policy& policy, const data::ShuffledStream& stream, bool pin,
            int64_t first_step, int64_t last_step, const BatchShare& share = {});

  /// The micro-batches of the next step; waits for them. Rethrows what a worker threw.
  std::vector<std::unique_ptr<models::Batch>> next_step();
  /// How long the last next_step() waited, milliseconds.
  double wait_ms() const { return wait_ms_; }
  FeedCounters counters() const { return {prefetcher_->counters(), maker_.times()}; }
  /// Finished micro-batches that wait to be taken; at most capacity().
  int64_t num_ready() const { return prefetcher_->num_ready(); }
  int64_t capacity() const { return prefetcher_->capacity(); }
  /// 0: batches are made when they are asked for.
  int64_t num_workers() const { return prefetcher_->num_workers(); }

 private:
  int64_t num_micro_;
  double wait_ms_ = 0;
  BatchMaker maker_;
  std::unique_ptr<OrderedPrefetcher<std::unique_ptr<models::Batch>>> prefetcher_;
};

}  // namespace longship::train
