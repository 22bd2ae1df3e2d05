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

/// Replaces all offers of the process by these, each for one use. Thread-safe, as all of this.
/// Throws InternalError for a place that does not fit.
void offer_gradient_places(const void* owner, const std::vector<GradientPlace>& places);
/// Ends the offers of `owner`, where they are the present ones.
void withdraw_gradient_places(const void* owner);

/// Whether a place is offered for the parameter in whose memory `weight` begins.
bool has_gradient_place(const at::Tensor& weight);
/// The place for the gradient of `weight`, which is a parameter or several that lie behind each
/// other (stack_rows()), whose places must do so too; in its shape. Undefined where none is offered
/// or it was taken before.
at::Tensor take_gradient_place(const at::Tensor& weight);

}  // namespace longship::ops
