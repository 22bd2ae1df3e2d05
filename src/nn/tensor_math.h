#pragma once
// Arithmetic operators on tensors. ATen declares them in a header that pulls in every operator (9 s
// per file); these are the few that formulas here use. Visible inside namespace longship only; do
// not include ATen/TensorOperators.h beside.

#include <ATen/core/Tensor.h>

namespace longship {

inline at::Tensor operator+(const at::Tensor& a, const at::Tensor& b) {
  return a.add(b);
}
inline at::Tensor operator-(const at::Tensor& a, const at::Tensor& b) {
  return a.sub(b);
}
inline at::Tensor operator*(const at::Tensor& a, const at::Tensor& b) {
  return a.mul(b);
}
inline at::Tensor operator/(const at::Tensor& a, const at::Tensor& b) {
  return a.div(b);
}
inline at::Tensor operator+(const at::Tensor& a, double b) {
  return a.add(b);
}
inline at::Tensor operator*(const at::Tensor& a, double b) {
  return a.mul(b);
}
inline at::Tensor operator/(const at::Tensor& a, double b) {
  return a.div(b);
}
inline at::Tensor operator+(double a, const at::Tensor& b) {
  return b.add(a);
}
inline at::Tensor operator*(double a, const at::Tensor& b) {
  return b.mul(a);
}
inline at::Tensor operator-(double a, const at::Tensor& b) {
  return b.neg().add_(a);
}
inline at::Tensor operator/(double a, const at::Tensor& b) {
  return b.reciprocal().mul_(a);
}

}  // namespace longship
