#include "ops/random.h"

#include <cmath>
#include <span>

#include "base/error.h"
#include "ops/random_internal.h"

namespace longship::ops {
namespace {

void fill_host(float* out, int64_t count, RngKey key, double std, double limit) {
  const std::span<float> values(out, static_cast<size_t>(count));
  fill_normal(key, values);
  for (size_t i = 0; i < values.size(); ++i) {
    for (key.step = 1; std::abs(values[i]) > static_cast<float>(limit); ++key.step) {
      fill_normal(key, values.subspan(i, 1), i);
    }
    values[i] = static_cast<float>(values[i] * std);
  }
}

}  // namespace

void fill_truncated_normal_(at::Tensor& out, const RngKey& key, double std, double limit) {
  LS_CHECK(out.scalar_type() == at::kFloat && out.is_contiguous(), ShapeError,
           "fill_truncated_normal_: the tensor must be contiguous fp32");
  LS_CHECK(limit > 0.5, InternalError, "fill_truncated_normal_: limit {} is too tight", limit);
  if (out.is_cpu()) return fill_host(out.mutable_data_ptr<float>(), out.numel(), key, std, limit);
  fill_truncated_normal_device(out, key, std, limit);
}

#ifndef LS_OPS_CUDA
void fill_truncated_normal_device(at::Tensor& out, const RngKey&, double, double) {
  throw DeviceError(
      fmt::format("fill_truncated_normal_: no implementation for device {}", out.device().str()));
}
#endif

}  // namespace longship::ops
