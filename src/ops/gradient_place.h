#pragma once
// Where a backward pass writes the gradient of a weight, so that whoever sends gradients finds them
// in its own buffer and copies nothing. Who collects gradients offers places for one pass; the
// product that makes a weight's gradient takes the place and writes there; autograd hands the
// result on as it does any other. A place that nobody takes, or that is taken for a weight whose
// gradient has further terms, only means that the gradient has to be copied: whoever offers places
// has to look where the gradient is.

#include <ATen/core/Tensor.h>

#include <vector>

namespace longship::ops {

struct GradientPlace {
  at::Tensor param;  // contiguous; its memory must not move while the place is offered
  at::Tensor place;  // contiguous, of the parameter's shape, dtype and device
};

/// Offers of one collector of gradients. A process has one set of offers: those of the last
/// collector that made any. Thread-safe, as all of this.
class GradientPlaces {
 public:
  GradientPlaces();
  ~GradientPlaces();
  GradientPlaces(const GradientPlaces&) = delete;
  GradientPlaces& operator=(const GradientPlaces&) = delete;

  /// Replaces all offers by these, each for one use. Throws InternalError for a place that does not
  /// fit.
  void offer(const std::vector<GradientPlace>& places);
  /// Ends its offers, where they are the present ones.
  void withdraw();
};

/// Whether any collector is there: products then make gradients where these may lie, if it is by
/// the time of the backward pass that places are offered.
bool gradient_places_are_used();
/// The place for the gradient of `weight`, which is a parameter or several that lie behind each
/// other (stack_rows()), whose places must do so too; in its shape. Undefined where none is offered
/// or it was taken before.
at::Tensor take_gradient_place(const at::Tensor& weight);

}  // namespace longship::ops
