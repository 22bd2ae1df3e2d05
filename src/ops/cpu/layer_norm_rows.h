#pragma once
// One row of a layer normalisation and of its gradient, for the CPU oracles of the operators that
// contain one. Sums go from left to right but for what the compiler vectorises.

#include <cmath>
#include <cstdint>

namespace longship::ops::cpu {

/// out = (in - mean) * rstd * factor + shift, rounded to Out; sets mean and rstd.
template <class In, class Out, class Acc>
void normalise_row(const In* in, const Acc* factor, const Acc* shift, double eps, Out* out,
                   Acc& mean, Acc& rstd, int64_t width) {
  Acc sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += static_cast<Acc>(in[i]);
  const Acc m = sum / static_cast<Acc>(width);
  Acc squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; ++i) {
    const Acc d = static_cast<Acc>(in[i]) - m;
    squares += d * d;
  }
  const Acc r = Acc(1) / std::sqrt(squares / static_cast<Acc>(width) + static_cast<Acc>(eps));
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    out[i] = static_cast<Out>((static_cast<Acc>(in[i]) - m) * r * factor[i] + shift[i]);
  }
  mean = m;
  rstd = r;
}

/// Pointers of a backward pass; dh_out is null where it is absent.
template <class T, class G, class Acc>
struct NormGradientData {
  const T* dh_out;
  const G* dy;
  const T* x;
  const Acc *mean, *rstd;
  T* dh;
};

/// Gradient of row `row`, whose factor is `factor`; adds its contributions to the sums.
template <class T, class G, class Acc>
void norm_gradient_row(const NormGradientData<T, G, Acc>& data, int64_t row, int64_t width,
                       const Acc* factor, Acc* dfactor, Acc* dshift) {
  const int64_t at = row * width;
  const G* dy = data.dy + at;
  const T* x = data.x + at;
  const Acc m = data.mean[row];
  const Acc r = data.rstd[row];
  Acc sum_d = 0;
  Acc sum_dx = 0;
#pragma omp simd reduction(+ : sum_d, sum_dx)
  for (int64_t i = 0; i < width; ++i) {
    const Acc g = static_cast<Acc>(dy[i]);
    const Acc x_hat = (static_cast<Acc>(x[i]) - m) * r;
    dfactor[i] += g * x_hat;
    dshift[i] += g;
    sum_d += g * factor[i];
    sum_dx += g * factor[i] * x_hat;
  }
  const Acc mean_d = sum_d / static_cast<Acc>(width);
  const Acc mean_dx = sum_dx / static_cast<Acc>(width);
  for (int64_t i = 0; i < width; ++i) {
    const Acc x_hat = (static_cast<Acc>(x[i]) - m) * r;
    Acc v = r * (static_cast<Acc>(dy[i]) * factor[i] - mean_d - x_hat * mean_dx);
    if (data.dh_out != nullptr) v += static_cast<Acc>(data.dh_out[at + i]);
    data.dh[at + i] = static_cast<T>(v);
  }
}

}  // namespace longship::ops::cpu
