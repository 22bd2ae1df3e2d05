#include "models/pi05/policy.h"

#include <ATen/ops/mean.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "models/pi05/mapping.h"
#include "models/pi05/plan.h"
#include "models/pi05/sampling.h"
#include "nn/tensor_math.h"
#include "ops/augment.h"
#include "ops/flow.h"

namespace longship::models {
namespace {

const Pi05Batch& pi05_batch(const Batch& batch) {
  const auto* own = dynamic_cast<const Pi05Batch*>(&batch);
  LS_CHECK(own != nullptr, InternalError, "pi05: the batch was made by another family's transform");
  return *own;
}
Pi05Batch& pi05_batch(Batch& batch) {
  return const_cast<Pi05Batch&>(pi05_batch(static_cast<const Batch&>(batch)));
}

/// A batch with the pictures that training sees, or nothing where they are in it already.
std::optional<Pi05Batch> with_augmented_pictures(const Pi05Batch& batch) {
  if (!batch.augment.defined()) return std::nullopt;
  Pi05Batch out = batch;
  out.images = ops::augment_pictures(batch.images, batch.augment, batch.images.size(2),
                                     batch.images.size(3));
  out.augment = at::Tensor();
  return out;
}

}  // namespace

Pi05Policy::Pi05Policy(const Pi05Config& config, const BuildOptions& options)
    : model_((config.check(), config), options) {
  LS_CHECK(!config.masks_dims() || config.action_dim > 0, ConfigError,
           "model.parity loongforge and model.loss_dims real average the loss over the real action "
           "dims, but model.action_dim is 0 and no dataset has set it");
  if (options.device.type() != at::kMeta) {
    LS_CHECK(options.allocate || !options.initialise, InternalError,
             "pi05: random weights need memory");
    model_.allocate(options.device, options.allocate);
    if (options.initialise) model_.initialise(options.seed, {});
  }
  parameters_ = pi05_parameters(model_);
  model_.keep_activations([&](std::string_view unit) {
    return std::any_of(parameters_.begin(), parameters_.end(), [&](const ParamInfo& info) {
      return info.unit == unit && info.forward_only;
    });
  });
  for (ParamInfo& info : parameters_) {
    info.tensor.set_requires_grad(info.role == ParamRole::kTrainable);
    const bool sparse = info.name == kPi05Embedding && model_.fused().embedding &&
                        info.role == ParamRole::kTrainable;
    if (!sparse) continue;
    model_.embedding_grad = at::zeros_like(info.tensor);
    model_.embedding_flags =
        at::zeros({info.tensor.size(0)}, info.tensor.options().dtype(at::kByte));
    info.row_sparse =
        RowSparseGrad{model_.embedding_grad, model_.embedding_flags, model_.sizes().token_limit};
  }
}

std::vector<std::string> Pi05Policy::use_order() {
  return pi05_use_order(model_);
}

void Pi05Policy::attach(nn::UnitHooks* hooks) {
  LS_CHECK(hooks == nullptr || model_.fp8() == nullptr, ConfigError,
           "train.fp8 converts all weights at the start of a step and does not work with sharded "
           "ones; use parallel.strategy ddp or zero1");
  model_.hooks = hooks;
}

void Pi05Policy::initialise(uint64_t seed, const PreciseSink& sink) {
  model_.initialise(seed, sink);
}

void Pi05Policy::prepare(Batch& batch, const DrawKey& key) const {
  Pi05Batch& own = pi05_batch(batch);
  model_.prepare(own, true);
  if (!own.noise.defined()) {
    own.noise = draw_noise(key.seed, RngStream::kNoise, key.step, own.sample_ids,
                           own.actions.size(1), model_.sizes().max_action_dim, at::kCPU);
  }
  if (!own.time.defined()) {
    own.time = draw_time(model_.config(), key.seed, key.step, own.sample_ids, at::kCPU);
  }
}

void Pi05Policy::prepare_sampling(Batch& batch, const DrawKey& key) const {
  Pi05Batch& own = pi05_batch(batch);
  model_.prepare(own, false);  // one observation without padding rows is dense
  if (own.noise.defined()) return;
  own.noise = draw_noise(key.seed, RngStream::kSample, key.step, own.sample_ids,
                         model_.config().horizon(), model_.sizes().max_action_dim, at::kCPU);
}

void Pi05Policy::begin_step() {
  if (model_.fp8()) model_.fp8()->begin_step();
}

std::vector<NamedTensor> Pi05Policy::training_state() {
  if (!model_.fp8() || !model_.fp8()->state().defined()) return {};
  return {{"fp8.scales", model_.fp8()->state()}};
}

std::vector<at::Tensor> Pi05Policy::shared_maxima() {
  // Scales and targets, which stand beside the maxima, are equal everywhere then.
  if (!model_.fp8() || !model_.fp8()->state().defined()) return {};
  return {model_.fp8()->state()};
}

void Pi05Policy::load_training_state(std::span<const NamedTensor> state) {
  const size_t expected = training_state().size();
  LS_CHECK(state.size() == expected && (state.empty() || state[0].name == "fp8.scales"),
           CheckpointError,
           "the checkpoint has {} tensors of training state, this run has {}: "
           "train.fp8 differs",
           state.size(), expected);
  if (!state.empty()) model_.fp8()->load_state(state[0].tensor);
}

std::vector<nn::Fp8Measurement> Pi05Policy::fp8_measurements() {
  return model_.fp8() ? model_.fp8()->measurements() : std::vector<nn::Fp8Measurement>{};
}

std::vector<std::pair<std::string, std::vector<at::Tensor>>> Pi05Policy::extra_memory() {
  if (!model_.fp8()) return {};
  return {{"fp8_weights", model_.fp8()->copies()}};
}

Pi05Flow Pi05Policy::flow(const Pi05Batch& batch) const {
  LS_CHECK(batch.noise.defined() && batch.time.defined(), InternalError,
           "pi05: the batch has no noise or time; prepare() draws them");
  return model_.flow(batch, batch.noise, batch.time);
}

at::Tensor Pi05Policy::real_dims(const at::Tensor& actions) const {
  const int64_t dim = model_.config().action_dim;
  return dim > 0 ? actions.narrow(-1, 0, dim) : actions;
}

at::Tensor Pi05Policy::reduce(const Pi05Flow& flow, const Pi05Batch& batch) const {
  if (batch.dim_is_real.defined()) {
    // Mean over each sample's own dimensions first, so that every sample counts the same.
    const at::Tensor real = batch.dim_is_real.to(flow.elem.scalar_type());  // [B, D]
    const at::Tensor steps = at::sum(flow.elem * real.unsqueeze(1), {-1}) / real.sum(-1, true);
    if (!model_.config().mask_action_padding) return at::mean(steps);
    const at::Tensor inside = batch.action_is_pad.logical_not().to(steps.scalar_type());
    return at::sum(steps * inside) / inside.sum().clamp_min(1);
  }
  const at::Tensor elem = model_.config().masks_dims() ? real_dims(flow.elem) : flow.elem;
  if (!model_.config().mask_action_padding) return at::mean(elem);
  const at::Tensor valid = batch.action_is_pad.logical_not().to(elem.scalar_type());
  return at::sum(at::mean(elem, {-1}) * valid) / valid.sum().clamp_min(1);
}

at::Tensor Pi05Policy::with_unreached_parameters(at::Tensor loss, const Pi05Batch& batch) const {
  const bool no_images = batch.images.size(0) == 0, no_text = batch.token_ids.size(0) == 0;
  if (!no_images && !no_text) return loss;
  for (const ParamInfo& info : parameters_) {
    if (info.role != ParamRole::kTrainable) continue;
    const std::string_view name = info.name;
    const bool vision = name.find("vision_tower") != std::string_view::npos ||
                        name.find("multi_modal_projector") != std::string_view::npos;
    const bool prefix = name.starts_with("paligemma_with_expert.paligemma.");
    // The parameters of layers that did not run may be elsewhere; whoever watches the layers knows
    // that these have no gradient.
    if (model_.hooks != nullptr && info.unit != nn::kRootUnit) continue;
    const bool unreached = (no_images && vision) || (no_text && name == kPi05Embedding) ||
                           (no_images && no_text && prefix);
    if (unreached) loss = loss + at::sum(info.tensor.flatten().narrow(0, 0, 1)).to(at::kFloat) * 0;
  }
  return loss;
}

LossResult Pi05Policy::loss(const Batch& batch) {
  return nn::run_root(model_.hooks, [&] { return loss_of(pi05_batch(batch)); });
}

LossResult Pi05Policy::loss_of(const Pi05Batch& given) {
  const std::optional<Pi05Batch> changed = with_augmented_pictures(given);
  const Pi05Batch& own = changed ? *changed : given;
  if (model_.fused().loss && !model_.tap && !own.dim_is_real.defined()) return fused_loss(own);
  const Pi05Flow terms = flow(own);
  LossResult result;
  result.loss = with_unreached_parameters(reduce(terms, own), own);
  const int64_t dim = model_.config().action_dim;
  if (!model_.config().masks_dims() && !own.dim_is_real.defined() && dim > 0 &&
      dim < model_.sizes().max_action_dim) {
    result.metrics.emplace_back("loss_real_dims", at::mean(real_dims(terms.elem.detach())));
  }
  return result;
}

LossResult Pi05Policy::fused_loss(const Pi05Batch& batch) {
  const Pi05Config& config = model_.config();
  const int64_t width = batch.actions.size(2);
  const std::optional<at::Tensor> is_pad =
      config.mask_action_padding ? std::optional<at::Tensor>(batch.action_is_pad) : std::nullopt;
  const at::Tensor x_t = ops::flow_mix(batch.actions, batch.noise, batch.time);
  const at::Tensor v = model_.predict(batch, x_t, batch.time);
  const auto mean_over = [&](const at::Tensor& prediction, int64_t dims) {
    return std::get<0>(ops::flow_loss(prediction, batch.actions, batch.noise, dims, is_pad));
  };
  LossResult result;
  const bool real_only = config.masks_dims();
  result.loss =
      with_unreached_parameters(mean_over(v, real_only ? config.action_dim : width), batch);
  if (!real_only && config.action_dim > 0 && config.action_dim < width) {
    result.metrics.emplace_back("loss_real_dims", mean_over(v.detach(), config.action_dim));
  }
  return result;
}

at::Tensor Pi05Policy::sample_draws(const Batch& batch, uint64_t seed, int64_t draws) {
  return nn::run_root(model_.hooks, [&] { return draws_of(pi05_batch(batch), seed, draws); });
}

at::Tensor Pi05Policy::draws_of(const Pi05Batch& own, uint64_t seed, int64_t draws) const {
  const PrefixLayout where = model_.layout(own);
  const PrefixCache cache = model_.encode_prefix(own, where);
  std::vector<at::Tensor> chunks;
  for (int64_t d = 0; d < draws; ++d) {
    at::Tensor noise = own.noise;
    if (!noise.defined()) {
      noise = draw_noise(seed, RngStream::kSample, static_cast<uint64_t>(d), own.sample_ids,
                         model_.config().horizon(), model_.sizes().max_action_dim,
                         own.token_ids.device());
    }
    chunks.push_back(real_dims(model_.integrate(cache, where, own.state, noise)));
  }
  return at::stack(chunks);
}

at::Tensor Pi05Policy::sample(const Batch& batch, const DrawKey& key) {
  const Pi05Batch& own = pi05_batch(batch);
  const PrefixLayout where = model_.layout(own);
  at::Tensor noise = own.noise;
  if (!noise.defined()) {
    noise = draw_noise(key.seed, RngStream::kSample, key.step, own.sample_ids,
                       model_.config().horizon(), model_.sizes().max_action_dim,
                       own.token_ids.device());
  }
  return nn::run_root(model_.hooks, [&] {
    return real_dims(model_.integrate(model_.encode_prefix(own, where), where, own.state, noise));
  });
}

void Pi05Policy::load_weights(const std::filesystem::path& path, const PreciseSink& sink) {
  pi05_load_weights(model_, path, sink);
}

std::vector<NamedTensor> Pi05Policy::export_weights(std::span<const NamedTensor> values) {
  return pi05_export_weights(model_, values);
}

}  // namespace longship::models
