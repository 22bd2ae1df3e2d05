// Autograd of stream_norm, add_stream_norm and add_dropped. Saved for backward: h or h_out, mean,
// rstd, scale, and shift, bias (for shape and dtype of their gradients) and keys.
#include "ops/stream_norm.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "ops/handle.h"
#include "ops/stream_norm_check.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;
using Tensor = at::Tensor;
using NormResult = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using NormGradients = std::tuple<Tensor, Tensor, Tensor>;
using AddGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using DroppedGradients = std::tuple<Tensor, Tensor>;

NormResult call_norm(const Tensor& h, const OptionalTensor& scale, const OptionalTensor& shift,
                     bool plus_one, double eps, at::ScalarType dtype) {
  static const auto op =
      typed_op<NormResult(const Tensor&, const OptionalTensor&, const OptionalTensor&, bool, double,
                          at::ScalarType)>("longship::stream_norm");
  return op.call(h, scale, shift, plus_one, eps, dtype);
}

NormGradients call_norm_backward(const OptionalTensor& dh_out, const Tensor& dy, const Tensor& h,
                                 const Tensor& mean, const Tensor& rstd,
                                 const OptionalTensor& scale, const OptionalTensor& shift,
                                 bool plus_one) {
  static const auto op =
      typed_op<NormGradients(const OptionalTensor&, const Tensor&, const Tensor&, const Tensor&,
                             const Tensor&, const OptionalTensor&, const OptionalTensor&, bool)>(
          "longship::stream_norm_backward");
  return op.call(dh_out, dy, h, mean, rstd, scale, shift, plus_one);
}

NormResult call_add(const Tensor& h, const Tensor& values, const OptionalTensor& bias,
                    const OptionalTensor& keys, at::IntArrayRef sites, double p,
                    const OptionalTensor& scale, const OptionalTensor& shift, bool plus_one,
                    double eps) {
  static const auto op =
      typed_op<NormResult(const Tensor&, const Tensor&, const OptionalTensor&,
                          const OptionalTensor&, at::IntArrayRef, double, const OptionalTensor&,
                          const OptionalTensor&, bool, double)>("longship::add_stream_norm");
  return op.call(h, values, bias, keys, sites, p, scale, shift, plus_one, eps);
}

AddGradients call_add_backward(const OptionalTensor& dh_out, const Tensor& dy, const Tensor& h_out,
                               const Tensor& mean, const Tensor& rstd, const OptionalTensor& bias,
                               const OptionalTensor& keys, at::IntArrayRef sites, double p,
                               const OptionalTensor& scale, const OptionalTensor& shift,
                               bool plus_one) {
  static const auto op = typed_op<AddGradients(
      const OptionalTensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
      const OptionalTensor&, const OptionalTensor&, at::IntArrayRef, double, const OptionalTensor&,
      const OptionalTensor&, bool)>("longship::add_stream_norm_backward");
  return op.call(dh_out, dy, h_out, mean, rstd, bias, keys, sites, p, scale, shift, plus_one);
}

Tensor call_dropped(const Tensor& h, const Tensor& values, const OptionalTensor& bias,
                    const OptionalTensor& keys, at::IntArrayRef sites, double p) {
  static const auto op =
      typed_op<Tensor(const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&,
                      at::IntArrayRef, double)>("longship::add_dropped");
  return op.call(h, values, bias, keys, sites, p);
}

DroppedGradients call_dropped_backward(const Tensor& dh_out, const OptionalTensor& bias,
                                       const OptionalTensor& keys, at::IntArrayRef sites, double p,
                                       at::ScalarType dtype) {
  static const auto op =
      typed_op<DroppedGradients(const Tensor&, const OptionalTensor&, const OptionalTensor&,
                                at::IntArrayRef, double, at::ScalarType)>(
          "longship::add_dropped_backward");
  return op.call(dh_out, bias, keys, sites, p, dtype);
}

OptionalTensor given(const Tensor& t) {
  return t.defined() ? OptionalTensor(t) : std::nullopt;
}

/// A gradient as kernels read it.
OptionalTensor dense(const Tensor& gradient) {
  return gradient.defined() ? OptionalTensor(gradient.contiguous()) : std::nullopt;
}

Tensor or_undefined(const OptionalTensor& t) {
  return t.value_or(Tensor());
}

/// Undefined in place of the [0] that stands for an absent parameter.
Tensor gradient_for(const Tensor& param, const Tensor& gradient) {
  return param.defined() ? gradient : Tensor();
}

class StreamNormFunction : public torch::autograd::Function<StreamNormFunction> {
 public:
  static tensor_list forward(AutogradContext* context, const Tensor& h, const OptionalTensor& scale,
                             const OptionalTensor& shift, bool plus_one, double eps,
                             at::ScalarType dtype) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [h_out, y, mean, rstd] = call_norm(h, scale, shift, plus_one, eps, dtype);
    context->save_for_backward({h, mean, rstd, or_undefined(scale), or_undefined(shift)});
    context->saved_data["plus_one"] = plus_one;
    context->set_materialize_grads(false);
    context->mark_non_differentiable({mean, rstd});
    return {h_out, y, mean, rstd};
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    check_first_derivative("stream_norm");
    tensor_list result(6);
    if (!gradients[1].defined()) {  // the norm was not used
      result[0] = gradients[0];
      return result;
    }
    const auto saved = context->get_saved_variables();
    auto [dh, dscale, dshift] = call_norm_backward(
        dense(gradients[0]), gradients[1].contiguous(), saved[0], saved[1], saved[2],
        given(saved[3]), given(saved[4]), context->saved_data["plus_one"].toBool());
    result[0] = dh;
    result[1] = gradient_for(saved[3], dscale);
    result[2] = gradient_for(saved[4], dshift);
    return result;
  }
};

class AddStreamNormFunction : public torch::autograd::Function<AddStreamNormFunction> {
 public:
  static tensor_list forward(AutogradContext* context, const Tensor& h, const Tensor& values,
                             const OptionalTensor& bias, const OptionalTensor& keys,
                             at::IntArrayRef sites, double p, const OptionalTensor& scale,
                             const OptionalTensor& shift, bool plus_one, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [h_out, y, mean, rstd] =
        call_add(h, values, bias, keys, sites, p, scale, shift, plus_one, eps);
    context->save_for_backward({h_out, mean, rstd, or_undefined(bias), or_undefined(keys),
                                or_undefined(scale), or_undefined(shift)});
    context->saved_data["sites"] = sites.vec();
    context->saved_data["p"] = p;
    context->saved_data["plus_one"] = plus_one;
    context->saved_data["dtype"] = values.scalar_type();
    context->set_materialize_grads(false);
    context->mark_non_differentiable({mean, rstd});
    return {h_out, y, mean, rstd};
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    check_first_derivative("add_stream_norm");
    tensor_list result(10);
    const OptionalTensor dh_out = dense(gradients[0]);
    if (!dh_out.has_value() && !gradients[1].defined()) return result;
    const auto saved = context->get_saved_variables();
    const OptionalTensor bias = given(saved[3]), keys = given(saved[4]);
    const std::vector<int64_t> sites = context->saved_data["sites"].toIntVector();
    const double p = context->saved_data["p"].toDouble();
    Tensor dbias;
    if (!gradients[1].defined()) {  // the norm was not used
      result[0] = *dh_out;
      std::tie(result[1], dbias) = call_dropped_backward(
          *dh_out, bias, keys, sites, p, context->saved_data["dtype"].toScalarType());
    } else {
      Tensor dscale, dshift;
      std::tie(result[0], result[1], dbias, dscale, dshift) = call_add_backward(
          dh_out, gradients[1].contiguous(), saved[0], saved[1], saved[2], bias, keys, sites, p,
          given(saved[5]), given(saved[6]), context->saved_data["plus_one"].toBool());
      result[6] = gradient_for(saved[5], dscale);
      result[7] = gradient_for(saved[6], dshift);
    }
    result[2] = gradient_for(saved[3], dbias);
    return result;
  }
};

class AddDroppedFunction : public torch::autograd::Function<AddDroppedFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& h, const Tensor& values,
                        const OptionalTensor& bias, const OptionalTensor& keys,
                        at::IntArrayRef sites, double p) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({or_undefined(bias), or_undefined(keys)});
    context->saved_data["sites"] = sites.vec();
    context->saved_data["p"] = p;
    context->saved_data["dtype"] = values.scalar_type();
    return call_dropped(h, values, bias, keys, sites, p);
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    check_first_derivative("add_dropped");
    const auto saved = context->get_saved_variables();
    tensor_list result(6);
    result[0] = gradients[0].contiguous();
    Tensor dbias;
    std::tie(result[1], dbias) = call_dropped_backward(
        result[0], given(saved[0]), given(saved[1]), context->saved_data["sites"].toIntVector(),
        context->saved_data["p"].toDouble(), context->saved_data["dtype"].toScalarType());
    result[2] = gradient_for(saved[0], dbias);
    return result;
  }
};

NormResult stream_norm_autograd(const Tensor& h, const OptionalTensor& scale,
                                const OptionalTensor& shift, bool plus_one, double eps,
                                at::ScalarType dtype) {
  auto r = StreamNormFunction::apply(h, scale, shift, plus_one, eps, dtype);
  return {r[0], r[1], r[2], r[3]};
}

NormResult add_stream_norm_autograd(const Tensor& h, const Tensor& values,
                                    const OptionalTensor& bias, const OptionalTensor& keys,
                                    at::IntArrayRef sites, double p, const OptionalTensor& scale,
                                    const OptionalTensor& shift, bool plus_one, double eps) {
  auto r =
      AddStreamNormFunction::apply(h, values, bias, keys, sites, p, scale, shift, plus_one, eps);
  return {r[0], r[1], r[2], r[3]};
}

Tensor add_dropped_autograd(const Tensor& h, const Tensor& values, const OptionalTensor& bias,
                            const OptionalTensor& keys, at::IntArrayRef sites, double p) {
  return AddDroppedFunction::apply(h, values, bias, keys, sites, p);
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  m.impl("stream_norm", stream_norm_autograd);
  m.impl("add_stream_norm", add_stream_norm_autograd);
  m.impl("add_dropped", add_dropped_autograd);
}

bool drops(const StreamBranch& branch) {
  return branch.keys.defined() && !branch.sites.empty() && branch.p != 0;
}

OptionalTensor keys_of(const StreamBranch& branch) {
  return drops(branch) ? OptionalTensor(branch.keys.contiguous()) : std::nullopt;
}

at::IntArrayRef sites_of(const StreamBranch& branch) {
  return drops(branch) ? at::IntArrayRef(branch.sites) : at::IntArrayRef();
}

}  // namespace

std::pair<Tensor, Tensor> stream_norm(const Tensor& h, const StreamNorm& norm,
                                      at::ScalarType dtype) {
  auto [h_out, y, mean, rstd] = call_norm(h.contiguous(), given(norm.scale), given(norm.shift),
                                          norm.plus_one, norm.eps, dtype);
  return {h_out, y};
}

std::pair<Tensor, Tensor> add_stream_norm(const Tensor& h, const StreamBranch& branch,
                                          const StreamNorm& norm) {
  auto [h_out, y, mean, rstd] = call_add(
      h.contiguous(), branch.values.contiguous(), given(branch.bias), keys_of(branch),
      sites_of(branch), branch.p, given(norm.scale), given(norm.shift), norm.plus_one, norm.eps);
  return {h_out, y};
}

Tensor add_dropped(const Tensor& h, const StreamBranch& branch) {
  return call_dropped(h.contiguous(), branch.values.contiguous(), given(branch.bias),
                      keys_of(branch), sites_of(branch), branch.p);
}

}  // namespace longship::ops
