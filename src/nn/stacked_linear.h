#pragma once
// One product over several weight matrices that share their input.

#include <ATen/core/Tensor.h>

#include <vector>

namespace longship::nn {

/// Rows of all tensors as one tensor [sum of rows, ...]: a view when they lie behind each other in
/// one allocation (nn::Module::register_stack), else a copy.
at::Tensor stack_rows(at::TensorList parts);
/// Whether stack_rows gives a view.
bool is_stacked(at::TensorList parts);

/// y = x W^T + b with W = stack_rows(weights), b = stack_rows(biases). x [..., in]; weights
/// [out_i, in] in the dtype of x; biases [out_i] or empty. Returns [..., sum of out_i]. The
/// gradients of the weights are row slices of one product, those of the biases of one sum.
at::Tensor stacked_linear(const at::Tensor& x, at::TensorList weights, at::TensorList biases = {});

}  // namespace longship::nn
