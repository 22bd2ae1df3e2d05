#pragma once
// Dropout whose masks are a function of keys and positions, as dispatcher operators: nothing is
// kept between the passes, and a captured step draws anew when its keys change.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longship::ops {

/// The last word of the Philox counter of every dropout mask ("drop" in ASCII). Part of the masks
/// that a key gives: never change it.
inline constexpr uint32_t kDropoutPurpose = 0x64726F70;

/// keys [B] int64, contiguous or copied, one random 64-bit key per sample; shape [B, ...]; 0 <= p <
/// 1; 0 <= site < 2^32 tells the dropouts of a model apart. Returns multipliers of that shape in
/// `dtype` (fp32, bf16; fp64 on the CPU) on the device of keys: 0 with probability p, otherwise
/// 1 / (1 - p) rounded to dtype. Element i of sample b is word i % 4 of Philox4x32-10 (base/rng.h)
/// with the low and high half of keys[b] as key and the counter {i / 4 low, i / 4 high, site,
/// kDropoutPurpose}; it is dropped where that word is below p * 2^32 rounded to an integer (at most
/// 2^32 - 1). So a sample's mask depends on neither its row nor the batch, the same arguments give
/// the same mask, and CPU and CUDA agree bit for bit. Async on the current stream: keys are read on
/// the device. Not differentiable: the result never requires grad. Throws ShapeError.
at::Tensor dropout_mask(const at::Tensor& keys, int64_t site, at::IntArrayRef shape, double p,
                        at::ScalarType dtype);

/// x [B, ...] fp32 or bf16 (fp64 on the CPU), contiguous or copied; keys [B] int64 on the device of
/// x. Returns x * dropout_mask(keys, site, sizes of x, p, dtype of x) in one pass, rounded once to
/// the dtype of x: a dropped NaN or infinity is NaN, as in a product. x itself for p = 0. Async on
/// the current stream. Differentiable once: dx = dropout(dy, keys, site, p). Saved for backward:
/// keys, from which the mask is made again. Throws ShapeError.
at::Tensor dropout(const at::Tensor& x, const at::Tensor& keys, int64_t site, double p);

}  // namespace longship::ops
