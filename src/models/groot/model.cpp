#include "models/groot/model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/strings.h"
#include "models/common/parameter_patterns.h"
#include "models/common/strict_weights.h"
#include "models/groot/dropout.h"
#include "models/groot/embodiment.h"
#include "models/groot/mapping.h"
#include "models/groot/plan.h"
#include "nn/functions.h"
#include "nn/init.h"
#include "nn/packed_attention.h"

namespace longship::models {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Each part asks for itself whether its heads fit; packed rows of the head are for bf16 alone.
nn::Fused supported(nn::Fused fused, at::ScalarType dtype) {
  fused.attention = fused.attention && dtype == at::kBFloat16;
  return fused;
}

}  // namespace

std::vector<LostKernel> groot_lost_kernels(const GrootSizes& s, const nn::Fused& asked,
                                           at::ScalarType dtype) {
  if (!asked.attention) return {};
  constexpr const char* kKey = "perf.flash_attention";
  if (dtype != at::kBFloat16) return {{kKey, nn::flash_refusal(s.dit.head_dim, dtype)}};
  std::vector<LostKernel> out;
  const auto check = [&](std::string_view where, int64_t head_dim) {
    const std::string why = nn::flash_refusal(head_dim, dtype);
    if (!why.empty()) out.push_back({kKey, fmt::format("{}: {}", where, why)});
  };
  check("the vision tower", s.vision.width / s.vision.num_heads);
  check("the text layers", s.text.head_dim);
  if (s.vl) check("the self-attention over the backbone's rows", s.vl->head_dim);
  check("the diffusion transformer", s.dit.head_dim);
  return out;
}

GrootHeadSizes groot_head_sizes(const GrootSizes& s) {
  GrootHeadSizes out;
  out.version = static_cast<int64_t>(s.version);
  out.backbone_width = s.text.width;
  out.hidden = s.hidden;
  out.width = s.dit.width();
  out.state_dim = s.state_history * s.max_state_dim;
  out.action_dim = s.max_action_dim;
  out.horizon = s.horizon;
  out.embodiments = s.embodiments;
  out.heads = s.dit.num_heads;
  out.head_dim = s.dit.head_dim;
  out.depth = s.dit.depth;
  out.interleave_self_attention = s.interleave_self;
  out.alternate_vl = s.alternate_vl;
  out.attend_text_every_n_blocks = s.text_every;
  out.vl_depth = s.vl ? s.vl->depth : 0;
  if (s.vl) {
    out.vl_heads = s.vl->num_heads;
    out.vl_head_dim = s.vl->head_dim;
    out.vl_dropout = s.vl->dropout;
    out.vl_final_dropout = s.vl->final_dropout;
  }
  out.has_vlln = s.vlln;
  out.position_rows = s.add_positions ? s.position_rows : 0;
  out.noise_s = s.noise_s;
  out.time_buckets = s.time_buckets;
  out.inference_steps = s.inference_steps;
  out.dropout = s.dit.dropout;
  out.final_dropout = s.dit.final_dropout;
  out.state_dropout = s.state_dropout;
  return out;
}

GrootHeadSizes groot_head_sizes(const GrootConfig& config) {
  GrootHeadSizes out = groot_head_sizes(config.sizes());
  out.slots = config.trained_slots();
  // As the reference, which keeps parts that do not train in evaluation mode.
  if (!config.tune_diffusion) out.dropout = 0;
  if (!config.tune_vlln) out.vl_dropout = 0;
  return out;
}

GrootHeadPrecision groot_head_precision(const GrootConfig& config, at::ScalarType dtype) {
  GrootHeadPrecision out = groot_head_precision(static_cast<int64_t>(config.version), dtype);
  if (!config.bf16_inputs) out.inputs = out.stream;
  return out;
}

at::ScalarType groot_parameter_dtype(at::ScalarType dtype, std::string_view name) {
  if (dtype != at::kBFloat16 || !name.starts_with("action_head.")) return dtype;
  name = name.substr(0, name.find(nn::kUnusedCategories));
  const bool precise = contains(name, "vlln.") || contains(name, "norm1.weight") ||
                       contains(name, "norm1.bias") || contains(name, "norm3.") ||
                       contains(name, "position_embedding.") || contains(name, "mask_token") ||
                       name.ends_with(".b");
  return precise ? at::kFloat : dtype;
}

GrootModel::GrootModel(const GrootConfig& config, const BuildOptions& options)
    : config_(config),
      sizes_(config.sizes()),
      dtype_(options.dtype),
      fused_(supported(options.fused, options.dtype)),
      token_bucket_(options.token_bucket),
      grid_cache_(options.grid_cache ? std::make_unique<GrootGridCache>(options.device.is_cuda())
                                     : nullptr),
      backbone_(make_groot_backbone(sizes_, config.final_norm())),
      head_(groot_head_sizes(config), groot_head_precision(config, options.dtype), fused_) {
  warn_lost_kernels(options.device, groot_lost_kernels(sizes_, options.fused, options.dtype));
  register_child("backbone", *backbone_);
  register_child("action_head", head_);
  allocate(at::kMeta);
  choose_recomputed(options.recompute);
  head_.recomputed = [this](std::string_view unit) { return recomputed(unit); };
}

void GrootModel::choose_recomputed(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    bool matched = false;
    for (const std::string& unit : groot_units(sizes_)) {
      const bool hit = pattern == "full" || (pattern == "vit" && unit.starts_with("vision.")) ||
                       matches_parameter(pattern, unit);
      if (!hit) continue;
      matched = true;
      recomputed_.push_back(unit);
    }
    LS_CHECK(matched || pattern == "none", ConfigError,
             "train.recompute: '{}' matches no unit; use none, vit, full, or patterns over "
             "vision.<l>, text.<l>, vl.<l>, dit.<l>",
             pattern);
  }
}

bool GrootModel::recomputed(std::string_view unit) const {
  return std::find(recomputed_.begin(), recomputed_.end(), unit) != recomputed_.end();
}

void GrootModel::keep_activations(const std::function<bool(std::string_view)>& forward_only) {
  std::erase_if(recomputed_, [&](const std::string& unit) { return forward_only(unit); });
}

void GrootModel::allocate(at::Device device, bool memory) {
  materialise(
      device, [&](std::string_view name) { return groot_parameter_dtype(dtype_, name); }, memory);
}

void GrootModel::initialise(uint64_t seed, const PreciseSink& sink) {
  const double depth = static_cast<double>(sizes_.dit.depth);
  const auto fill = [&](const std::string& name, at::Tensor& parameter) {
    const auto normal = [&](double std) { nn::init_normal(parameter, name, seed, std); };
    const bool norm = contains(name, "norm.weight") || contains(name, "norm1.weight") ||
                      contains(name, "norm2.weight") || contains(name, "norm3.weight") ||
                      contains(name, "layernorm.weight") || contains(name, "vlln.weight") ||
                      contains(name, "mlp1.0.weight");
    if (norm && parameter.dim() == 1) return nn::init_constant(parameter, 1);
    if (name.ends_with("bias") || name.ends_with(".b")) return nn::init_constant(parameter, 0);
    // Category-specific layers and tables as upstream begins them.
    const bool table = contains(name, "embed_tokens.") || contains(name, "position_embedding.") ||
                       contains(name, "pos_embed.") || contains(name, "mask_token") ||
                       name.ends_with(".W") || contains(name, "probe");
    if (table) return normal(0.02);
    double std = 1.0 / std::sqrt(static_cast<double>(parameter.numel() / parameter.size(0)));
    const bool ends_branch = contains(name, "to_out.") || contains(name, "ff.net.2.") ||
                             contains(name, "o_proj.") || contains(name, "down_proj.") ||
                             contains(name, "out_proj.") || contains(name, "fc2.");
    if (ends_branch) std /= std::sqrt(2.0 * depth);
    normal(std);
  };
  const std::vector<GrootSlotTable> tables = groot_slot_tables(*this);
  initialise_parameters(*this, sink, [&](const std::string& name, at::Tensor& parameter) {
    for (const GrootSlotTable& table : tables) {
      for (const GrootSlotTable::Part& part : table.parts) {
        if (part.name != name) continue;
        // The same weights whichever slots are read.
        at::Tensor whole = at::empty(table.shape, parameter.options());
        fill(table.name, whole);
        return groot_take_slots(whole, part.rows, parameter);
      }
    }
    fill(name, parameter);
  });
}

void GrootModel::use_fp8(const nn::Fp8Options& options, at::Device device,
                         const std::function<bool(std::string_view)>& forward_only) {
  // A layer is named by its unit and its product.
  fp8_ = std::make_unique<nn::Fp8Layers>(options, [forward_only](std::string_view layer) {
    return forward_only(layer.substr(0, layer.rfind('.')));
  });
  backbone_->use_fp8(*fp8_);
  head_.use_fp8(*fp8_);
  fp8_->create(device);
}

void GrootModel::weights_changed() {
  if (fp8_) fp8_->convert_weights();
}

void GrootModel::set_tap(nn::Tap tap) {
  tap_ = tap;
  head_.tap = std::move(tap);
}

void GrootModel::set_hooks(nn::UnitHooks* hooks) {
  head_.hooks = hooks;
}

void GrootModel::check_slots(const GrootBatch& batch) const {
  if (slots().empty()) return;
  const int64_t* slot = batch.embodiment.const_data_ptr<int64_t>();
  for (size_t i = 0; i < batch.sample_ids.size(); ++i) {
    if (std::binary_search(slots().begin(), slots().end(), slot[i])) continue;
    std::vector<std::string> own;
    for (const int64_t one : slots()) own.push_back(groot_slot_text(config_.version, one));
    throw ConfigError(fmt::format(
        "sample {} is of embodiment slot {}, which this run neither reads nor trains; it has {}. "
        "Give its dataset the right embodiment (model.embodiment, or data.datasets: "
        "[{{embodiment: ...}}]), or set model.train_slots: all",
        batch.sample_ids[i], groot_slot_text(config_.version, slot[i]), join(own, ", ")));
  }
}

int64_t GrootModel::text_multiple(int64_t samples) const {
  if (!sizes_.alternate_vl || samples <= 0) return 1;
  return (token_bucket_ + samples - 1) / samples;
}

void GrootModel::prepare(GrootBatch& batch, bool to_buckets) const {
  if (batch.layout.ready()) return;
  check_slots(batch);
  GrootLayoutRequest request{batch.grids, batch.pictures, batch.lengths, batch.token_ids};
  if (to_buckets) request.text_multiple = text_multiple(batch.size());
  batch.layout = make_groot_layout(request, sizes_, grid_cache_.get());
  const int64_t* slot = batch.embodiment.const_data_ptr<int64_t>();
  const bool one = std::all_of(slot, slot + batch.embodiment.numel(),
                               [&](int64_t other) { return other == *slot; });
  if (one) batch.one_embodiment = *slot;
  const at::Tensor text = batch.layout.valid.logical_and(batch.layout.image.logical_not());
  batch.text_and_images =
      text.any(1).all().item<bool>() && batch.layout.image.any(1).all().item<bool>();
}

GrootBackboneRun GrootModel::backbone_run(nn::UnitHooks* hooks) {
  GrootBackboneRun run;
  run.dtype = dtype_;
  run.fused = fused_;
  run.tap = tap_;
  const auto runner = [this, hooks](auto unit_name) {
    return [this, hooks, unit_name](int64_t layer, const nn::UnitFunction& function,
                                    const std::vector<at::Tensor>& inputs) {
      const std::string unit = unit_name(layer);
      return nn::run_unit(hooks, unit, recomputed(unit), function, inputs);
    };
  };
  run.vision = runner(groot_vision_unit);
  run.text = runner(groot_text_unit);
  return run;
}

at::Tensor GrootModel::frozen_features(const GrootBatch& batch) {
  LS_CHECK(batch.layout.ready(), InternalError, "GR00T: the batch was not prepared");
  LS_CHECK(frozen_layers_.has_value(), InternalError, "GR00T: the backbone trains from its start");
  const at::NoGradGuard no_grad;
  return backbone_->begin(batch, backbone_run(nullptr), *frozen_layers_);
}

at::Tensor GrootModel::features(const GrootBatch& batch) {
  LS_CHECK(batch.layout.ready(), InternalError, "GR00T: the batch was not prepared");
  const GrootBackboneRun run = backbone_run(head_.hooks);
  // Where everything trains, all layers are of the first part: pictures' features enter there.
  const int64_t first = frozen_layers_.value_or(sizes_.text.depth);
  const at::Tensor stream =
      batch.features.defined() ? batch.features : backbone_->begin(batch, run, first);
  const at::Tensor rows = backbone_->finish(stream, batch, run, first);
  const at::Tensor padded = nn::pad_rows(rows, batch.layout.pad_index, batch.layout.unpad_index)
                                .unflatten(0, batch.layout.valid.sizes());
  if (tap_) tap_("act.backbone_features", padded);
  return padded;
}

GrootHeadCall GrootModel::call(const GrootBatch& batch, bool training) const {
  GrootHeadCall out;
  out.one_embodiment = batch.one_embodiment.has_value();
  out.text_and_images = batch.text_and_images;
  out.read = batch.layout.read;
  out.vl_samples = {batch.layout.vl_cu, batch.layout.vl_segments, batch.layout.longest_text};
  if (training && config_.dropout && batch.dropout_keys.defined()) {
    out.dropout = groot_dropout(head_, batch.dropout_keys);
  }
  return out;
}

GrootVlContext GrootModel::context(const GrootBatch& batch, const GrootHeadCall& call) {
  return head_.encode_context(features(batch), batch.layout.valid, batch.layout.image, call);
}

GrootFlow GrootModel::flow(const GrootBatch& batch, bool training) {
  const GrootHeadCall how = call(batch, training);
  GrootFlowInputs in;
  in.state = batch.state;
  in.actions = batch.actions;
  in.action_mask = batch.action_mask;
  in.noise = batch.noise;
  in.beta = batch.beta;
  in.embodiment = batch.embodiment;
  if (training && batch.state_u.defined()) in.left_out = head_.left_out(batch.state_u);
  return head_.flow(context(batch, how), in, how);
}

GrootVlContext GrootModel::encode(const GrootBatch& batch) {
  return context(batch, call(batch, /*training=*/false));
}

at::Tensor GrootModel::integrate(const GrootVlContext& context, const GrootBatch& batch,
                                 const at::Tensor& noise) const {
  return head_.integrate(context, batch.state, batch.embodiment, noise,
                         call(batch, /*training=*/false));
}

}  // namespace longship::models
