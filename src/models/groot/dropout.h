#pragma once
// The dropout of the action head: masks from one key per sample, the same whenever they are asked
// for.

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>

namespace longship::models {

class GrootActionHead;

/// `x` with the dropout of site `site`: times zeros, and 1 / (1 - p) elsewhere. Recomputed units
/// ask again, from the backward pass, and must get the same values.
class GrootDropout {
 public:
  using Function = std::function<at::Tensor(const at::Tensor& x, int64_t site)>;
  using Probability = std::function<double(int64_t site)>;

  /// None.
  GrootDropout() = default;
  /// Whatever `function` does. Operators that drop on the way are not used then.
  template <std::invocable<const at::Tensor&, int64_t> F>
  GrootDropout(F&& function) : function_(std::forward<F>(function)) {}
  /// ops::dropout() with keys [B] int64 and the probability of a site.
  GrootDropout(at::Tensor keys, Probability probability)
      : keys_(std::move(keys)), probability_(std::move(probability)) {}

  explicit operator bool() const { return function_ || has_keys(); }
  at::Tensor operator()(const at::Tensor& x, int64_t site) const;

  /// Whether the masks are those of ops::dropout_mask(), so that other operators can draw them.
  bool has_keys() const { return keys_.defined(); }
  const at::Tensor& keys() const { return keys_; }
  double probability(int64_t site) const { return probability_(site); }

 private:
  Function function_;
  at::Tensor keys_;
  Probability probability_;
};

/// keys [B] int64 on the head's device. `head` must outlive the result.
GrootDropout groot_dropout(const GrootActionHead& head, const at::Tensor& keys);

}  // namespace longship::models
