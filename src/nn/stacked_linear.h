#pragma once
// One product over several weight matrices that share their input.

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/stack_rows.h"

namespace longship::nn {

// Parameters of one nn::Module::register_stack are views of one allocation.
using ops::is_stacked;
using ops::stack_rows;

/// y = x W^T + b with W = stack_rows(weights), b = stack_rows(biases). x [..., in]; weights
/// [out_i, in] in the dtype of x; biases [out_i] or empty. Returns [..., sum of out_i]. The
/// gradients of the weights are row slices of one product, those of the biases of one sum.
at::Tensor stacked_linear(const at::Tensor& x, at::TensorList weights, at::TensorList biases = {});

/// The same as one result [..., out_i] for each weight, views of the product. Their gradients and
/// those of the biases come from one pass over them (ops/join_columns.h).
std::vector<at::Tensor> stacked_linear_parts(const at::Tensor& x, at::TensorList weights,
                                             at::TensorList biases = {});

}  // namespace longship::nn
