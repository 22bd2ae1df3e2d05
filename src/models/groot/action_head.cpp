#include "models/groot/action_head.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/log.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <utility>

#include "base/error.h"
#include "nn/attention.h"
#include "nn/packed_attention.h"
#include "nn/tensor_math.h"
#include "ops/stream_norm.h"

namespace longship::models {
namespace {

constexpr double kVllnEps = 1e-5;
constexpr double kMaxPeriod = 10000.0;
constexpr double kLossEps = 1e-6;

/// The rows of `features` where `kept` [B, S] says so.
GrootRows masked_rows(const at::Tensor& features, const at::Tensor& kept, at::ScalarType gemm,
                      bool always_present) {
  GrootRows out;
  out.rows = features;
  out.mask = at::zeros(kept.sizes(), features.options().dtype(gemm))
                 .masked_fill_(kept.bitwise_not(), nn::kMasked)
                 .unsqueeze(1)
                 .unsqueeze(1);
  if (!always_present) out.present = kept.any(-1).to(gemm).unsqueeze(-1).unsqueeze(-1);
  return out;
}

/// How far each row of the new chunk follows the velocity, [H, 1]: not at all while frozen, then
/// along the ramp, then fully.
at::Tensor rtc_strength(const GrootRtc& rtc, int64_t horizon, const at::TensorOptions& options) {
  const int64_t moving = rtc.overlap_steps - rtc.frozen_steps;
  const at::Tensor r = at::linspace(0.0, 1.0, moving + 2, options);
  const at::Tensor ramp = 1.0 - at::exp(r * -rtc.ramp_rate);
  const at::Tensor whole = ramp.narrow(0, moving + 1, 1).clamp_min(1e-8);
  return at::cat({at::zeros({rtc.frozen_steps}, options), (ramp / whole).narrow(0, 1, moving),
                  at::ones({horizon - rtc.overlap_steps}, options)})
      .unsqueeze(-1);
}

void check_rtc(const GrootRtc& rtc, const at::Tensor& noise) {
  LS_CHECK(rtc.previous.dim() == 3 && rtc.previous.size(0) == noise.size(0) &&
               rtc.previous.size(2) == noise.size(2),
           ShapeError, "real-time chunking: the previous chunk must be [{}, steps, {}]",
           noise.size(0), noise.size(2));
  const int64_t steps = rtc.previous.size(1);
  LS_CHECK(rtc.action_horizon >= 1 && rtc.action_horizon <= steps, ConfigError,
           "real-time chunking: action_horizon is {}, but the previous chunk has {} steps",
           rtc.action_horizon, steps);
  LS_CHECK(rtc.overlap_steps >= 0 && rtc.overlap_steps <= rtc.action_horizon &&
               rtc.overlap_steps <= noise.size(1),
           ConfigError,
           "real-time chunking: rtc_overlap_steps is {}; it must be at most action_horizon, {}, "
           "and the model's horizon, {}",
           rtc.overlap_steps, rtc.action_horizon, noise.size(1));
  LS_CHECK(rtc.frozen_steps >= 0 && rtc.frozen_steps <= rtc.overlap_steps, ConfigError,
           "real-time chunking: rtc_frozen_steps is {}; it must be between 0 and "
           "rtc_overlap_steps, {}",
           rtc.frozen_steps, rtc.overlap_steps);
}

GrootDitSizes dit_sizes(const GrootHeadSizes& s) {
  return {.width = s.width,
          .context = s.backbone_width,
          .out = s.hidden,
          .heads = s.heads,
          .head_dim = s.head_dim,
          .depth = s.depth,
          .interleave_self_attention = s.interleave_self_attention,
          .alternate_vl = s.alternate_vl,
          .attend_text_every_n_blocks = s.attend_text_every_n_blocks,
          .final_dropout = s.final_dropout};
}

}  // namespace

void GrootHeadSizes::check() const {
  LS_CHECK(version == 16 || version == 17, ConfigError,
           "groot: the version of the action head is {}; it must be 16 or 17", version);
  for (const auto& [name, value] : {std::pair{"backbone width", backbone_width},
                                    {"hidden size", hidden},
                                    {"DiT width", width},
                                    {"state width", state_dim},
                                    {"action width", action_dim},
                                    {"horizon", horizon},
                                    {"number of embodiments", embodiments},
                                    {"number of blocks", depth},
                                    {"attend_text_every_n_blocks", attend_text_every_n_blocks},
                                    {"number of time buckets", time_buckets},
                                    {"number of inference steps", inference_steps}}) {
    LS_CHECK(value >= 1, ConfigError, "groot: the action head's {} is {}; it must be at least 1",
             name, value);
  }
  LS_CHECK(width == heads * head_dim && width % 2 == 0, ConfigError,
           "groot: the DiT's width {} must be even and its {} heads times their size {}", width,
           heads, head_dim);
  LS_CHECK(!alternate_vl || interleave_self_attention, ConfigError,
           "groot: alternating cross-attention (use_alternate_vl_dit) needs "
           "interleave_self_attention");
  LS_CHECK(vl_depth >= 0 && (vl_depth == 0 || backbone_width == vl_heads * vl_head_dim),
           ConfigError,
           "groot: the backbone's width {} must be the {} heads of vl_self_attention times their "
           "size {}",
           backbone_width, vl_heads, vl_head_dim);
  LS_CHECK(position_rows == 0 || horizon <= position_rows, ConfigError,
           "groot: a horizon of {} needs as many rows of the position embedding, which has {}",
           horizon, position_rows);
}

GrootHeadPrecision groot_head_precision(int64_t version, at::ScalarType dtype) {
  if (dtype != at::kBFloat16) return {dtype, dtype, dtype};
  return {at::kBFloat16, at::kFloat, version == 16 ? at::kBFloat16 : at::kFloat};
}

std::string groot_head_unit(std::string_view name) {
  const auto block_of = [&](std::string_view prefix) -> std::string_view {
    if (!name.starts_with(prefix)) return {};
    const std::string_view rest = name.substr(prefix.size());
    return rest.substr(0, rest.find('.'));
  };
  const bool modulation = name.find(".norm1.linear.") != std::string_view::npos;
  if (const std::string_view block = block_of("model.transformer_blocks."); !block.empty()) {
    return modulation ? std::string(nn::kRootUnit) : fmt::format("dit.{}", block);
  }
  const std::string_view block = block_of("vl_self_attention.transformer_blocks.");
  return block.empty() ? std::string(nn::kRootUnit) : fmt::format("vl.{}", block);
}

at::Tensor groot_action_time(const at::Tensor& bucket, int64_t width) {
  const at::TensorOptions options = bucket.options().dtype(at::kFloat);
  const int64_t half = width / 2;
  const at::Tensor step = at::log(at::full({}, kMaxPeriod, options)) / static_cast<double>(half);
  const at::Tensor frequency = at::exp(at::arange(half, options).neg() * step);
  const at::Tensor angle = bucket.to(at::kFloat).unsqueeze(-1) * frequency;
  return at::cat({at::sin(angle), at::cos(angle)}, -1);
}

GrootActionEncoder::GrootActionEncoder(int64_t embodiments, int64_t action_dim, int64_t width,
                                       const std::vector<int64_t>& slots)
    : w1_(embodiments, action_dim, width, slots),
      w2_(embodiments, 2 * width, width, slots),
      w3_(embodiments, width, width, slots) {
  register_child("W1", w1_);
  register_child("W2", w2_);
  register_child("W3", w3_);
}

at::Tensor GrootActionEncoder::forward(const at::Tensor& x_t, const at::Tensor& time,
                                       const nn::Categories& embodiment,
                                       at::ScalarType gemm) const {
  const at::Tensor a = w1_.forward(x_t, embodiment, gemm);
  const at::Tensor tau = time.to(a.scalar_type()).unsqueeze(1).expand_as(a);
  const at::Tensor y = at::silu(w2_.forward(at::cat({a, tau}, -1), embodiment, gemm));
  return w3_.forward(y, embodiment, gemm);
}

GrootActionHead::GrootActionHead(const GrootHeadSizes& sizes, const GrootHeadPrecision& precision,
                                 const nn::Fused& fused)
    : sizes_((sizes.check(), sizes)),
      precision_(precision),
      fused_(fused),
      dit_(dit_sizes(sizes)),
      state_encoder_(sizes.embodiments, sizes.state_dim, sizes.hidden, sizes.width, sizes.slots),
      action_encoder_(sizes.embodiments, sizes.action_dim, sizes.width, sizes.slots),
      action_decoder_(sizes.embodiments, sizes.hidden, sizes.hidden, sizes.action_dim,
                      sizes.slots) {
  if (sizes.has_mask_token()) register_parameter("mask_token", mask_token_, {1, 1, sizes.width});
  register_child("model", dit_);
  register_child("state_encoder", state_encoder_);
  register_child("action_encoder", action_encoder_);
  register_child("action_decoder", action_decoder_);
  if (sizes.has_vlln) {
    vlln_ = std::make_unique<nn::LayerNorm>(sizes.backbone_width, kVllnEps);
    register_child("vlln", *vlln_);
  }
  if (sizes.vl_depth > 0) {
    vl_self_attention_ = std::make_unique<GrootVlAttention>(
        sizes.vl_depth, GrootBlockSizes{.width = sizes.backbone_width,
                                        .context = 0,
                                        .heads = sizes.vl_heads,
                                        .head_dim = sizes.vl_head_dim,
                                        .adaptive = false,
                                        .final_dropout = sizes.vl_final_dropout});
    register_child("vl_self_attention", *vl_self_attention_);
  }
  if (sizes.position_rows > 0) {
    register_parameter("position_embedding.weight", position_, {sizes.position_rows, sizes.width});
  }
}

std::vector<std::string> GrootActionHead::units() const {
  std::vector<std::string> out;
  for (int64_t i = 0; i < sizes_.vl_depth; ++i) out.push_back(groot_vl_unit(i));
  for (int64_t i = 0; i < sizes_.depth; ++i) out.push_back(groot_dit_unit(i));
  return out;
}

void GrootActionHead::use_fp8(nn::Fp8Layers& layers) {
  if (vl_self_attention_) vl_self_attention_->use_fp8(layers);
  dit_.use_fp8(layers);
}

GrootRun GrootActionHead::run(const GrootHeadCall& call) const {
  return {precision_, fused_, call.dropout, hooks, recomputed, tap};
}

nn::Categories GrootActionHead::categories(const at::Tensor& embodiment,
                                           const GrootHeadCall& call) const {
  return {nn::local_categories(embodiment, sizes_.slots), call.one_embodiment};
}

void GrootActionHead::check_actions(const at::Tensor& actions, const char* what) const {
  LS_CHECK(actions.dim() == 3 && actions.size(1) == sizes_.horizon &&
               actions.size(2) == sizes_.action_dim,
           ShapeError, "groot: {} must be [B, {}, {}], got {} dimensions, the last of {}", what,
           sizes_.horizon, sizes_.action_dim, actions.dim(), actions.size(-1));
}

at::Tensor GrootActionHead::left_out(const at::Tensor& u) const {
  return sizes_.state_dropout > 0 ? at::lt(u, sizes_.state_dropout) : at::Tensor();
}

GrootVlContext GrootActionHead::encode_context(const at::Tensor& features, const at::Tensor& valid,
                                               const at::Tensor& image,
                                               const GrootHeadCall& call) const {
  LS_CHECK(features.dim() == 3 && features.size(2) == sizes_.backbone_width, ShapeError,
           "groot: backbone features must be [B, S, {}], got {} dimensions, the last of {}",
           sizes_.backbone_width, features.dim(), features.size(-1));
  LS_CHECK(valid.sizes() == features.sizes().slice(0, 2) && image.sizes() == valid.sizes() &&
               valid.scalar_type() == at::kBool && image.scalar_type() == at::kBool,
           ShapeError, "groot: valid and image must be [{}, {}] bool, as the backbone features",
           features.size(0), features.size(1));
  const GrootRun how = run(call);
  at::Tensor x = features;
  if (vlln_ && fused_.norms) {
    x = ops::stream_norm(x, {vlln_->weight, vlln_->bias, /*plus_one=*/false, vlln_->eps()},
                         precision_.stream)
            .second;
  } else {
    x = x.to(precision_.stream);
    if (vlln_) x = vlln_->forward(x, false);
  }
  how.record("act.vlln", x);
  if (vl_self_attention_) x = vl_self_attention_->forward(x, how, call.vl_samples);
  how.record("act.vl_self_attention", x);  // without it, as in the reference, what it would read
  // The rows stay in the stream dtype: their gradient is a sum over all cross blocks.
  GrootVlContext out;
  if (!sizes_.alternate_vl) {
    out.all.rows = x;
    return out;
  }
  const bool flash = x.is_cuda() && nn::flash_refusal(sizes_.head_dim, precision_.gemm).empty();
  if (fused_.attention && call.read.defined() && (flash || x.is_cpu())) {
    return pack_vl_rows(x, call.read, sizes_.horizon + 1);
  }
  out.text = masked_rows(x, at::bitwise_and(valid, image.bitwise_not()), precision_.gemm,
                         call.text_and_images);
  out.image = masked_rows(x, at::bitwise_and(valid, image), precision_.gemm, call.text_and_images);
  return out;
}

GrootActionHead::TimeTerms GrootActionHead::time_terms(const at::Tensor& bucket,
                                                       const GrootRun& run) const {
  TimeTerms out;
  out.sincos = groot_action_time(bucket, sizes_.width);
  const at::Tensor temb = dit_.embed_time(bucket, run);
  run.record("act.temb", temb);
  out.modulations = dit_.modulations(temb, run);
  return out;
}

at::Tensor GrootActionHead::state_token(const at::Tensor& state, const nn::Categories& embodiment,
                                        const at::Tensor& left_out, const GrootRun& run) const {
  LS_CHECK(state.dim() == 3 && state.size(1) * state.size(2) == sizes_.state_dim, ShapeError,
           "groot: the state must be [B, steps, width] with {} values, got {} dimensions and {} "
           "values in all",
           sizes_.state_dim, state.dim(), state.numel());
  const at::Tensor row = state.to(precision_.inputs).reshape({state.size(0), 1, -1});
  at::Tensor token = state_encoder_.forward(row, embodiment, precision_.gemm).to(precision_.stream);
  run.record("act.state_encoder", token);
  if (left_out.defined()) {
    const at::Tensor out = left_out.to(token.scalar_type()).view({-1, 1, 1});
    token = token * (1.0 - out);
    if (mask_token_.defined()) token = token + mask_token_ * out;
  }
  run.record("state_features", token);
  return token;
}

at::Tensor GrootActionHead::velocity_of(const GrootVlContext& context,
                                        const at::Tensor& state_token, const at::Tensor& x_t,
                                        const TimeTerms& time, const nn::Categories& embodiment,
                                        const GrootRun& run, GrootCrossCache* cache) const {
  at::Tensor actions = action_encoder_.forward(x_t, time.sincos, embodiment, precision_.gemm);
  run.record("act.action_encoder", actions);
  if (position_.defined()) actions = actions + position_.narrow(0, 0, sizes_.horizon);
  const at::Tensor x = at::cat({state_token, actions.to(precision_.stream)}, 1);
  const int64_t first_site = kGrootSitesPerBlock * sizes_.vl_depth;
  const at::Tensor y = dit_.forward(x, time.modulations, context, run, first_site, cache);
  // The decoder works row by row, so the state's row is left out before it.
  return action_decoder_.forward(y.narrow(1, 1, sizes_.horizon), embodiment, precision_.gemm)
      .to(precision_.stream);
}

at::Tensor GrootActionHead::velocity(const GrootVlContext& context, const at::Tensor& state,
                                     const at::Tensor& x_t, const at::Tensor& bucket,
                                     const at::Tensor& embodiment, const at::Tensor& left_out,
                                     const GrootHeadCall& call) const {
  check_actions(x_t, "noisy actions");
  const GrootRun how = run(call);
  const nn::Categories slots = categories(embodiment, call);
  const at::Tensor token = state_token(state, slots, left_out, how);
  return velocity_of(context, token, x_t, time_terms(bucket, how), slots, how, nullptr);
}

GrootFlow GrootActionHead::flow(const GrootVlContext& context, const GrootFlowInputs& inputs,
                                const GrootHeadCall& call) const {
  check_actions(inputs.actions, "actions");
  check_actions(inputs.noise, "noise");
  check_actions(inputs.action_mask, "the action mask");
  const auto rounded = [&](const at::Tensor& t) { return t.to(precision_.inputs); };
  const at::Tensor noise = rounded(inputs.noise), actions = rounded(inputs.actions);
  const at::Tensor mask = rounded(inputs.action_mask);
  GrootFlow out;
  out.time = (1.0 - rounded(inputs.beta)) * sizes_.noise_s;
  out.bucket = (out.time * static_cast<double>(sizes_.time_buckets)).to(at::kLong);
  const at::Tensor t = out.time.view({-1, 1, 1});
  out.x_t = (1.0 - t) * noise + t * actions;
  out.target = actions - noise;
  out.pred = velocity(context, inputs.state, out.x_t, out.bucket, inputs.embodiment,
                      inputs.left_out, call);
  const at::Tensor difference = out.pred - out.target;
  out.action_loss = difference * difference * mask;
  out.loss = at::sum(out.action_loss) / (at::sum(mask) + kLossEps);
  return out;
}

at::Tensor GrootActionHead::integrate(const GrootVlContext& context, const at::Tensor& state,
                                      const at::Tensor& embodiment, const at::Tensor& noise,
                                      const GrootHeadCall& call, const GrootRtc* rtc) const {
  check_actions(noise, "noise");
  const GrootRun how = run(call);
  const nn::Categories slots = categories(embodiment, call);
  at::Tensor x = noise.to(precision_.stream), strength;
  if (rtc != nullptr) {
    check_rtc(*rtc, noise);
    const int64_t overlap = rtc->overlap_steps;
    const at::Tensor taken =
        rtc->previous.narrow(1, rtc->action_horizon - overlap, overlap).to(x.scalar_type());
    x = at::cat({taken, x.narrow(1, overlap, sizes_.horizon - overlap)}, 1);
    strength = rtc_strength(*rtc, sizes_.horizon, x.options());
  }
  const int64_t steps = sizes_.inference_steps;
  std::vector<at::Tensor> buckets;
  for (int64_t s = 0; s < steps; ++s) {
    const double time = static_cast<double>(s) / static_cast<double>(steps);
    const int64_t bucket = static_cast<int64_t>(time * static_cast<double>(sizes_.time_buckets));
    buckets.push_back(at::full({1}, bucket, embodiment.options()));
  }
  // The times are the same for every sample, so one product gives the modulations of all steps.
  const TimeTerms all = time_terms(at::cat(buckets), how);
  const at::Tensor token = state_token(state, slots, {}, how);
  GrootCrossCache cache;
  for (int64_t s = 0; s < steps; ++s) {
    TimeTerms one;
    one.sincos = all.sincos.narrow(0, s, 1);
    for (const GrootModulation& m : all.modulations) {
      one.modulations.push_back({m.scale.narrow(0, s, 1), m.shift.narrow(0, s, 1)});
    }
    const at::Tensor change = velocity_of(context, token, x, one, slots, how, &cache) *
                              (1.0 / static_cast<double>(steps));
    x = x + (strength.defined() ? change * strength : change);
  }
  return x;
}

}  // namespace longship::models
