#pragma once
// Augmentation of pictures on the device: crop, rotation, shift, colours and sharpness of every
// picture by its own parameters, as one dispatcher operator.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longship::ops {

/// pictures [N, 3, H, W] fp32 or bf16 (fp64 on the CPU) in [-1, 1], or [N, H, W, 3] uint8;
/// contiguous or copied. params [N, 20] fp32 on the same device, one row per picture:
///   0-5   place: the frame's pixel (x, y) looks at q = [p0 p1 p2; p3 p4 p5] (x, y, 1) of the frame
///   6-9   crop x, y, w, h: the part of the picture, in its pixels, that the frame shows
///   10    flags: 1 geometry after the colours, 2 nearest, 4 openpi's colours
///   11-14 colour operations in order: 0 none (and none behind it), 1 brightness, 2 contrast (at
///   most
///         once), 3 saturation, 4 hue
///   15-18 their factors (hue: turns)
///   19    sharpness, 1: none
/// Formulas: data/augment/picture.h (data::PictureAugment), which writes these rows. Values of the
/// rows are trusted: the part must lie in the picture.
/// Returns [N, 3, height, width] in [-1, 1], in the dtype of float pictures, fp32 for bytes (v /
/// 255
/// * 2 - 1). A picture whose row changes nothing keeps its bits. Arithmetic in fp32 (fp64),
/// positions in unfused fp32 operations, one rounding. Async on the current stream, nothing is
/// synchronised, deterministic. The result never requires grad: pictures are data, and there is no
/// derivative; a picture that requires grad is refused.
at::Tensor augment_pictures(const at::Tensor& pictures, const at::Tensor& params, int64_t height,
                            int64_t width);

}  // namespace longship::ops
