#include "ops/stream_norm_check.h"

#include <algorithm>

#include "base/error.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

constexpr size_t kMaxSites = 2;

void check_dtypes(const char* op, const at::Tensor& h, at::ScalarType dtype) {
  const auto known = [](at::ScalarType t) {
    return t == at::kFloat || t == at::kBFloat16 || t == at::kDouble;
  };
  const at::ScalarType own = h.scalar_type();
  LS_CHECK(known(own) && known(dtype) && (own == at::kDouble) == (dtype == at::kDouble), ShapeError,
           "{}: a stream in {} and products in {} are not supported; each may be float32 or "
           "bfloat16, or both float64",
           op, at::toString(own), at::toString(dtype));
}

}  // namespace

void check_rows_like(const char* op, const char* name, const at::Tensor& tensor,
                     const at::Tensor& h, at::ScalarType dtype) {
  check_sizes(op, {name, tensor}, h.sizes());
  check_dtype(op, {name, tensor}, dtype);
  check_devices(op, {{"h", h}, {name, tensor}});
  check_contiguous(op, {{name, tensor}});
}

StreamRows check_stream_norm(const char* op, const at::Tensor& h, const OptionalTensor& scale,
                             const OptionalTensor& shift, at::ScalarType dtype) {
  StreamRows out;
  out.rows = check_grouped_rows(op, h, {{"scale", scale}, {"shift", shift}});
  out.num_samples = out.rows.num_groups;
  check_dtypes(op, h, dtype);
  return out;
}

StreamRows check_add_stream_norm(const char* op, const at::Tensor& h, const BranchArguments& branch,
                                 const OptionalTensor& scale, const OptionalTensor& shift,
                                 at::ScalarType dtype) {
  StreamRows out = check_stream_norm(op, h, scale, shift, dtype);
  if (branch.values.has_value()) check_rows_like(op, "branch", *branch.values, h, dtype);
  if (branch.bias.has_value()) {
    check_sizes(op, {"bias", *branch.bias}, {out.rows.width});
    check_devices(op, {{"h", h}, {"bias", *branch.bias}});
  }
  LS_CHECK(branch.sites.size() <= kMaxSites, ShapeError,
           "{}: a branch has at most {} dropouts, got {} sites", op, kMaxSites,
           branch.sites.size());
  if (branch.sites.empty()) return out;
  LS_CHECK(branch.keys.has_value(), ShapeError, "{}: {} dropout sites without keys", op,
           branch.sites.size());
  check_devices(op, {{"h", h}, {"keys", *branch.keys}});
  for (const int64_t site : branch.sites) {
    out.sites.push_back(check_dropout_mask(op, *branch.keys, site, h.sizes(), branch.p, dtype));
  }
  const int64_t samples = out.sites.front().num_samples, groups = out.rows.num_groups;
  LS_CHECK(h.dim() >= 2 && (groups == 1 || groups == samples), ShapeError,
           "{}: h must be [B, ..., D] with one row of scale and shift for all of its {} samples, "
           "or one each, got {} rows",
           op, samples, groups);
  out.num_samples = std::max<int64_t>(samples, 1);
  return out;
}

}  // namespace longship::ops
