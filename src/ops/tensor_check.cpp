#include "ops/tensor_check.h"

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace longship::ops {

void check_contiguous(const char* op, std::initializer_list<NamedTensor> tensors) {
  for (const auto& [name, tensor] : tensors) {
    LS_CHECK(tensor.is_contiguous(), ShapeError,
             "{}: {} must be contiguous, got sizes [{}] with strides [{}]", op, name,
             fmt::join(tensor.sizes(), ", "), fmt::join(tensor.strides(), ", "));
  }
}

void check_sizes(const char* op, const NamedTensor& tensor, at::IntArrayRef expected) {
  LS_CHECK(tensor.tensor.sizes() == expected, ShapeError, "{}: {} must be [{}], got [{}]", op,
           tensor.name, fmt::join(expected, ", "), fmt::join(tensor.tensor.sizes(), ", "));
}

void check_dtype(const char* op, const NamedTensor& tensor, at::ScalarType expected) {
  LS_CHECK(tensor.tensor.scalar_type() == expected, ShapeError, "{}: {} must be {}, got {}", op,
           tensor.name, at::toString(expected), at::toString(tensor.tensor.scalar_type()));
}

void check_devices(const char* op, std::initializer_list<NamedTensor> tensors) {
  const NamedTensor& first = *tensors.begin();
  for (const auto& [name, tensor] : tensors) {
    LS_CHECK(tensor.device() == first.tensor.device(), ShapeError,
             "{}: {} is on {}, but {} is on {}", op, name, tensor.device().str(), first.name,
             first.tensor.device().str());
  }
}

void check_rows_valid(const char* op, const at::Tensor& rows_valid) {
  check_sizes(op, {"rows_valid", rows_valid}, {1});
  check_dtype(op, {"rows_valid", rows_valid}, at::kInt);
}

void check_not_leaf(const char* op, const NamedTensor& tensor) {
  LS_CHECK(
      !(at::GradMode::is_enabled() && tensor.tensor.requires_grad() && tensor.tensor.is_leaf()),
      InternalError, "{}: {} is a leaf that requires grad and cannot be changed in place", op,
      tensor.name);
}

void check_first_derivative(const char* op) {
  LS_CHECK(!at::GradMode::is_enabled(), InternalError, "{}: second derivatives are not implemented",
           op);
}

}  // namespace longship::ops
