#pragma once
// Reading parameters in their own type.
#include "kernels/common/param_rows.h"
#include "kernels/common/vec.cuh"

namespace longship::kernels {

namespace detail {

template <class T>
__device__ inline void load_eight(const T* source, float (&out)[8]) {
  if (is_aligned16(source)) {
    unpack(load_vec<T, 8>(source), out);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = to_float(source[i]);
}

}  // namespace detail

/// Columns [column, column + 8) of the group's row; `absent` where there is no parameter.
__device__ inline void load_param(const ParamRows& p, int64_t group, int64_t column, float absent,
                                  float (&out)[8]) {
  if (p.data == nullptr) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = absent;
    return;
  }
  const int64_t offset = group * p.row_stride + column;
  if (p.element == ElementType::kFloat32) {
    detail::load_eight(static_cast<const float*>(p.data) + offset, out);
  } else {
    detail::load_eight(static_cast<const __nv_bfloat16*>(p.data) + offset, out);
  }
}

__device__ inline float param_at(const ParamRows& p, int64_t group, int64_t column, float absent) {
  if (p.data == nullptr) return absent;
  const int64_t offset = group * p.row_stride + column;
  return p.element == ElementType::kFloat32
             ? static_cast<const float*>(p.data)[offset]
             : to_float(static_cast<const __nv_bfloat16*>(p.data)[offset]);
}

}  // namespace longship::kernels
