#pragma once
// What the files of the FP8 layers share.

#include <ATen/core/Tensor.h>

#include "ops/fp8.h"

namespace longship::ops {

/// Operators without a function of their own.
void call_fp8_quantize_weights(at::TensorList weights, at::TensorList q, at::TensorList q_t,
                               at::TensorList scales, double margin);
void call_fp8_update_states(const at::Tensor& states);

/// The scale of a site's tensor: of state `index`, or current where the site has no states.
Fp8Scale fp8_site_scale(const Fp8State* state, int64_t index, const Fp8Recipe& recipe, bool record);

/// x [..., width] as contiguous matrix [rows, width]. ShapeError where the width differs, the rows
/// are no multiple of 16, or the dtype is none that FP8 layers take.
at::Tensor fp8_rows(const char* op, const at::Tensor& x, int64_t width);

/// Throws unless the copies of `weight` were made and have the shape of the stacked `weights`; the
/// transposed copy too where `transposed`.
void check_fp8_weight(const char* op, const Fp8Weight& weight, at::TensorList weights,
                      bool transposed);

/// Row slices of the gradient `dw` of the stacked weights whose numbers of rows are `rows`.
std::vector<at::Tensor> fp8_split_rows(const at::Tensor& dw, at::IntArrayRef rows);

}  // namespace longship::ops
