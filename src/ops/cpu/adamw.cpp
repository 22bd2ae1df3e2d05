// The oracle of FusedAdamW: one element after the other, in the arithmetic that its header defines.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "ops/adamw_internal.h"

namespace longship::ops {
namespace {

using kernels::AdamWConstants;
using kernels::AdamWGroupScalars;

double square_sum(const at::Tensor& grad) {
  const at::Tensor values = grad.to(at::kFloat);
  const float* g = values.const_data_ptr<float>();
  double sum = 0;
  for (int64_t i = 0; i < values.numel(); ++i) {
    sum += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  }
  return sum;
}

class CpuAdamW final : public FusedAdamW {
 public:
  CpuAdamW(std::vector<AdamWTensor> tensors, const AdamWHyper& hyper)
      : FusedAdamW(std::move(tensors), hyper),
        constants_(to_constants(hyper)),
        grads_(tensors_.size()) {}

  void bind_grads(at::TensorList grads) override {
    check_adamw_grads(tensors_, grads);
    grads_.assign(grads.begin(), grads.end());
  }

  void upload_scalars(const AdamWRates& now, const AdamWRates& next) override {
    rows_ = {to_scalars(now, hyper_, num_groups_), to_scalars(next, hyper_, num_groups_)};
  }

  void norm() override {
    double sum = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const at::Tensor grad = grad_of(i);
      if (grad.defined()) sum += square_sum(grad);
    }
    set_norm(std::sqrt(sum));
  }

  void update() override {
    const at::NoGradGuard no_grad;
    double* report = report_.mutable_data_ptr<double>();
    const AdamWScalarRow* row = decide(report);
    if (row != nullptr) {
      for (size_t i = 0; i < tensors_.size(); ++i) {
        const auto group = static_cast<size_t>(tensors_[i].group);
        update_tensor(i, row->groups[group], static_cast<float>(report[kernels::kAdamWClip]));
      }
    }
    zero_rows();
  }

  void wait() override {}

  void zero_rows() override {
    for (AdamWTensor& t : tensors_) {
      if (t.row_grad.defined()) t.row_grad.zero_();
    }
  }

 private:
  at::Tensor grad_of(size_t i) const {
    const AdamWTensor& t = tensors_[i];
    if (t.row_grad.defined()) return t.row_grad;
    return t.exp_avg.defined() ? grads_[i] : at::Tensor();
  }

  /// Fills the report and counts; null when nothing may change.
  const AdamWScalarRow* decide(double* report) {
    const double norm = report[kernels::kAdamWNorm];
    int64_t& updates = *num_updates_.mutable_data_ptr<int64_t>();
    int32_t& fault = *fault_.mutable_data_ptr<int32_t>();
    const bool finite = std::isfinite(norm);
    double clip = 1.0;
    if (finite && hyper_.max_norm) clip = std::min(1.0, *hyper_.max_norm / (norm + 1e-6));
    const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const AdamWScalarRow& r) {
      return r.num_updates == updates;
    });
    if (!finite) fault |= kernels::kAdamWFaultNonFinite;
    if (fault == 0 && found == rows_.end()) fault |= kernels::kAdamWFaultScalars;
    if (fault == 0) ++updates;
    report[kernels::kAdamWClip] = clip;
    report[kernels::kAdamWFinite] = finite ? 1 : 0;
    report[kernels::kAdamWUpdated] = fault == 0 ? 1 : 0;
    report[kernels::kAdamWNumUpdates] = static_cast<double>(updates);
    report[kernels::kAdamWFault] = fault;
    return fault == 0 ? &*found : nullptr;
  }

  void update_tensor(size_t i, const AdamWGroupScalars& s, float clip) {
    AdamWTensor& t = tensors_[i];
    const at::Tensor grad = grad_of(i);
    const at::Tensor grad_fp32 = grad.defined() ? grad.to(at::kFloat) : grad;
    const float* g = grad.defined() ? grad_fp32.const_data_ptr<float>() : nullptr;
    const int64_t rows = t.row_flags.defined() ? t.row_flags.numel() : 1;
    const int64_t length = rows == 0 ? 0 : t.master.numel() / rows;
    float* p = t.master.mutable_data_ptr<float>();
    for (int64_t r = 0; r < rows; ++r) {
      const bool flagged = !t.row_flags.defined() || t.row_flags.const_data_ptr<uint8_t>()[r] != 0;
      const bool live = t.exp_avg.defined() && flagged;
      if (!live && s.decay == 1.0F && !t.ema.defined()) continue;
      for (int64_t k = r * length; k < (r + 1) * length; ++k) {
        if (live) {
          update_element(p[k], t.exp_avg.mutable_data_ptr<float>()[k],
                         t.exp_avg_sq.mutable_data_ptr<float>()[k], g == nullptr ? 0.0F : g[k], s,
                         clip);
        } else {
          p[k] *= s.decay;
        }
        if (!t.ema.defined()) continue;
        float& ema = t.ema.mutable_data_ptr<float>()[k];
        ema = constants_.ema_keep * ema + constants_.ema_take * p[k];
      }
      if (t.param.defined()) {
        t.param.view({-1})
            .narrow(0, r * length, length)
            .copy_(t.master.view({-1}).narrow(0, r * length, length));
      }
    }
  }

  void update_element(float& p, float& m, float& v, float grad, const AdamWGroupScalars& s,
                      float clip) const {
    const float g = grad * clip;
    m = m + constants_.one_minus_beta1 * (g - m);
    v = constants_.beta2 * v + constants_.one_minus_beta2 * (g * g);
    p = p * s.decay - s.step_size * m / (std::sqrt(v) / s.sqrt_correction2 + constants_.eps);
  }

  AdamWConstants constants_;
  std::vector<at::Tensor> grads_;
  std::array<AdamWScalarRow, 2> rows_;
};

[[maybe_unused]] const bool registered = register_adamw(
    c10::DeviceType::CPU,
    [](std::vector<AdamWTensor> tensors, const AdamWHyper& hyper) -> std::unique_ptr<FusedAdamW> {
      return std::make_unique<CpuAdamW>(std::move(tensors), hyper);
    });

}  // namespace
}  // namespace longship::ops
