#include "models/pi05/spec.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/rng.h"
#include "data/delta_actions.h"
#include "models/pi05/batch.h"
#include "models/pi05/config.h"
#include "models/pi05/cost.h"
#include "models/pi05/policy.h"
#include "models/pi05/transform.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;

const Pi05Config& own_config(const ModelConfig& config) {
  const auto* own = dynamic_cast<const Pi05Config*>(&config);
  LS_CHECK(own != nullptr, InternalError, "pi05: the configuration belongs to family '{}'",
           config.family);
  return *own;
}

fs::path tokenizer_path(const Pi05Config& config) {
  if (config.tokenizer) return *config.tokenizer;
  if (config.checkpoint) {
    const fs::path base = fs::is_directory(*config.checkpoint)
                              ? fs::path(*config.checkpoint)
                              : fs::path(*config.checkpoint).parent_path();
    for (const char* name : {"tokenizer.model", "paligemma_tokenizer.model"}) {
      if (fs::exists(base / name)) return base / name;
    }
    throw ConfigError(
        fmt::format("model.tokenizer is null and there is no tokenizer.model in {}; set "
                    "model.tokenizer to the SentencePiece model "
                    "(paligemma_tokenizer.model for public checkpoints)",
                    base.string()));
  }
  throw ConfigError(
      "model.tokenizer is null and there is no checkpoint to take it from; set model.tokenizer to "
      "a "
      "SentencePiece model");
}

class Pi05Family : public ModelFamily {
 public:
  std::string name() const override { return "pi05"; }
  std::string summary() const override {
    return "Pi0.5 and Pi0: SigLIP, Gemma prefix and flow-matching action expert";
  }
  std::unique_ptr<ModelConfig> make_config() const override {
    return std::make_unique<Pi05Config>();
  }

  std::unique_ptr<Policy> build(const ModelConfig& config,
                                const BuildOptions& options) const override {
    return std::make_unique<Pi05Policy>(own_config(config), options);
  }

  std::unique_ptr<Transform> make_transform(const ModelConfig& config,
                                            const data::Dataset& dataset) const override {
    const Pi05Config& own = own_config(config);
    own.check();
    const Pi05Sizes sizes = own.sizes();
    Pi05TransformOptions options;
    options.variant = own.variant;
    options.image_size = sizes.vision.image_size;
    options.horizon = own.horizon();
    options.max_action_dim = sizes.max_action_dim;
    options.max_state_dim = sizes.max_state_dim;
    options.tokenizer_path = tokenizer_path(own);
    options.vocab_size = sizes.vocab_size;
    options.token_limit = sizes.token_limit;
    options.slots = own.slots();
    options.cameras = own.data.cameras;
    options.resize = data::parse_resize_flavour(own.resize);
    const std::string mode = own.normalization == "auto"
                                 ? (own.is_pi05() ? "quantiles" : "mean_std")
                                 : own.normalization;
    options.state_norm = options.action_norm = data::parse_norm_mode(mode);
    options.norm_flavour = data::parse_norm_flavour(own.norm_flavour);
    options.discrete_state = own.discrete_state;
    options.state_feature = own.state_feature;
    options.action_feature = own.action_feature;
    options.delta = own.data.delta;
    options.state_dropout = own.data.state_dropout;
    options.augment = own.data.augment;
    options.augment_on_device = own.data.augment_on_device;
    options.action_dims = own.data.action_dims;
    options.state_dims = own.data.state_dims;
    options.says_dims = own.says_dims();
    options.prompt_overflow = own.prompt_overflow;
    if (own.action_dim > 0 && options.action_dims.empty()) options.action_dim = own.action_dim;
    if (own.state_dim > 0 && options.state_dims.empty()) options.state_dim = own.state_dim;
    return std::make_unique<Pi05Transform>(options, dataset);
  }

  // The attention products of the prefix, 8 % of its work, stay in bf16: with them in FP8 the
  // losses of 200 steps strayed twice as far from those of a bf16 run (docs/performance.md).
  std::vector<std::string> default_fp8_layers() const override {
    return {"prefix.*.mlp", "vision.*"};
  }

  // All pictures have one grid, so there are no tables by grid.
  std::vector<std::string> unused_switches() const override { return {"perf.grid_cache"}; }

  BatchCost cost(const ModelConfig& config, const Batch& batch) const override {
    const Pi05Config& own = own_config(config);
    const auto* b = dynamic_cast<const Pi05Batch*>(&batch);
    LS_CHECK(b != nullptr, InternalError, "pi05: the batch was made by another family's transform");
    BatchCost out;
    for (size_t i = 0; i < b->images_per_sample.size(); ++i) {
      out.executed +=
          pi05_forward_flops(own, b->images_per_sample[i], b->tokens_per_sample[i]).total();
      out.reference += pi05_reference_flops(own, b->images_per_sample[i]).total();
    }
    return out;
  }

  std::unique_ptr<Batch> synthetic_batch(const ModelConfig& config, const SyntheticShape& shape,
                                         uint64_t seed) const override {
    const Pi05Config& own = own_config(config);
    const Pi05Sizes sizes = own.sizes();
    LS_CHECK(shape.tokens <= sizes.token_limit, ConfigError,
             "random batches of {} text tokens a sample: model.token_limit allows {}", shape.tokens,
             sizes.token_limit);
    const int64_t size = sizes.vision.image_size;
    auto out = std::make_unique<Pi05Batch>();
    const auto fill = [&](at::Tensor& tensor, std::vector<int64_t> dims, uint64_t part) {
      tensor = at::empty(dims, at::kFloat);
      fill_normal(
          make_key(seed, RngStream::kTest, part),
          std::span<float>(tensor.mutable_data_ptr<float>(), static_cast<size_t>(tensor.numel())));
    };
    fill(out->images, {shape.batch * shape.images, 3, size, size}, 0);
    out->images.clamp_(-1, 1);
    fill(out->actions, {shape.batch, own.horizon(), sizes.max_action_dim}, 1);
    fill(out->state, {shape.batch, sizes.max_state_dim}, 2);
    out->action_is_pad =
        at::zeros({shape.batch, own.horizon()}, at::TensorOptions().dtype(at::kBool));
    out->token_ids = at::empty({shape.batch * shape.tokens}, at::kLong);
    int64_t* ids = out->token_ids.mutable_data_ptr<int64_t>();
    const RngKey key = make_key(seed, RngStream::kTest, 3);
    // A prompt's words repeat from sample to sample, as tasks and digits do.
    const int64_t words = std::min<int64_t>(512, sizes.vocab_size - 1);
    for (int64_t i = 0; i < out->token_ids.numel(); ++i) {
      ids[i] = 1 + static_cast<int64_t>(random_bits(key, static_cast<uint64_t>(i)) %
                                        static_cast<uint64_t>(words));
    }
    for (int64_t i = 0; i < shape.batch; ++i) {
      out->sample_ids.push_back(i);
      out->images_per_sample.push_back(shape.images);
      out->tokens_per_sample.push_back(shape.tokens);
    }
    return out;
  }

  std::string export_config_json(const ModelConfig& config,
                                 const data::Dataset& dataset) const override {
    const Pi05Config& own = own_config(config);
    const data::Feature* action = dataset.find_feature(own.action_feature);
    const data::Feature* state = dataset.find_feature(own.state_feature);
    std::vector<std::string> cameras;
    for (const auto& [slot, camera] :
         resolve_camera_slots(own.slots(), own.data.cameras, dataset.cameras())) {
      if (!camera.empty()) cameras.push_back(slot);
    }
    std::optional<Pi05RelativeActions> relative;
    if (own.data.delta.any() && action != nullptr) {
      relative = pi05_relative_actions(
          data::resolve_delta_mask(own.data.delta, dataset, own.action_feature, own.state_feature),
          action->width(), action->dim_names);
    }
    const bool reads_state = !own.is_pi05() || own.discrete_state;
    return pi05_export_config(own, action != nullptr ? action->width() : own.action_dim,
                              !reads_state       ? 0
                              : state != nullptr ? state->width()
                                                 : own.state_dim,
                              cameras, relative);
  }

  std::unique_ptr<ModelConfig> import_config_json(const fs::path& path) const override {
    return std::make_unique<Pi05Config>(pi05_import_config(path));
  }
};

}  // namespace

const ModelFamily& pi05_family() {
  static const Pi05Family family;
  return family;
}

}  // namespace longship::models
