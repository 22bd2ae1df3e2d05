#include "ops/dropout_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

constexpr int64_t kMaxWord = std::numeric_limits<uint32_t>::max();

/// p of all 2^32 words. p next to 1 would take them all.
uint32_t threshold_of(double p) {
  return static_cast<uint32_t>(std::min(std::round(p * 0x1p32), static_cast<double>(kMaxWord)));
}

double multiplier_of(double p, at::ScalarType dtype) {
  const double exact = 1.0 / (1.0 - p);
  if (dtype == at::kDouble) return exact;
  const float single = static_cast<float>(exact);
  return dtype == at::kBFloat16 ? static_cast<float>(at::BFloat16(single)) : single;
}

}  // namespace

DropoutPlan check_dropout_mask(const char* op, const at::Tensor& keys, int64_t site,
                               at::IntArrayRef shape, double p, at::ScalarType dtype) {
  LS_CHECK(!shape.empty() && std::ranges::all_of(shape, [](int64_t size) { return size >= 0; }),
           ShapeError, "{}: the shape must be [B, ...] without negative sizes, got [{}]", op,
           fmt::join(shape, ", "));
  LS_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble, ShapeError,
           "{}: dtype {} is not supported; use float32 or bfloat16, or float64 on the CPU", op,
           at::toString(dtype));
  check_dtype(op, {"keys", keys}, at::kLong);
  check_sizes(op, {"keys", keys}, {shape[0]});
  check_contiguous(op, {{"keys", keys}});
  LS_CHECK(site >= 0 && site <= kMaxWord, ShapeError, "{}: site {} must be in [0, 2^32)", op, site);
  // Written so that NaN fails.
  LS_CHECK(p >= 0 && p < 1, ShapeError, "{}: p = {} must be in [0, 1)", op, p);
  DropoutPlan plan;
  plan.num_samples = shape[0];
  plan.sample_size = 1;
  for (const int64_t size : shape.slice(1)) plan.sample_size *= size;
  plan.site = static_cast<uint32_t>(site);
  plan.threshold = threshold_of(p);
  plan.multiplier = multiplier_of(p, dtype);
  return plan;
}

DropoutPlan check_dropout(const at::Tensor& x, const at::Tensor& keys, int64_t site, double p) {
  const DropoutPlan plan = check_dropout_mask("dropout", keys, site, x.sizes(), p, x.scalar_type());
  check_contiguous("dropout", {{"x", x}});
  check_devices("dropout", {{"x", x}, {"keys", keys}});
  return plan;
}

}  // namespace longship::ops
