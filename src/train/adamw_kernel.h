#pragma once
// Element loops of the CPU optimizer over plain pointers. Compiled for several instruction sets;
// all give the same bits, because no set may fuse a multiplication with an addition.

#include <cstdint>

namespace longship::train {

struct AdamWScalars {
  float decay;  // 1 - lr * wd
  float clip;   // factor of the gradient
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float step_size;         // lr / (1 - beta1^t)
  float sqrt_correction2;  // sqrt(1 - beta2^t)
  float eps;
  float ema_keep;  // d
  float ema_take;  // 1 - d
};

/// p, m, v, ema: fp32 [n]; g: fp32 [n]; ema may be null.
void adamw_update(float* p, const float* g, float* m, float* v, float* ema, int64_t n,
                  const AdamWScalars& s);
/// p *= decay, and the moving average of p; ema may be null.
void decay_update(float* p, float* ema, int64_t n, const AdamWScalars& s);
/// Sum of squares, eight interleaved double accumulators added in a fixed order.
double sum_of_squares(const float* x, int64_t n);
/// bf16 bits (round to nearest even) of fp32, and back.
void to_bf16(const float* x, uint16_t* out, int64_t n);
void from_bf16(const uint16_t* x, float* out, int64_t n);

}  // namespace longship::train
