#include "models/common/flow_draws.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cmath>

namespace longship::models {

double draw_beta(double alpha, double beta, const RngKey& key) {
  std::array<double, 2> u{};
  if (beta == 1.0) {
    fill_uniform(key, std::span(u).first(1));
    return std::pow(u[0], 1.0 / alpha);
  }
  for (uint64_t pair = 0;; ++pair) {
    fill_uniform(key, u, 2 * pair);
    const double x = std::pow(u[0], 1.0 / alpha), y = std::pow(u[1], 1.0 / beta);
    if (x + y <= 1.0 && x + y > 0.0) return x / (x + y);
  }
}

at::Tensor draw_noise(uint64_t seed, RngStream stream, uint64_t step,
                      std::span<const int64_t> sample_ids, int64_t horizon, int64_t dim,
                      at::Device device) {
  const int64_t batch = static_cast<int64_t>(sample_ids.size());
  at::Tensor host = at::empty({batch, horizon, dim}, at::kFloat);
  float* out = host.mutable_data_ptr<float>();
  const size_t row = static_cast<size_t>(horizon * dim);
  for (size_t i = 0; i < sample_ids.size(); ++i) {
    fill_normal(make_key(seed, stream, step, static_cast<uint64_t>(sample_ids[i])),
                std::span(out + i * row, row));
  }
  return host.to(device);
}

}  // namespace longship::models
