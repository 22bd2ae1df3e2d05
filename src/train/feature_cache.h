#pragma once
// Results of a model's frozen part, by sample, in host memory: what a sample gave once it gives
// every time it comes, so that pictures and text need not be computed again.
//
// Filled until it is full; nothing is taken out again, because samples come in another order in
// every epoch and none is more likely than another.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace longship::train {

class FeatureCache {
 public:
  /// At most `max_bytes` of features.
  explicit FeatureCache(int64_t max_bytes) : max_bytes_(max_bytes) {}

  /// Whether every sample is there with this number of rows, and, where `padding` rows follow,
  /// what those are.
  bool has(std::span<const int64_t> sample_ids, std::span<const int64_t> rows,
           int64_t padding) const;
  /// The features of such samples, [sum of rows + padding, width], a host tensor of its own;
  /// `pinned`: for copies to a device that nobody waits for.
  at::Tensor gather(std::span<const int64_t> sample_ids, std::span<const int64_t> rows,
                    int64_t padding, bool pinned) const;
  /// Keeps what is new of `features` [rows, width], a host tensor: the rows of the samples, then
  /// padding, all alike. Throws ShapeError for fewer rows than the samples have.
  void put(std::span<const int64_t> sample_ids, std::span<const int64_t> rows,
           const at::Tensor& features);
  /// The weights were set anew.
  void clear();

  int64_t num_samples() const { return static_cast<int64_t>(samples_.size()); }
  int64_t num_bytes() const { return bytes_; }
  /// Something did not fit.
  bool full() const { return full_; }

 private:
  int64_t max_bytes_;
  int64_t bytes_ = 0;
  bool full_ = false;
  std::unordered_map<int64_t, at::Tensor> samples_;  // [rows, width]
  at::Tensor padding_;                               // [1, width]
};

}  // namespace longship::train
