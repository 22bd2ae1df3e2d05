#pragma once
// Vectors of consecutive elements that move in 16-byte words: the access width at which kernels
// bound by memory reach the bandwidth. Values are worked on in fp32.
#include <cuda_bf16.h>

#include <cstdint>

namespace longship::kernels {

__device__ inline float to_float(float v) {
  return v;
}
__device__ inline float to_float(__nv_bfloat16 v) {
  return __bfloat162float(v);
}

/// Rounds to nearest even.
template <class T>
__device__ inline T from_float(float v);
template <>
__device__ inline float from_float<float>(float v) {
  return v;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

/// True where a 16-byte access is allowed.
__host__ __device__ inline bool is_aligned16(const void* pointer) {
  return (reinterpret_cast<uintptr_t>(pointer) & 15u) == 0;
}

/// N elements of T (float or __nv_bfloat16) in their stored form; N * sizeof(T) is a multiple of
/// 16. Held packed in registers: half the registers of the fp32 values for bf16.
template <class T, int N = 16 / static_cast<int>(sizeof(T))>
struct Vec {
  static constexpr int kWords = N * static_cast<int>(sizeof(T)) / 16;
  static_assert(kWords >= 1 && N * sizeof(T) == kWords * 16u);
  uint4 words[kWords];
};

template <class T, int N>
__device__ inline Vec<T, N> zero_vec() {
  Vec<T, N> v;
#pragma unroll
  for (int i = 0; i < Vec<T, N>::kWords; ++i) v.words[i] = make_uint4(0u, 0u, 0u, 0u);
  return v;
}

/// `source` is 16-byte aligned and not written by this kernel (read-only cache).
template <class T, int N>
__device__ inline Vec<T, N> load_vec(const T* source) {
  Vec<T, N> v;
  const uint4* words = reinterpret_cast<const uint4*>(source);
#pragma unroll
  for (int i = 0; i < Vec<T, N>::kWords; ++i) v.words[i] = __ldg(words + i);
  return v;
}

/// `target` is 16-byte aligned.
template <class T, int N>
__device__ inline void store_vec(T* target, const Vec<T, N>& v) {
  uint4* words = reinterpret_cast<uint4*>(target);
#pragma unroll
  for (int i = 0; i < Vec<T, N>::kWords; ++i) words[i] = v.words[i];
}

namespace detail {

__device__ inline void unpack_word(const uint4& w, float* out, float /*tag*/) {
  out[0] = __uint_as_float(w.x);
  out[1] = __uint_as_float(w.y);
  out[2] = __uint_as_float(w.z);
  out[3] = __uint_as_float(w.w);
}

/// bf16 is the upper half of fp32.
__device__ inline void unpack_pair(uint32_t pair, float* out) {
  out[0] = __uint_as_float(pair << 16);
  out[1] = __uint_as_float(pair & 0xffff0000u);
}
__device__ inline void unpack_word(const uint4& w, float* out, __nv_bfloat16 /*tag*/) {
  unpack_pair(w.x, out);
  unpack_pair(w.y, out + 2);
  unpack_pair(w.z, out + 4);
  unpack_pair(w.w, out + 6);
}

__device__ inline uint4 pack_word(const float* in, float /*tag*/) {
  return make_uint4(__float_as_uint(in[0]), __float_as_uint(in[1]), __float_as_uint(in[2]),
                    __float_as_uint(in[3]));
}

__device__ inline uint32_t pack_pair(const float* in) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(in[0], in[1]);
  return static_cast<uint32_t>(__bfloat16_as_ushort(pair.x)) |
         static_cast<uint32_t>(__bfloat16_as_ushort(pair.y)) << 16;
}
__device__ inline uint4 pack_word(const float* in, __nv_bfloat16 /*tag*/) {
  return make_uint4(pack_pair(in), pack_pair(in + 2), pack_pair(in + 4), pack_pair(in + 6));
}

}  // namespace detail

template <class T, int N>
__device__ inline void unpack(const Vec<T, N>& v, float (&out)[N]) {
#pragma unroll
  for (int i = 0; i < Vec<T, N>::kWords; ++i) {
    detail::unpack_word(v.words[i], out + i * (16 / static_cast<int>(sizeof(T))), T{});
  }
}

/// Rounds to nearest even where T is narrower than fp32.
template <class T, int N>
__device__ inline Vec<T, N> pack(const float (&in)[N]) {
  Vec<T, N> v;
#pragma unroll
  for (int i = 0; i < Vec<T, N>::kWords; ++i) {
    v.words[i] = detail::pack_word(in + i * (16 / static_cast<int>(sizeof(T))), T{});
  }
  return v;
}

}  // namespace longship::kernels
