#include "train/unreadable_samples.h"

#include "base/error.h"
#include "base/log.h"

namespace longship::train {

UnreadableSamples::UnreadableSamples(int64_t num_samples, double max_fraction)
    : num_samples_(num_samples), max_fraction_(max_fraction) {}

void UnreadableSamples::note(int64_t sample_id, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!ids_.insert(sample_id).second) return;
  const auto count = static_cast<int64_t>(ids_.size());
  log::warn("sample {} cannot be read and is left out of its batches ({} so far): {}", sample_id,
            count, reason);
  LS_CHECK(static_cast<double>(count) <= max_fraction_ * static_cast<double>(num_samples_),
           DataError,
           "{} of {} samples cannot be read, data.max_bad_fraction allows {:.3g} %; the last one, "
           "sample {}: {}",
           count, num_samples_, 100 * max_fraction_, sample_id, reason);
}

}  // namespace longship::train
