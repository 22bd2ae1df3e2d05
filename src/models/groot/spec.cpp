#include "models/groot/spec.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>

#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/rng.h"
#include "models/groot/batch.h"
#include "models/groot/config.h"
#include "models/groot/cost.h"
#include "models/groot/embodiment.h"
#include "models/groot/policy.h"
#include "models/groot/transform.h"

namespace longship::models {
namespace {

const GrootConfig& own_config(const ModelConfig& config) {
  const auto* own = dynamic_cast<const GrootConfig*>(&config);
  LS_CHECK(own != nullptr, InternalError, "GR00T: the configuration belongs to family '{}'",
           config.family);
  return *own;
}

class GrootFamily : public ModelFamily {
 public:
  explicit GrootFamily(GrootVersion version) : version_(version) {}

  std::string name() const override {
    return version_ == GrootVersion::kN17 ? "groot_n17" : "groot_n16";
  }
  std::string summary() const override {
    return version_ == GrootVersion::kN17
               ? "GR00T N1.7: Qwen3-VL backbone and flow-matching diffusion transformer"
               : "GR00T N1.6: SigLIP2 and Qwen3 backbone, flow-matching diffusion transformer";
  }
  std::unique_ptr<ModelConfig> make_config() const override {
    return std::make_unique<GrootConfig>(version_);
  }
  std::unique_ptr<Policy> build(const ModelConfig& config,
                                const BuildOptions& options) const override {
    return std::make_unique<GrootPolicy>(own_config(config), options);
  }
  std::unique_ptr<Transform> make_transform(const ModelConfig& config,
                                            const data::Dataset& dataset) const override {
    return make_groot_transform(own_config(config), dataset);
  }

  // The transformer's attention products stay in bf16: the gradients of its queries and keys lose
  // the most in FP8.
  std::vector<std::string> default_fp8_layers() const override {
    std::vector<std::string> out{"vision.*", "text.*", "dit.*.fc?"};
    if (version_ == GrootVersion::kN17) out.push_back("vl.*");
    return out;
  }

  // The loss has a mask of its own, the token table is frozen or trained as a whole, and only valid
  // text tokens are ever computed.
  std::vector<std::string> unused_switches() const override {
    return {"perf.fused_loss", "perf.sparse_embedding", "perf.pack_text"};
  }

  BatchCost cost(const ModelConfig& config, const Batch& given) const override {
    const GrootConfig& own = own_config(config);
    const GrootBatch& batch = groot_batch(given);
    const int64_t padded = *std::max_element(batch.lengths.begin(), batch.lengths.end());
    BatchCost out;
    size_t picture = 0;
    for (size_t b = 0; b < batch.lengths.size(); ++b) {
      const size_t end = picture + static_cast<size_t>(batch.pictures[b]);
      const std::vector<std::array<int64_t, 2>> grids(batch.grids.begin() + picture,
                                                      batch.grids.begin() + end);
      picture = end;
      out.executed +=
          groot_training_flops(own, groot_forward_flops(own, grids, batch.lengths[b], padded));
      out.reference += groot_training_flops(own, groot_forward_flops(own, grids, padded, padded));
    }
    return out;
  }

  std::unique_ptr<Batch> synthetic_batch(const ModelConfig& config, const SyntheticShape& shape,
                                         uint64_t seed) const override {
    const GrootConfig& own = own_config(config);
    const GrootSizes sizes = own.sizes();
    auto out = std::make_unique<GrootBatch>();
    const int64_t cell = GrootSizes::kMerge * sizes.vision.patch_size;
    const int64_t side = std::max<int64_t>(1, own.shortest_edge / cell) * GrootSizes::kMerge;
    const int64_t count = shape.batch * shape.images;
    const auto fill = [&](at::Tensor& tensor, std::vector<int64_t> dims, uint64_t part) {
      tensor = at::empty(dims, at::kFloat);
      fill_normal(
          make_key(seed, RngStream::kTest, part),
          std::span<float>(tensor.mutable_data_ptr<float>(), static_cast<size_t>(tensor.numel())));
    };
    fill(out->patches, {count * side * side, sizes.patch_values()}, 0);
    out->patches.clamp_(-1, 1);
    fill(out->actions, {shape.batch, sizes.horizon, sizes.max_action_dim}, 1);
    fill(out->state, {shape.batch, sizes.state_history, sizes.max_state_dim}, 2);
    out->action_mask = at::zeros_like(out->actions);
    out->action_mask.narrow(1, 0, std::min(own.data.horizon, sizes.horizon))
        .narrow(2, 0, std::min<int64_t>(std::max<int64_t>(own.action_dim, 1), sizes.max_action_dim))
        .fill_(1);
    out->embodiment = at::full({shape.batch}, groot_embodiment(own).slot, at::kLong);
    out->grids.assign(static_cast<size_t>(count), {side, side});
    const int64_t images = shape.images * side * side / (GrootSizes::kMerge * GrootSizes::kMerge);
    const int64_t length = images + shape.tokens;
    out->token_ids = at::empty({shape.batch * length}, at::kLong);
    int64_t* ids = out->token_ids.mutable_data_ptr<int64_t>();
    const RngKey key = make_key(seed, RngStream::kTest, 3);
    // Behind the special tokens of a small vocabulary.
    constexpr int64_t kFirst = 16;
    const int64_t words = std::min<int64_t>(512, sizes.text.vocab_size - kFirst);
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t i = 0; i < length; ++i, ++ids) {
        const auto at = static_cast<uint64_t>(b * length + i);
        *ids = i < images ? sizes.text.image_token
                          : kFirst + static_cast<int64_t>(random_bits(key, at) %
                                                          static_cast<uint64_t>(words));
      }
      out->sample_ids.push_back(b);
      out->pictures.push_back(shape.images);
      out->lengths.push_back(length);
    }
    return out;
  }

  std::string export_config_json(const ModelConfig& config, const data::Dataset&) const override {
    return groot_export_config(own_config(config));
  }
  std::unique_ptr<ModelConfig> import_config_json(
      const std::filesystem::path& path) const override {
    return std::make_unique<GrootConfig>(groot_import_config(path, version_));
  }

 private:
  GrootVersion version_;
};

}  // namespace

const ModelFamily& groot_n16_family() {
  static const GrootFamily family(GrootVersion::kN16);
  return family;
}

const ModelFamily& groot_n17_family() {
  static const GrootFamily family(GrootVersion::kN17);
  return family;
}

}  // namespace longship::models
