#pragma once
// Runs of N consecutive elements as fp32: 16-byte accesses for N = 8 (one for bf16, two for fp32),
// plain element accesses for N = 1. Shared by the element-wise kernels.

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

namespace longship::kernels::pack {

/// Elements per thread access where width and pointers allow 16-byte accesses.
constexpr int kWide = 8;

/// N elements as they stand in memory, still unconverted: what a thread keeps of loads in flight.
template <class T, int N>
struct Raw {
  static_assert(N % kWide == 0, "one element or whole 16-byte accesses");
  static constexpr int kWords = N * static_cast<int>(sizeof(T)) / 16;
  uint4 words[kWords];
};
template <class T>
struct Raw<T, 1> {
  T value;
};

template <int N, class T>
__device__ __forceinline__ Raw<T, N> fetch(const T* p) {
  Raw<T, N> raw;
  if constexpr (N == 1) {
    raw.value = p[0];
  } else {
#pragma unroll
    for (int i = 0; i < Raw<T, N>::kWords; ++i) raw.words[i] = reinterpret_cast<const uint4*>(p)[i];
  }
  return raw;
}

template <class T, int N>
__device__ __forceinline__ void expand(const Raw<T, N>& raw, float (&v)[N]) {
  if constexpr (N == 1) {
    v[0] = static_cast<float>(raw.value);
  } else {
#pragma unroll
    for (int i = 0; i < Raw<T, N>::kWords; ++i) {
      const uint32_t words[4] = {raw.words[i].x, raw.words[i].y, raw.words[i].z, raw.words[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (std::is_same_v<T, float>) {
          v[4 * i + j] = __uint_as_float(words[j]);
        } else {  // bf16 is the upper half of fp32
          v[8 * i + 2 * j] = __uint_as_float(words[j] << 16);
          v[8 * i + 2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
        }
      }
    }
  }
}

template <int N, class T>
__device__ __forceinline__ void load(const T* p, float (&v)[N]) {
  expand(fetch<N>(p), v);
}

/// p points to device memory. Rounds to nearest even where T is bf16.
template <int N, class T>
__device__ __forceinline__ void store(T* p, const float (&v)[N]) {
  static_assert(N == 1 || N % kWide == 0, "one element or whole 16-byte accesses");
  if constexpr (N == 1) {
    p[0] = static_cast<T>(v[0]);
  } else if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      reinterpret_cast<float4*>(p)[i] =
          make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(v[8 * i + 2 * j], v[8 * i + 2 * j + 1]);
        words[j] = reinterpret_cast<const uint32_t&>(pair);
      }
      // Written out because the compiler splits the plain store into four in some loops. No memory
      // clobber: nothing that a kernel stores this way is read again by it.
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p + 8 * i), "r"(words[0]),
                   "r"(words[1]), "r"(words[2]), "r"(words[3]));
    }
  }
}

/// Where flat pack number `first + offset` stands in rows of `per_row` packs. One 64-bit division
/// for the whole block, then 32-bit ones. offset < 2^30, per_row < 2^31.
class RowWalk {
 public:
  struct Place {
    int64_t row;
    uint32_t pack;
  };
  __device__ __forceinline__ RowWalk(int64_t first, uint32_t per_row)
      : per_row_(per_row),
        row_(first / per_row),
        rest_(static_cast<uint32_t>(first - row_ * per_row)) {}
  __device__ __forceinline__ Place at(uint32_t offset) const {
    const uint32_t flat = rest_ + offset;
    const uint32_t rows = flat / per_row_;
    return {row_ + rows, flat - rows * per_row_};
  }

 private:
  uint32_t per_row_;
  int64_t row_;
  uint32_t rest_;
};

/// True where every pointer is null or a multiple of 16.
template <class... Pointers>
inline bool aligned16(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace longship::kernels::pack
