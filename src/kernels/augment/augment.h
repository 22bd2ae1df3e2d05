#pragma once
// Crop, rotation, shift, colours and sharpness of pictures in one pass (two where contrast needs
// the picture's mean). Host API of the CUDA kernels; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace longship::kernels {

/// Numbers per picture in the table of parameters; their meaning is in ops/augment.h.
inline constexpr int kAugmentNumbers = 20;

enum class PictureType { kFloat32, kBFloat16, kUint8 };

/// pictures: [num_pictures, 3, in_height, in_width] in [-1, 1] (kFloat32, kBFloat16), or
/// [num_pictures, in_height, in_width, 3] bytes (kUint8). out: [num_pictures, 3, out_height,
/// out_width] in the type of the pictures, fp32 for bytes. params: [num_pictures, kAugmentNumbers]
/// fp32 on the device. partial: workspace of num_pictures * augment_num_partials(...) floats. All
/// contiguous; a picture has fewer than 2^31 numbers; out does not overlap pictures.
struct AugmentArgs {
  const void* pictures = nullptr;
  const float* params = nullptr;
  void* out = nullptr;
  float* partial = nullptr;
  int64_t num_pictures = 0;
  int64_t in_height = 0;
  int64_t in_width = 0;
  int64_t out_height = 0;
  int64_t out_width = 0;
  PictureType type = PictureType::kFloat32;
};

/// Blocks, and partial sums, per picture; depends on the sizes only.
int64_t augment_num_partials(int64_t in_height, int64_t in_width, int64_t out_height,
                             int64_t out_width);

/// Asynchronous on `stream`; the same bits on every run.
cudaError_t augment_pictures(const AugmentArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
