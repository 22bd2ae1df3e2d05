#pragma once
// Clearing and reordering whole rows, as dispatcher operators.

#include <ATen/core/Tensor.h>

namespace longship::ops {

/// x [N, ...] any dtype, contiguous; rows_valid [1] int32 on the device of x, clamped to [0, N].
/// Writes zero to the rows at and past rows_valid IN PLACE, without reading them, and returns x.
/// Async on the current stream; touches only those rows. Where x takes part in autograd this is a
/// differentiable in-place operation (never on a leaf that requires grad): the gradient of the same
/// rows is zero, whatever was handed in for them. Saved for backward: rows_valid.
at::Tensor zero_tail_(const at::Tensor& x, const at::Tensor& rows_valid);

/// The same for a fresh x that nothing else uses: the result is x itself. Backward works in place
/// on a contiguous gradient that nobody else holds, otherwise on a copy.
at::Tensor zero_tail(const at::Tensor& x, const at::Tensor& rows_valid);

/// x [N, ...] any dtype, contiguous or copied; index [M] int64, distinct values below N, or
/// negative for a zero row; inverse [N] int64: where in the result row n stands, negative where it
/// was not taken. Values are checked on the CPU, not on CUDA. Returns x[index] [M, ...]. Async on
/// the current stream. Differentiable once: the gradient is gathered with `inverse` (rows not taken
/// get zero), so nothing is added up. Saved for backward: inverse.
at::Tensor permute_rows(const at::Tensor& x, const at::Tensor& index, const at::Tensor& inverse);

}  // namespace longship::ops
