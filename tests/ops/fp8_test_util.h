#pragma once
// Helpers of the FP8 tests.

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include "ops/fp8.h"

namespace longship::ops {

inline at::Tensor random_matrix(std::vector<int64_t> sizes, at::ScalarType type,
                                double size = 1.0) {
  return (at::randn(sizes, at::TensorOptions().dtype(at::kFloat)) * size).to(type);
}

/// Codes of an fp8 tensor, for comparison bit by bit.
inline at::Tensor codes(const at::Tensor& q) {
  return q.cpu().view(at::kByte);
}

inline bool same_codes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && at::equal(codes(a), codes(b));
}

/// Values that a matrix in FP8 stands for, fp32 on the CPU.
inline at::Tensor values(const at::Tensor& q, const at::Tensor& inv_scale) {
  return q.cpu().to(at::kFloat) * inv_scale.cpu();
}

/// |a - b| / |b| over all elements.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().cpu().to(at::kDouble);
  const at::Tensor y = b.detach().cpu().to(at::kDouble);
  return ((x - y).norm() / y.norm()).item<double>();
}

inline double cosine(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().cpu().to(at::kDouble).flatten();
  const at::Tensor y = b.detach().cpu().to(at::kDouble).flatten();
  return (x.dot(y) / (x.norm() * y.norm())).item<double>();
}

/// One row of states with a given scale (0: empty history) for `format`.
inline at::Tensor one_state(float scale, at::ScalarType format, int64_t history = 4) {
  at::Tensor states = at::zeros({1, 2 + history});
  states[0][0] = scale;
  states[0][1] = fp8_max(format);
  return states;
}

}  // namespace longship::ops
