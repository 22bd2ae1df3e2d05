#pragma once
// From tensors to the plain arguments of the normalisation kernels.

#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/common/dtype.h"
#include "kernels/common/param_rows.h"

namespace longship::ops::cuda {

/// Throws ShapeError naming the operator and the argument for types other than fp32 and bf16.
kernels::ElementType element_of(const char* op, const char* name, const at::Tensor& tensor);

/// Keeps a parameter readable by kernels: itself where elements of a row are adjacent (no copy for
/// row-strided views), else a contiguous copy. Stays undefined where it is absent.
at::Tensor readable(const std::optional<at::Tensor>& param);

/// Pointers of a parameter [D] or [G, D] from `readable`; absent where it is undefined.
kernels::ParamRows param_rows(const char* op, const char* name, const at::Tensor& readable);

/// A new contiguous gradient of `param`, or [0] with the options of `otherwise`.
at::Tensor new_gradient(const std::optional<at::Tensor>& param, const at::Tensor& otherwise);

/// Pointers of a gradient from `new_gradient`; absent where `param` is.
kernels::ParamGradient param_gradient(const std::optional<at::Tensor>& param,
                                      const at::Tensor& gradient);

/// Uninitialised scratch memory of the caching allocator, undefined for 0 bytes.
at::Tensor workspace(int64_t bytes, const at::Tensor& like);

}  // namespace longship::ops::cuda
