#include "ops/rms_norm_check.h"

#include <fmt/ranges.h>

#include "base/error.h"

namespace longship::ops {

RmsNormShape check_rms_norm(const at::Tensor& x, const at::Tensor& scale,
                            const std::optional<at::Tensor>& shift) {
  LS_CHECK(x.dim() >= 1, ShapeError, "rms_norm: x needs at least one dimension");
  RmsNormShape shape;
  shape.width = x.size(-1);
  shape.num_rows = shape.width == 0 ? 0 : x.numel() / shape.width;
  LS_CHECK(scale.dim() >= 1 && scale.dim() <= 2 && scale.size(-1) == shape.width, ShapeError,
           "rms_norm: scale must be [D] or [G, D] with D = {}, got [{}]", shape.width,
           fmt::join(scale.sizes(), ", "));
  shape.num_groups = scale.dim() == 2 ? scale.size(0) : 1;
  LS_CHECK(shape.num_groups > 0 && shape.num_rows % shape.num_groups == 0, ShapeError,
           "rms_norm: {} rows of x cannot be shared evenly by {} groups of scale", shape.num_rows,
           shape.num_groups);
  LS_CHECK(!shift.has_value() || shift->sizes() == scale.sizes(), ShapeError,
           "rms_norm: shift [{}] must have the shape of scale [{}]",
           fmt::join(shift->sizes(), ", "), fmt::join(scale.sizes(), ", "));
  LS_CHECK(x.is_contiguous(), ShapeError, "rms_norm: x must be contiguous");
  return shape;
}

}  // namespace longship::ops
