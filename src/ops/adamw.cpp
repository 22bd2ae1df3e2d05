#include "ops/adamw.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "ops/adamw_internal.h"

namespace longship::ops {
namespace {

using Registry = std::array<AdamWFactory, c10::COMPILE_TIME_MAX_DEVICE_TYPES>;

Registry& registry() {
  static Registry factories{};
  return factories;
}

bool is_weight_type(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16;
}

void check_part(const at::Tensor& part, const at::Tensor& master, size_t index, const char* name) {
  LS_CHECK(
      part.is_contiguous() && part.numel() == master.numel() && part.device() == master.device(),
      InternalError, "AdamW: {} of tensor {} does not have the master's size and device", name,
      index);
}

void check_tensor(const AdamWTensor& t, size_t index, c10::Device device, bool has_ema) {
  LS_CHECK(t.master.defined() && t.master.device() == device &&
               t.master.scalar_type() == at::kFloat && t.master.is_contiguous(),
           InternalError, "AdamW: master {} must be fp32, contiguous and on {}", index,
           device.str());
  LS_CHECK(t.exp_avg.defined() == t.exp_avg_sq.defined() && t.ema.defined() == has_ema &&
               t.row_grad.defined() == t.row_flags.defined(),
           InternalError, "AdamW: tensor {} has some of its parts only", index);
  LS_CHECK(t.group >= 0, InternalError, "AdamW: tensor {} has group {}", index, t.group);
  for (const auto& [part, name] :
       {std::pair{t.exp_avg, "exp_avg"}, std::pair{t.exp_avg_sq, "exp_avg_sq"},
        std::pair{t.ema, "ema"}}) {
    if (!part.defined()) continue;
    check_part(part, t.master, index, name);
    LS_CHECK(part.scalar_type() == at::kFloat, InternalError, "AdamW: {} of tensor {} is not fp32",
             name, index);
  }
  for (const auto& [part, name] :
       {std::pair{t.param, "param"}, std::pair{t.row_grad, "row_grad"}}) {
    if (!part.defined()) continue;
    check_part(part, t.master, index, name);
    LS_CHECK(is_weight_type(part), InternalError, "AdamW: {} of tensor {} is neither fp32 nor bf16",
             name, index);
  }
  if (!t.row_flags.defined()) return;
  LS_CHECK(t.exp_avg.defined() && t.master.dim() >= 1 && t.row_flags.device() == device &&
               t.row_flags.scalar_type() == at::kByte && t.row_flags.is_contiguous() &&
               t.row_flags.numel() == t.master.size(0),
           InternalError, "AdamW: tensor {} needs moments and one uint8 flag per row", index);
}

}  // namespace

AdamWReport read_report(const at::Tensor& report) {
  const at::Tensor host = report.cpu();
  const double* fields = host.const_data_ptr<double>();
  AdamWReport out;
  out.norm = fields[kernels::kAdamWNorm];
  out.clip = fields[kernels::kAdamWClip];
  out.finite = fields[kernels::kAdamWFinite] != 0;
  out.updated = fields[kernels::kAdamWUpdated] != 0;
  out.num_updates = static_cast<int64_t>(fields[kernels::kAdamWNumUpdates]);
  out.fault = static_cast<int64_t>(fields[kernels::kAdamWFault]);
  return out;
}

AdamWScalarRow to_scalars(const AdamWRates& rates, const AdamWHyper& hyper, size_t num_groups) {
  LS_CHECK(rates.groups.size() == num_groups, InternalError,
           "AdamW: rates of {} groups were given for {}", rates.groups.size(), num_groups);
  const auto t = static_cast<double>(rates.num_updates + 1);
  const double correction1 = 1.0 - std::pow(hyper.beta1, t);
  const double correction2 = 1.0 - std::pow(hyper.beta2, t);
  AdamWScalarRow row;
  row.num_updates = rates.num_updates;
  for (const AdamWRates::Group& group : rates.groups) {
    kernels::AdamWGroupScalars s;
    s.decay = static_cast<float>(1.0 - group.lr * group.weight_decay);
    s.step_size = static_cast<float>(group.lr / correction1);
    s.sqrt_correction2 = static_cast<float>(std::sqrt(correction2));
    row.groups.push_back(s);
  }
  return row;
}

kernels::AdamWConstants to_constants(const AdamWHyper& hyper) {
  const double keep = hyper.ema.value_or(0.0);
  kernels::AdamWConstants c;
  c.one_minus_beta1 = static_cast<float>(1.0 - hyper.beta1);
  c.beta2 = static_cast<float>(hyper.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - hyper.beta2);
  c.eps = static_cast<float>(hyper.eps);
  c.ema_keep = static_cast<float>(keep);
  c.ema_take = static_cast<float>(1.0 - keep);
  c.max_norm = hyper.max_norm.value_or(-1.0);
  return c;
}

void check_adamw_grads(const std::vector<AdamWTensor>& tensors, at::TensorList grads) {
  LS_CHECK(grads.size() == tensors.size(), InternalError,
           "AdamW: {} gradients were given for {} tensors", grads.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const AdamWTensor& t = tensors[i];
    if (!grads[i].defined() || t.row_grad.defined() || !t.exp_avg.defined()) continue;
    check_part(grads[i], t.master, i, "gradient");
    LS_CHECK(is_weight_type(grads[i]), InternalError,
             "AdamW: gradient {} is {}, neither fp32 nor bf16", i,
             at::toString(grads[i].scalar_type()));
  }
}

bool register_adamw(c10::DeviceType type, AdamWFactory factory) {
  registry()[static_cast<size_t>(type)] = factory;
  return true;
}

bool FusedAdamW::available(c10::DeviceType type) {
  return registry()[static_cast<size_t>(type)] != nullptr;
}

std::unique_ptr<FusedAdamW> FusedAdamW::create(std::vector<AdamWTensor> tensors,
                                               const AdamWHyper& hyper) {
  LS_CHECK(!tensors.empty(), InternalError, "AdamW: no tensors");
  const c10::Device device = tensors.front().master.device();
  LS_CHECK(available(device.type()), InternalError, "AdamW has no fused implementation on {}",
           device.str());
  return registry()[static_cast<size_t>(device.type())](std::move(tensors), hyper);
}

FusedAdamW::FusedAdamW(std::vector<AdamWTensor> tensors, const AdamWHyper& hyper)
    : tensors_(std::move(tensors)), hyper_(hyper) {
  const c10::Device device = tensors_.front().master.device();
  int64_t last_group = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    check_tensor(tensors_[i], i, device, hyper_.ema.has_value());
    last_group = std::max(last_group, tensors_[i].group);
  }
  num_groups_ = static_cast<size_t>(last_group) + 1;
  const auto options = at::TensorOptions().device(device);
  report_ = at::zeros({kernels::kAdamWReportSize}, options.dtype(at::kDouble));
  num_updates_ = at::zeros({1}, options.dtype(at::kLong));
  fault_ = at::zeros({1}, options.dtype(at::kInt));
}

void FusedAdamW::step() {
  norm();
  update();
}

void FusedAdamW::set_norm(double norm) {
  report_.select(0, kernels::kAdamWNorm).fill_(norm);
}

void FusedAdamW::set_num_updates(int64_t num_updates) {
  num_updates_.fill_(num_updates);
}

void FusedAdamW::clear_fault() {
  fault_.zero_();
}

}  // namespace longship::ops
