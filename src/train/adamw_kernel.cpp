#include "train/adamw_kernel.h"

#include <bit>
#include <cmath>

// AVX2 without FMA, so that both clones round alike.
#if defined(__x86_64__) && defined(__GNUC__)
#define LS_CLONES __attribute__((target_clones("avx2", "default"), optimize("O3", "no-math-errno")))
#else
#define LS_CLONES
#endif

namespace longship::train {

LS_CLONES
void adamw_update(float* p, const float* g, float* m, float* v, float* ema, int64_t n,
                  const AdamWScalars& scalars) {
  const AdamWScalars s = scalars;
  for (int64_t i = 0; i < n; ++i) {
    const float grad = g[i] * s.clip;
    const float mean = m[i] + s.one_minus_beta1 * (grad - m[i]);
    const float square = s.beta2 * v[i] + s.one_minus_beta2 * (grad * grad);
    m[i] = mean;
    v[i] = square;
    p[i] = p[i] * s.decay - s.step_size * mean / (std::sqrt(square) / s.sqrt_correction2 + s.eps);
  }
  if (ema == nullptr) return;
  for (int64_t i = 0; i < n; ++i) ema[i] = s.ema_keep * ema[i] + s.ema_take * p[i];
}

LS_CLONES
void decay_update(float* p, float* ema, int64_t n, const AdamWScalars& scalars) {
  const AdamWScalars s = scalars;
  for (int64_t i = 0; i < n; ++i) p[i] *= s.decay;
  if (ema == nullptr) return;
  for (int64_t i = 0; i < n; ++i) ema[i] = s.ema_keep * ema[i] + s.ema_take * p[i];
}

LS_CLONES
double sum_of_squares(const float* x, int64_t n) {
  double sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t k = 0; k < 8; ++k) {
      const double value = x[i + k];
      sums[k] += value * value;
    }
  }
  for (; i < n; ++i) {
    const double value = x[i];
    sums[i % 8] += value * value;
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

LS_CLONES
void to_bf16(const float* x, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
    const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
    out[i] = static_cast<uint16_t>(is_nan ? ((bits >> 16) | 0x40U) : (rounded >> 16));
  }
}

LS_CLONES
void from_bf16(const uint16_t* x, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(x[i]) << 16);
  }
}

}  // namespace longship::train
