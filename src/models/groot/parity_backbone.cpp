// N1.7's backbone alone: position tables, towers, deepstack.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <fmt/core.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "io/tensor_io.h"
#include "models/common/strict_weights.h"
#include "models/groot/backbone.h"
#include "models/groot/layout.h"
#include "models/groot/parity_inputs.h"
#include "nn/functions.h"
#include "nn/patch_grid.h"
#include "nn/qwen3_vision.h"
#include "nn/tensor_math.h"

namespace longship::models {
namespace {

using Tensors = GrootParityTensors;

/// Parameters are under the names of the backbone's own checkpoint.
class BackboneAdapter : public ParityAdapter {
 public:
  BackboneAdapter(const ParityCase& c, const ParityOptions& options)
      : folder_(c.folder),
        options_(options),
        sizes_(groot_import_backbone(c.folder / "backbone_config.json", groot_parity_version(c))),
        inputs_(c.folder / "inputs.safetensors") {
    const nlohmann::json notes =
        parse_json_file(c.folder / "inputs.json", {.code = ExitCode::kConfig});
    for (const nlohmann::json& grid : notes.value("real_grids", nlohmann::json::array())) {
      real_grids_.push_back({grid.at(1).get<int64_t>(), grid.at(2).get<int64_t>()});
    }
  }

  Tensors forward() override {
    const at::NoGradGuard no_grad;
    GrootBatch batch = groot_parity_batch(inputs_, sizes_);
    batch.layout =
        make_groot_layout({batch.grids, batch.pictures, batch.lengths, batch.token_ids}, sizes_);
    batch.to(options_.device);
    const std::unique_ptr<GrootBackbone> backbone = make_backbone(/*final_norm=*/false);
    Tensors taps, out;
    const auto padded = [&](const at::Tensor& rows) {
      return nn::select_rows(rows, batch.layout.pad_index).unflatten(0, batch.layout.valid.sizes());
    };
    const auto run = [&](GrootBackbone& own, const nn::Tap& tap) {
      GrootBackboneRun how;
      how.dtype = options_.dtype;
      how.fused = options_.fused;
      how.tap = tap;
      const int64_t depth = sizes_.text.depth;
      return padded(own.finish(own.begin(batch, how, depth), batch, how, depth));
    };
    out["pre_norm_hidden"] = run(*backbone, [&](std::string_view name, const at::Tensor& value) {
      taps.emplace(std::string(name), value);
    });
    out["post_norm_hidden"] = run(*make_backbone(/*final_norm=*/true), {});
    add_pictures(taps, *backbone, out);
    for (int64_t l = 0; l < sizes_.text.depth; ++l) {
      for (const char* end : {"in", "out"}) {
        out[fmt::format("text_layer{}_{}", l, end)] =
            padded(taps.at(fmt::format("text_layer{}.{}", l, end)));
      }
    }
    for (const char* name : {"text.cos", "text.sin"}) {
      const at::Tensor half = padded(taps.at(name));
      out[name] = at::cat({half, half}, -1);  // the reference turns both halves of a head alike
    }
    add_positions(batch.layout, out);
    // The output head, tied to the embedding, of the last token. Training never computes it.
    const at::Tensor last = out.at("post_norm_hidden").select(1, batch.layout.longest_text - 1);
    out["logits_last"] =
        at::matmul(last, parameter(*backbone, "language_model.embed_tokens.weight").t());
    groot_parity_to_host(out);
    return out;
  }

  Tensors sample() override { return {}; }
  void move_inputs(uint64_t) override {}  // nothing is trained
  std::vector<ParamInfo> begin_trajectory(const std::string& file, const std::string&) override {
    throw ConfigError(fmt::format("{}: a backbone alone has no recorded training", file));
  }
  at::Tensor train_loss(int64_t) override { return {}; }
  ParityTolerance low_precision_tolerance() const override {
    return groot_low_precision_tolerance();
  }
  std::vector<std::string> own_files() const override { return {"backbone_config.json"}; }

 private:
  std::unique_ptr<GrootBackbone> make_backbone(bool final_norm) const {
    std::unique_ptr<GrootBackbone> out = make_groot_backbone(sizes_, final_norm);
    out->materialise(options_.device, [&](std::string_view) { return options_.dtype; });
    const io::Weights weights = io::open_weights(folder_ / "weights.safetensors");
    WeightFaults faults;
    NamedInfos tensors = collect_weights(
        weights,
        [](std::string_view name) -> std::optional<std::string> {
          if (name.ends_with("lm_head.weight")) return std::nullopt;
          return fmt::format("model.{}", name);
        },
        faults);
    copy_weights(*out, weights, std::move(tensors), folder_, "backbone_config.json",
                 std::move(faults), {});
    return out;
  }

  static at::Tensor parameter(const GrootBackbone& backbone, std::string_view ending) {
    for (const auto& [name, tensor] : backbone.named_parameters()) {
      if (name.ends_with(ending)) return tensor;
    }
    throw InternalError(fmt::format("the backbone has no parameter '{}'", ending));
  }

  void add_pictures(const Tensors& taps, const GrootBackbone& backbone, Tensors& out) const {
    out["vision.features"] = taps.at("act.vision_merger");
    for (size_t j = 0; j < sizes_.vision.deepstack.size(); ++j) {
      out[fmt::format("vision.deepstack{}", j)] = taps.at(fmt::format("act.deepstack{}", j));
    }
    for (const char* name : {"vision.pos_embed", "vision.rot_pos_emb"}) out[name] = taps.at(name);
    // Tables of pictures as large as real ones: positions of all but the last, angles of all but
    // the first.
    if (real_grids_.size() < 2) return;
    const auto tables = [&](size_t first) {
      nn::PatchTables own =
          nn::patch_tables(std::span(real_grids_).subspan(first, real_grids_.size() - 1),
                           sizes_.vision.table_side, GrootSizes::kMerge);
      for (at::Tensor* table :
           {&own.rows, &own.columns, &own.position_index, &own.position_weight}) {
        *table = table->to(options_.device);
      }
      return own;
    };
    const nn::PatchTables near = tables(0), far = tables(1);
    out["real.pos_embed"] = nn::interpolate_positions(
        parameter(backbone, "visual.pos_embed.weight"), near.position_index, near.position_weight);
    out["real.rot_pos_emb"] =
        nn::patch_angles(far.rows, far.columns, sizes_.vision.width / sizes_.vision.num_heads,
                         nn::Qwen3VisionSizes().theta, at::kFloat);
  }

  /// Positions [3, B, S] as the rotation reads them, and how far each sample's next position lies
  /// behind the number of its places.
  static void add_positions(const GrootLayout& layout, Tensors& out) {
    const at::Tensor rows = nn::select_rows(layout.positions.t(), layout.pad_index);  // [B S, 3]
    const at::Tensor positions = rows.t().unflatten(1, layout.valid.sizes());
    out["text.position_ids"] = positions;
    out["text.rope_position_ids_used"] = positions;
    const at::Tensor own = positions.masked_fill(layout.valid.logical_not(), 0);
    out["text.rope_deltas"] = at::amax(own, {0, 2}).add(1 - layout.longest_text).unsqueeze(1);
  }

  std::filesystem::path folder_;
  ParityOptions options_;
  GrootSizes sizes_;
  GrootParityInputs inputs_;
  std::vector<std::array<int64_t, 2>> real_grids_;
};

}  // namespace

std::unique_ptr<ParityAdapter> make_groot_backbone_parity_adapter(const ParityCase& c,
                                                                  const ParityOptions& options) {
  return std::make_unique<BackboneAdapter>(c, options);
}

}  // namespace longship::models
