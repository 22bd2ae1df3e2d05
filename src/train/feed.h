#pragma once
// Batches of a run in order: read, prepared, collated and completed by worker threads ahead of the
// training thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "base/ordered_prefetch.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "models/spec.h"
#include "train/recipe.h"

namespace longship::train {

class BatchFeed {
 public:
  /// Micro-batches of steps `first_step` .. `last_step`. Pinned when `pin`. Everything given by
  /// reference must outlive the feed; its workers are joined in the destructor.
  BatchFeed(const Recipe& recipe, const data::Dataset& dataset, const models::Transform& transform,
            const models::Policy& policy, const data::ShuffledStream& stream, bool pin,
            int64_t first_step, int64_t last_step);

  /// The micro-batches of the next step; waits for them. Rethrows what a worker threw.
  std::vector<std::unique_ptr<models::Batch>> next_step();
  /// How long the last next_step() waited, milliseconds.
  double wait_ms() const { return wait_ms_; }

 private:
  int64_t num_micro_;
  double wait_ms_ = 0;
  std::unique_ptr<OrderedPrefetcher<std::unique_ptr<models::Batch>>> prefetcher_;
};

}  // namespace longship::train
