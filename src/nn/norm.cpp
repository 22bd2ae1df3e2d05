#include "nn/norm.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>

#include <optional>
#include <tuple>

#include "nn/tensor_math.h"
#include "ops/layer_norm.h"
#include "ops/rms_norm.h"

namespace longship::nn {
namespace {

at::Tensor wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

std::optional<at::Tensor> given(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

/// x / sqrt(mean(x^2) + eps) * factor + shift, from library operators.
at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& shift,
                          double eps) {
  const at::Tensor wide_x = wide(x);
  at::Tensor y = wide_x * at::rsqrt(at::mean(wide_x * wide_x, {-1}, true) + eps) * factor;
  if (shift.defined()) y = y + shift;
  return y.to(x.scalar_type());
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, bool fused) {
  if (fused || x.is_cpu() || x.is_meta()) return ops::rms_norm(x, weight, std::nullopt, eps);
  return plain_rms_norm(x, 1.0 + wide(weight), {}, eps);
}

at::Tensor ada_rms_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                        double eps, bool fused) {
  if (fused || x.is_cpu() || x.is_meta()) {
    return ops::rms_norm(x, scale, shift, eps);
  }
  return plain_rms_norm(x, (1.0 + wide(scale)).unsqueeze(1), wide(shift).unsqueeze(1), eps);
}

at::Tensor add_branch(const at::Tensor& h, const at::Tensor& branch, const at::Tensor& gate) {
  if (!gate.defined()) return h + branch;
  return at::addcmul(h, branch, gate.unsqueeze(1).to(h.scalar_type()));
}

Normed add_rms_norm(const at::Tensor& h, const at::Tensor& branch, const at::Tensor& gate,
                    const at::Tensor& scale, const at::Tensor& shift, double eps, bool fused) {
  Normed out;
  if (fused) {
    std::tie(out.h, out.y) = ops::add_rms_norm(h, branch, given(gate), scale, given(shift), eps);
    return out;
  }
  out.h = add_branch(h, branch, gate);
  out.y = shift.defined() ? ada_rms_norm(out.h, scale, shift, eps, fused)
                          : rms_norm(out.h, scale, eps, fused);
  return out;
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps, bool fused) {
  if (fused) return ops::layer_norm(x, weight, bias, eps);
  const at::ScalarType dtype = x.scalar_type();
  if (x.is_meta()) return at::empty_like(x);  // LibTorch has no meta kernel of its own
  return at::layer_norm(x, {x.size(-1)}, weight.to(dtype), bias.to(dtype), eps);
}

Normed add_layer_norm(const at::Tensor& h, const at::Tensor& branch, const at::Tensor& weight,
                      const at::Tensor& bias, double eps, bool fused) {
  Normed out;
  if (fused) {
    std::tie(out.h, out.y) = ops::add_layer_norm(h, branch, weight, bias, eps);
    return out;
  }
  out.h = h + branch;
  out.y = layer_norm(out.h, weight, bias, eps, fused);
  return out;
}

}  // namespace longship::nn
