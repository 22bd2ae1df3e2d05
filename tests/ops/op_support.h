#pragma once
// Shared by the tests of the element-wise operators.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace longship::ops::testing {

/// Normal values; drawn on the CPU, so that a test has the same numbers everywhere.
at::Tensor random(std::vector<int64_t> sizes, at::ScalarType type = at::kDouble,
                  at::Device device = at::kCPU);

/// A copy with the same values, contiguous, whose first element is not at a multiple of 16 bytes.
at::Tensor misaligned(const at::Tensor& x);

/// A copy on `device` that is a leaf.
at::Tensor leaf_on(const at::Tensor& x, at::Device device);

/// |a - b| <= atol + rtol |b| everywhere and no NaN; both may be of any dtype and device. Zero
/// tolerances stand for the defaults of the dtype of a: 1e-5 each for fp32, 1e-2 and 1.6e-2 for
/// bf16, 1e-10 each for fp64.
::testing::AssertionResult close(const at::Tensor& a, const at::Tensor& b, double atol = 0,
                                 double rtol = 0);

/// Same bits on the CPU side.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

/// Compares the gradients that value().backward() leaves in `leaves` (fp64) with central
/// differences.
void expect_numeric_gradients(const std::function<at::Tensor()>& value,
                              const std::vector<at::Tensor>& leaves);

/// Both devices of a comparison: the CPU first, then the GPU.
std::vector<at::Device> cpu_and_gpu();

}  // namespace longship::ops::testing
