#include "models/pi05/sampling.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/core.h>

#include <array>
#include <cmath>

#include "models/pi05/model.h"
#include "nn/tensor_math.h"

namespace longship::models {

at::Tensor draw_time(const Pi05Config& config, uint64_t seed, uint64_t step,
                     std::span<const int64_t> sample_ids, at::Device device) {
  at::Tensor host = at::empty({static_cast<int64_t>(sample_ids.size())}, at::kFloat);
  float* out = host.mutable_data_ptr<float>();
  for (size_t i = 0; i < sample_ids.size(); ++i) {
    const RngKey key = make_key(seed, RngStream::kTime, step, static_cast<uint64_t>(sample_ids[i]));
    const double x = draw_beta(config.time_alpha, config.time_beta, key);
    out[i] = static_cast<float>(config.time_scale * x + config.time_offset);
  }
  return host.to(device);
}

std::vector<float> euler_times(int64_t num_steps, bool accumulate) {
  std::vector<float> times;
  const double dt = -1.0 / static_cast<double>(num_steps);
  float time = 1.0f;
  for (int64_t step = 0; step < num_steps; ++step) {
    times.push_back(accumulate ? time : static_cast<float>(1.0 + static_cast<double>(step) * dt));
    time += static_cast<float>(dt);
  }
  return times;
}

at::Tensor Pi05Model::integrate(const PrefixCache& cache, const PrefixLayout& layout,
                                const at::Tensor& state, const at::Tensor& noise) const {
  const int64_t steps = config_.num_inference_steps;
  const float dt = static_cast<float>(-1.0 / static_cast<double>(steps));
  // The times are the same for every sample, so one product gives the modulations of all steps.
  const std::vector<float> times = euler_times(steps, config_.parity == "openpi");
  std::vector<at::Tensor> values;
  for (const float t : times) values.push_back(at::full({1}, t, noise.options()));
  record("sample.time", at::cat(values));
  const TimeTerms all = time_terms(at::cat(values));
  at::Tensor x = noise;
  for (int64_t s = 0; s < steps; ++s) {
    const auto row = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, s, 1) : t; };
    TimeTerms one;
    one.sincos = row(all.sincos);
    for (const Modulation& m : all.modulations) {
      one.modulations.push_back({row(m.scale), row(m.shift), row(m.gate)});
    }
    const at::Tensor v = velocity(cache, layout, state, x, one);
    if (tap) {
      record(fmt::format("sample.{}.x", s), x);
      record(fmt::format("sample.{}.v", s), v);
    }
    x = x + v * dt;
  }
  return x;
}

}  // namespace longship::models
