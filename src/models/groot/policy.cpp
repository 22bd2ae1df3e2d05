#include "models/groot/policy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "models/common/flow_draws.h"
#include "models/groot/mapping.h"
#include "models/groot/plan.h"

namespace longship::models {
namespace {

constexpr const char* kFp8Scales = "fp8.scales";

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

at::Tensor rows_tensor(const std::vector<int64_t>& rows) {
  at::Tensor out = at::empty({static_cast<int64_t>(rows.size())}, at::kLong);
  std::copy(rows.begin(), rows.end(), out.mutable_data_ptr<int64_t>());
  return out;
}

/// The slots that a training state speaks of.
std::string slots_text(std::span<const NamedTensor> state) {
  for (const NamedTensor& entry : state) {
    if (entry.name.ends_with(nn::kUnusedCategories)) continue;
    if (entry.tensor.scalar_type() != at::kLong || entry.tensor.numel() == 0) return "(unreadable)";
    const int64_t* rows = entry.tensor.const_data_ptr<int64_t>();
    return fmt::format("{}", fmt::join(rows, rows + entry.tensor.numel(), ", "));
  }
  return "all";
}

}  // namespace

GrootPolicy::GrootPolicy(const GrootConfig& config, const BuildOptions& options)
    : model_((config.check(), config), options) {
  LS_CHECK(!options.fp8 || options.allocate, ConfigError,
           "train.fp8 does not work with sharded weights; use parallel.strategy ddp or zero1");
  if (options.device.type() != at::kMeta) {
    LS_CHECK(options.allocate || !options.initialise, InternalError,
             "GR00T: random weights need memory");
    model_.allocate(options.device, options.allocate);
    if (options.initialise) model_.initialise(options.seed, {});
  }
  parameters_ = groot_parameters(model_);
  const auto without_gradient = [this](std::string_view unit) { return forward_only(unit); };
  model_.keep_activations(without_gradient);
  if (options.fp8 && options.device.type() != at::kMeta) {
    model_.use_fp8(*options.fp8, options.device, without_gradient);
    if (options.initialise) model_.weights_changed();
  }
  model_.set_frozen_layers(groot_frozen_layers(parameters_, model_.sizes()));
  for (ParamInfo& info : parameters_) {
    info.tensor.set_requires_grad(info.role == ParamRole::kTrainable);
  }
}

bool GrootPolicy::forward_only(std::string_view unit) const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [&](const ParamInfo& info) { return info.unit == unit && info.forward_only; });
}

void GrootPolicy::begin_step() {
  if (model_.fp8()) model_.fp8()->begin_step();
}

void GrootPolicy::attach(nn::UnitHooks* hooks) {
  LS_CHECK(hooks == nullptr || model_.fp8() == nullptr, ConfigError,
           "train.fp8 converts all weights at the start of a step and does not work with sharded "
           "ones; use parallel.strategy ddp or zero1");
  model_.set_hooks(hooks);
}

std::vector<std::string> GrootPolicy::use_order() {
  return groot_use_order(model_);
}

void GrootPolicy::prepare(Batch& given, const DrawKey& key) const {
  GrootBatch& batch = groot_batch(given);
  model_.prepare(batch, /*to_buckets=*/true);
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
  model_.prepare(batch, /*to_buckets=*/false);
  if (batch.noise.defined()) return;
  batch.noise = draw_noise(key.seed, RngStream::kSample, key.step, batch.sample_ids,
                           model_.sizes().horizon, model_.sizes().max_action_dim, at::kCPU);
}

at::Tensor GrootPolicy::frozen_features(const Batch& batch) {
  return model_.frozen_features(groot_batch(batch));
}

std::unique_ptr<Batch> GrootPolicy::behind_frozen_part(const Batch& given,
                                                       const at::Tensor& features) const {
  auto out = std::make_unique<GrootBatch>(groot_batch(given));
  out->features = features;
  out->patches = at::Tensor();
  out->token_ids = at::Tensor();
  out->layout.forget_pictures();
  return out;
}

std::vector<int64_t> GrootPolicy::feature_rows(const Batch& batch) const {
  return groot_batch(batch).lengths;
}

int64_t GrootPolicy::num_feature_rows(const Batch& batch) const {
  return groot_batch(batch).layout.pad_index.numel();
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
  const at::Device device = own.state.device();
  own.to(at::kCPU);
  model_.prepare(own, /*to_buckets=*/false);
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
    noise = draw_noise(key.seed, RngStream::kSample, key.step, batch.sample_ids,
                       model_.sizes().horizon, model_.sizes().max_action_dim, batch.state.device());
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
      const at::Tensor noise =
          draw_noise(seed, RngStream::kSample, static_cast<uint64_t>(d), batch.sample_ids,
                     model_.sizes().horizon, model_.sizes().max_action_dim, batch.state.device());
      chunks.push_back(real_part(model_.integrate(context, batch, noise)));
    }
    return at::stack(chunks);
  });
}

std::vector<NamedTensor> GrootPolicy::training_state() {
  std::vector<NamedTensor> out = slot_rows();
  for (const at::Tensor& scales : shared_maxima()) out.push_back({kFp8Scales, scales});
  return out;
}

// Scales and targets, which stand beside the maxima, are equal everywhere then.
std::vector<at::Tensor> GrootPolicy::shared_maxima() {
  if (!model_.fp8() || !model_.fp8()->state().defined()) return {};
  return {model_.fp8()->state()};
}

std::vector<nn::Fp8Measurement> GrootPolicy::fp8_measurements() {
  return model_.fp8() ? model_.fp8()->measurements() : std::vector<nn::Fp8Measurement>{};
}

std::vector<std::pair<std::string, std::vector<at::Tensor>>> GrootPolicy::extra_memory() {
  if (!model_.fp8()) return {};
  return {{"fp8_weights", model_.fp8()->copies()}};
}

std::vector<NamedTensor> GrootPolicy::slot_rows() {
  std::vector<NamedTensor> out;
  for (const GrootSlotTable& table : groot_slot_tables(model_)) {
    for (const GrootSlotTable::Part& part : table.parts) {
      out.push_back({"rows." + part.name, rows_tensor(part.rows)});
    }
  }
  return out;
}

void GrootPolicy::load_training_state(std::span<const NamedTensor> given) {
  std::vector<NamedTensor> state, scales;
  for (const NamedTensor& entry : given) {
    (entry.name == kFp8Scales ? scales : state).push_back(entry);
  }
  const size_t expected = shared_maxima().size();
  LS_CHECK(scales.size() == expected, CheckpointError,
           "the checkpoint has {} tensors of FP8 scales, this run has {}: train.fp8 or "
           "perf.fp8_scaling differs",
           scales.size(), expected);
  check_slot_rows(state);
  if (!scales.empty()) model_.fp8()->load_state(scales.front().tensor);
}

void GrootPolicy::check_slot_rows(std::span<const NamedTensor> state) {
  const std::vector<NamedTensor> own = slot_rows();
  const auto same = [](const NamedTensor& a, const NamedTensor& b) {
    return a.name == b.name && a.tensor.scalar_type() == b.tensor.scalar_type() &&
           at::equal(a.tensor, b.tensor);
  };
  if (own.size() == state.size() &&
      std::is_permutation(own.begin(), own.end(), state.begin(), same)) {
    return;
  }
  const std::string before = slots_text(state), now = slots_text(own);
  throw CheckpointError(fmt::format(
      "the checkpoint was trained with the embodiment slots {}, this run trains {}: a run resumes "
      "with the slots it began with (model.embodiment, model.train_slots, embodiments of "
      "data.datasets as in the checkpoint's config.yaml); for other slots begin a new run from its "
      "weights (model.checkpoint)",
      before, now));
}

void GrootPolicy::initialise(uint64_t seed, const PreciseSink& sink) {
  model_.initialise(seed, sink);
  stored_.reset();
  model_.weights_changed();
}

void GrootPolicy::load_weights(const std::filesystem::path& path, const PreciseSink& sink) {
  std::set<std::string_view> frozen;
  for (const ParamInfo& info : parameters_) {
    if (info.role == ParamRole::kFrozen) frozen.insert(info.name);
  }
  stored_ = groot_load_weights(model_, path, sink,
                               [&](std::string_view name) { return frozen.contains(name); });
  model_.weights_changed();
}

std::vector<NamedTensor> GrootPolicy::export_weights(std::span<const NamedTensor> values) {
  return groot_export_weights(model_, values);
}

}  // namespace longship::models
