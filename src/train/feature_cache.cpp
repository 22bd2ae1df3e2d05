#include "train/feature_cache.h"

#include <ATen/ops/empty.h>

#include <numeric>

#include "base/error.h"
#include "base/log.h"

namespace longship::train {

bool FeatureCache::has(std::span<const int64_t> sample_ids, std::span<const int64_t> rows,
                       int64_t padding) const {
  if (padding > 0 && !padding_.defined()) return false;
  for (size_t i = 0; i < sample_ids.size(); ++i) {
    const auto found = samples_.find(sample_ids[i]);
    if (found == samples_.end() || found->second.size(0) != rows[i]) return false;
  }
  return !sample_ids.empty();
}

at::Tensor FeatureCache::gather(std::span<const int64_t> sample_ids, std::span<const int64_t> rows,
                                int64_t padding, bool pinned) const {
  const int64_t total = std::accumulate(rows.begin(), rows.end(), padding);
  const at::Tensor& one = samples_.at(sample_ids.front());
  at::Tensor out = at::empty({total, one.size(1)}, one.options().pinned_memory(pinned));
  int64_t at = 0;
  for (size_t i = 0; i < sample_ids.size(); ++i) {
    out.narrow(0, at, rows[i]).copy_(samples_.at(sample_ids[i]));
    at += rows[i];
  }
  if (padding > 0) out.narrow(0, at, padding).copy_(padding_.expand({padding, one.size(1)}));
  return out;
}

void FeatureCache::put(std::span<const int64_t> sample_ids, std::span<const int64_t> rows,
                       const at::Tensor& features) {
  const int64_t used = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  LS_CHECK(features.dim() == 2 && features.size(0) >= used && features.is_cpu(), ShapeError,
           "feature cache: {} rows of features for samples with {}", features.size(0), used);
  if (!padding_.defined() && features.size(0) > used) {
    padding_ = features.narrow(0, used, 1).clone();
  }
  int64_t at = 0;
  for (size_t i = 0; i < sample_ids.size(); ++i) {
    const at::Tensor own = features.narrow(0, at, rows[i]);
    at += rows[i];
    const auto found = samples_.find(sample_ids[i]);
    if (found != samples_.end() && found->second.size(0) == rows[i]) continue;
    const auto size = static_cast<int64_t>(own.nbytes());
    if (bytes_ + size > max_bytes_) {
      if (!full_) {
        log::warn(
            "the feature cache is full with {} samples ({:.1f} GiB); a step is served from it only "
            "when it has all of the step's samples, so raise perf.feature_cache or set it to 0",
            samples_.size(), static_cast<double>(bytes_) / (1LL << 30));
      }
      full_ = true;
      continue;
    }
    if (found != samples_.end()) bytes_ -= static_cast<int64_t>(found->second.nbytes());
    samples_[sample_ids[i]] = own.clone();
    bytes_ += size;
  }
}

void FeatureCache::clear() {
  samples_.clear();
  padding_ = at::Tensor();
  bytes_ = 0;
  full_ = false;
}

}  // namespace longship::train
