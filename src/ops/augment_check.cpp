#include "ops/augment_check.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "ops/tensor_check.h"

namespace longship::ops {

AugmentShape check_augment(const at::Tensor& pictures, const at::Tensor& params, int64_t height,
                           int64_t width) {
  constexpr const char* kOp = "augment_pictures";
  const bool bytes = pictures.scalar_type() == at::kByte;
  const int64_t channels = bytes ? 3 : 1;
  LS_CHECK(pictures.dim() == 4 && pictures.size(channels) == 3, ShapeError,
           "{}: pictures must be [N, 3, H, W], or [N, H, W, 3] uint8, got [{}] {}", kOp,
           fmt::join(pictures.sizes(), ", "), at::toString(pictures.scalar_type()));
  AugmentShape shape;
  shape.num_pictures = pictures.size(0);
  shape.in_height = pictures.size(bytes ? 1 : 2);
  shape.in_width = pictures.size(bytes ? 2 : 3);
  shape.bytes = bytes;
  shape.out_type = bytes ? at::kFloat : pictures.scalar_type();
  LS_CHECK(
      height > 0 && width > 0 && (shape.in_height * shape.in_width > 0 || pictures.size(0) == 0),
      ShapeError, "{}: pictures of {} x {} to {} x {}", kOp, shape.in_height, shape.in_width,
      height, width);
  LS_CHECK(!pictures.requires_grad(), ShapeError,
           "{}: pictures are data, no gradient flows through them; detach them", kOp);
  check_sizes(kOp, {"params", params}, {shape.num_pictures, kAugmentNumbers});
  check_dtype(kOp, {"params", params}, at::kFloat);
  check_contiguous(kOp, {{"pictures", pictures}, {"params", params}});
  check_devices(kOp, {{"pictures", pictures}, {"params", params}});
  return shape;
}

}  // namespace longship::ops
