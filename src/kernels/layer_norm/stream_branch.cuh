#pragma once
// The branch that is added to a residual stream, with its bias and its dropouts, and its gradient.
#include "kernels/common/param_rows.cuh"
#include "kernels/common/row_team.cuh"
#include "kernels/layer_norm/stream_norm.h"
#include "kernels/random/dropout.cuh"

namespace longship::kernels {

static_assert(kDropoutRun == kColumnsPerThread);

template <class G>
__device__ inline float rounded(float v) {
  return to_float(from_float<G>(v));
}

/// The key of this block's rows; 0 where nothing is dropped.
__device__ inline int64_t branch_key(const StreamBranch& branch, int64_t group) {
  return branch.num_sites > 0 ? branch.keys[group] : 0;
}

/// Number of this thread's run of eight elements in the sample of `row`, all rows of the group.
__device__ inline uint32_t run_in_sample(const RowPlan& plan, const TeamRows& rows, uint32_t row) {
  return vector_at(plan, row - static_cast<uint32_t>(rows.group * plan.rows_per_group));
}

/// v <- (v + bias) and the dropouts of elements 8 run to 8 run + 7; v has values of type G.
template <class G>
__device__ inline void drop_branch(const StreamBranch& branch, int64_t key, uint32_t run,
                                   float (&v)[kColumnsPerThread]) {
  if (branch.bias.data != nullptr) {
    float bias[kColumnsPerThread];
    load_param(branch.bias, 0, threadIdx.x * kColumnsPerThread, 0.0f, bias);
#pragma unroll
    for (int i = 0; i < kColumnsPerThread; ++i) v[i] = rounded<G>(v[i] + bias[i]);
  }
#pragma unroll
  for (int s = 0; s < kMaxBranchSites; ++s) {
    if (s >= branch.num_sites) break;
    float m[kColumnsPerThread];
    dropout_run(branch.sites[s], key, run, m);
#pragma unroll
    for (int i = 0; i < kColumnsPerThread; ++i) v[i] = rounded<G>(v[i] * m[i]);
  }
}

/// g <- gradient of the branch, values of type G, from the gradient of the stream.
template <class G>
__device__ inline void branch_gradient(const StreamBranch& branch, int64_t key, uint32_t run,
                                       float (&g)[kColumnsPerThread]) {
#pragma unroll
  for (int i = 0; i < kColumnsPerThread; ++i) g[i] = rounded<G>(g[i]);
#pragma unroll
  for (int s = kMaxBranchSites - 1; s >= 0; --s) {
    if (s >= branch.num_sites) continue;
    float m[kColumnsPerThread];
    dropout_run(branch.sites[s], key, run, m);
#pragma unroll
    for (int i = 0; i < kColumnsPerThread; ++i) g[i] = rounded<G>(g[i] * m[i]);
  }
}

/// The same for element `i` of a sample, in column `column`.
template <class G>
__device__ inline float drop_branch_at(const StreamBranch& branch, int64_t key, int64_t column,
                                       uint64_t i, float v) {
  if (branch.bias.data != nullptr) v = rounded<G>(v + param_at(branch.bias, 0, column, 0.0f));
  for (int s = 0; s < branch.num_sites; ++s) {
    v = rounded<G>(v * dropout_at(branch.sites[s], key, i));
  }
  return v;
}

template <class G>
__device__ inline float branch_gradient_at(const StreamBranch& branch, int64_t key, uint64_t i,
                                           float g) {
  g = rounded<G>(g);
  for (int s = branch.num_sites - 1; s >= 0; --s) {
    g = rounded<G>(g * dropout_at(branch.sites[s], key, i));
  }
  return g;
}

/// What x_hat is multiplied with, from a value of `scale`.
__device__ inline float factor_of(const ParamRows& scale, bool plus_one, float value) {
  if (!plus_one || scale.data == nullptr) return value;
  const float factor = 1.0f + value;
  return scale.element == ElementType::kFloat32 ? factor : rounded<__nv_bfloat16>(factor);
}

/// Columns [column, column + 8) of the group's factor.
__device__ inline void load_factor(const ParamRows& scale, bool plus_one, int64_t group,
                                   int64_t column, float (&factor)[kColumnsPerThread]) {
  load_param(scale, group, column, 1.0f, factor);
#pragma unroll
  for (int i = 0; i < kColumnsPerThread; ++i) factor[i] = factor_of(scale, plus_one, factor[i]);
}

__device__ inline float factor_at(const ParamRows& scale, bool plus_one, int64_t group,
                                  int64_t column) {
  return factor_of(scale, plus_one, param_at(scale, group, column, 1.0f));
}

/// Calls run(T{}, G{}) with the types of stream and product.
template <class Run>
void dispatch_stream(ElementType stream, ElementType product, Run&& run) {
  const bool wide = product == ElementType::kFloat32;
  if (stream == ElementType::kFloat32) {
    wide ? run(float{}, float{}) : run(float{}, __nv_bfloat16{});
  } else {
    wide ? run(__nv_bfloat16{}, float{}) : run(__nv_bfloat16{}, __nv_bfloat16{});
  }
}

}  // namespace longship::kernels
