#include "models/groot/policy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/rng.h"
#include "models/common/flow_draws.h"
#include "models/groot/mapping.h"
#include "models/groot/plan.h"

namespace longship::models {
namespace {

/// One number per sample of a batch.
template <class T, class Draw>
at::Tensor per_sample(const GrootBatch& batch, at::ScalarType dtype, Draw&& draw) {
  at::Tensor out = at::empty({batch.size()}, at::TensorOptions().dtype(dtype));
  T* values = out.mutable_data_ptr<T>();
  for (size_t i = 0; i < batch.sample_ids.size(); ++i) {
    values[i] = draw(static_cast<uint64_t>(batch.sample_ids[i]));
  }
  return out;
}

}  // namespace

GrootPolicy::GrootPolicy(const GrootConfig& config, const BuildOptions& options)
    : model_((config.check(), config), options) {
  LS_CHECK(!options.fp8, ConfigError,
           "train.fp8: the family '{}' has no FP8 layers yet; set train.fp8: null", config.family);
  if (options.device.type() != at::kMeta) {
    LS_CHECK(options.allocate || !options.initialise, InternalError,
             "GR00T: random weights need memory");
    model_.allocate(options.device, options.allocate);
    if (options.initialise) model_.initialise(options.seed, {});
  }
  parameters_ = groot_parameters(model_);
  model_.keep_activations([&](std::string_view unit) {
    return std::any_of(parameters_.begin(), parameters_.end(), [&](const ParamInfo& info) {
      return info.unit == unit && info.forward_only;
    });
  });
  for (ParamInfo& info : parameters_) {
    info.tensor.set_requires_grad(info.role == ParamRole::kTrainable);
  }
}

std::vector<std::string> GrootPolicy::use_order() {
  return groot_use_order(model_);
}

void GrootPolicy::prepare(Batch& given, const DrawKey& key) const {
  GrootBatch& batch = groot_batch(given);
  model_.prepare(batch);
  const GrootSizes& sizes = model_.sizes();
  if (!batch.noise.defined()) {
    batch.noise = draw_noise(key.seed, RngStream::kNoise, key.step, batch.sample_ids, sizes.horizon,
                             sizes.max_action_dim, at::kCPU);
  }
  const auto key_of = [&](RngStream stream, uint64_t sample) {
    return make_key(key.seed, stream, key.step, sample);
  };
  if (!batch.beta.defined()) {
    batch.beta = per_sample<float>(batch, at::kFloat, [&](uint64_t sample) {
      return static_cast<float>(
          draw_beta(sizes.beta_alpha, sizes.beta_beta, key_of(RngStream::kTime, sample)));
    });
  }
  if (!batch.state_u.defined() && sizes.state_dropout > 0) {
    batch.state_u = per_sample<float>(batch, at::kFloat, [&](uint64_t sample) {
      std::array<double, 1> u{};
      fill_uniform(key_of(RngStream::kDropout, sample), u);
      return static_cast<float>(u[0]);
    });
  }
  if (!batch.dropout_keys.defined() && model_.config().dropout) {
    batch.dropout_keys = per_sample<int64_t>(batch, at::kLong, [&](uint64_t sample) {
      // Number 0 of the sequence is the draw above.
      return static_cast<int64_t>(random_bits(key_of(RngStream::kDropout, sample), 1));
    });
  }
}

void GrootPolicy::prepare_sampling(Batch& given, const DrawKey& key) const {
  GrootBatch& batch = groot_batch(given);
  model_.prepare(batch);
  if (batch.noise.defined()) return;
  batch.noise = draw_noise(key.seed, RngStream::kSample, key.step, batch.sample_ids,
                           model_.sizes().horizon, model_.sizes().max_action_dim, at::kCPU);
}

LossResult GrootPolicy::loss(const Batch& batch) {
  return nn::run_root(model_.hooks(), [&] {
    LossResult result;
    result.loss = model_.flow(groot_batch(batch), /*training=*/true).loss;
    return result;
  });
}

GrootBatch GrootPolicy::ready(const Batch& batch) const {
  GrootBatch own = groot_batch(batch);
  if (own.layout.ready()) return own;
  const at::Device device = own.token_ids.device();
  own.to(at::kCPU);
  model_.prepare(own);
  own.to(device);
  return own;
}

at::Tensor GrootPolicy::real_part(const at::Tensor& chunks) const {
  const GrootConfig& config = model_.config();
  const int64_t width = config.action_dim > 0 ? config.action_dim : model_.sizes().max_action_dim;
  return chunks.narrow(1, 0, std::min(config.data.horizon, model_.sizes().horizon))
      .narrow(2, 0, width)
      .to(at::kFloat);
}

at::Tensor GrootPolicy::sample(const Batch& given, const DrawKey& key) {
  const GrootBatch batch = ready(given);
  at::Tensor noise = batch.noise;
  if (!noise.defined()) {
    noise =
        draw_noise(key.seed, RngStream::kSample, key.step, batch.sample_ids, model_.sizes().horizon,
                   model_.sizes().max_action_dim, batch.token_ids.device());
  }
  return nn::run_root(model_.hooks(), [&] {
    return real_part(model_.integrate(model_.encode(batch), batch, noise));
  });
}

at::Tensor GrootPolicy::sample_draws(const Batch& given, uint64_t seed, int64_t draws) {
  const GrootBatch batch = ready(given);
  return nn::run_root(model_.hooks(), [&] {
    const GrootVlContext context = model_.encode(batch);
    std::vector<at::Tensor> chunks;
    for (int64_t d = 0; d < draws; ++d) {
      const at::Tensor noise = draw_noise(seed, RngStream::kSample, static_cast<uint64_t>(d),
                                          batch.sample_ids, model_.sizes().horizon,
                                          model_.sizes().max_action_dim, batch.token_ids.device());
      chunks.push_back(real_part(model_.integrate(context, batch, noise)));
    }
    return at::stack(chunks);
  });
}

void GrootPolicy::initialise(uint64_t seed, const PreciseSink& sink) {
  model_.initialise(seed, sink);
}

void GrootPolicy::load_weights(const std::filesystem::path& path, const PreciseSink& sink) {
  groot_load_weights(model_, path, sink);
}

std::vector<NamedTensor> GrootPolicy::export_weights(std::span<const NamedTensor> values) {
  return groot_export_weights(model_, values);
}

}  // namespace longship::models
