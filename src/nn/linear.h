#pragma once
// Affine layers. The dtype of the input decides the dtype of the product; a weight stored in
// another dtype is cast.

#include <ATen/core/Tensor.h>

#include "nn/module.h"

namespace longship::nn {

/// y = x W^T + b. x [..., in], weight [out, in], bias [out] or undefined -> [..., out] in the dtype
/// of x.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, bool with_bias);
  at::Tensor forward(const at::Tensor& x) const { return linear(x, weight, bias); }

  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out], undefined without bias
};

/// LayerNorm over the last dimension with weight and bias, statistics in fp32.
class LayerNorm : public Module {
 public:
  LayerNorm(int64_t width, double eps);
  /// x [..., width] -> same shape and dtype.
  at::Tensor forward(const at::Tensor& x, bool fused) const;
  double eps() const { return eps_; }

  at::Tensor weight;
  at::Tensor bias;

 private:
  double eps_;
};

}  // namespace longship::nn
