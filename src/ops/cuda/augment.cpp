// CUDA launch of augment_pictures: check, allocate, call the kernels on the current stream.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "kernels/augment/augment.h"
#include "ops/augment_check.h"
#include "ops/cuda/launch.h"

namespace longship::ops {
namespace {

static_assert(kAugmentNumbers == kernels::kAugmentNumbers);

kernels::PictureType picture_type(const at::Tensor& pictures, bool bytes) {
  if (bytes) return kernels::PictureType::kUint8;
  return element_of("augment_pictures", pictures) == kernels::ElementType::kFloat32
             ? kernels::PictureType::kFloat32
             : kernels::PictureType::kBFloat16;
}

at::Tensor augment_cuda(const at::Tensor& pictures, const at::Tensor& params, int64_t height,
                        int64_t width) {
  const AugmentShape shape = check_augment(pictures, params, height, width);
  const c10::cuda::CUDAGuard guard(pictures.device());
  at::Tensor out =
      at::empty({shape.num_pictures, 3, height, width}, pictures.options().dtype(shape.out_type));
  if (shape.num_pictures == 0) return out;
  at::Tensor partial =
      at::empty({shape.num_pictures,
                 kernels::augment_num_partials(shape.in_height, shape.in_width, height, width)},
                params.options());
  kernels::AugmentArgs args;
  args.pictures = pictures.const_data_ptr();
  args.params = params.const_data_ptr<float>();
  args.out = out.mutable_data_ptr();
  args.partial = partial.mutable_data_ptr<float>();
  args.num_pictures = shape.num_pictures;
  args.in_height = shape.in_height;
  args.in_width = shape.in_width;
  args.out_height = height;
  args.out_width = width;
  args.type = picture_type(pictures, shape.bytes);
  check_launch("augment_pictures",
               kernels::augment_pictures(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

TORCH_LIBRARY_IMPL(longship, CUDA, m) {
  m.impl("augment_pictures", augment_cuda);
}

}  // namespace
}  // namespace longship::ops
