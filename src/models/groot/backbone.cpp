#include "models/groot/backbone.h"

#include <ATen/ops/gelu.h>
#include <fmt/core.h>

#include "nn/functions.h"
#include "nn/linear.h"
#include "nn/qwen3.h"
#include "nn/qwen3_vision.h"
#include "nn/row_update.h"
#include "nn/siglip2.h"

namespace longship::models {
namespace {

nn::Qwen3Sizes text_sizes(const GrootTextSizes& s) {
  nn::Qwen3Sizes out;
  out.vocab = s.vocab_size;
  out.width = s.width;
  out.mlp_dim = s.mlp_dim;
  out.depth = s.depth;
  out.num_heads = s.num_heads;
  out.num_kv_heads = s.num_kv_heads;
  out.head_dim = s.head_dim;
  out.eps = s.eps;
  out.theta = s.theta;
  out.mrope_sections = s.mrope_sections;
  return out;
}

nn::PackedSamples text_samples(const GrootLayout& layout) {
  return {layout.text_cu, layout.text_segments, layout.longest_text};
}

nn::PackedSamples picture_samples(const GrootLayout& layout) {
  return {layout.picture_cu, layout.picture_segments, layout.longest_picture};
}

void attach(nn::Qwen3Text& text, const GrootBackboneRun& run) {
  text.fused = run.fused;
  text.run = run.text;
  text.tap = run.tap;
}

/// The layers of `text` from `layer` on.
at::Tensor rest_of_layers(const nn::Qwen3Text& text, const at::Tensor& stream,
                          const GrootLayout& layout, const GrootBackboneRun& run, int64_t layer,
                          int64_t depth) {
  if (layer == depth) return stream;
  const nn::RopeTable rope = text.rope(layout.positions, run.dtype);
  return text.layers(stream, text_samples(layout), rope, layer, depth);
}

class EagleBackbone : public GrootBackbone {
 public:
  explicit EagleBackbone(const GrootSizes& s)
      : sizes_(s),
        vision_(vision_sizes(s)),
        norm_(kBlock * s.vision.width, 1e-5),
        in_(kBlock * s.vision.width, s.text.width, true),
        out_(s.text.width, s.text.width, true),
        text_(text_sizes(s.text)) {
    register_child("model.vision_model", vision_);
    register_child("model.mlp1.0", norm_);
    register_child("model.mlp1.1", in_);
    register_child("model.mlp1.3", out_);
    register_child("model.language_model.model", text_);
  }

  at::Tensor begin(const GrootBatch& batch, const GrootBackboneRun& run, int64_t layer) override {
    const GrootLayout& layout = batch.layout;
    attach(text_, run);
    vision_.tap = run.tap;
    const at::Tensor features = project(see(batch, run), layout);
    if (run.tap) run.tap("act.projector", features);
    at::Tensor h = text_.embed(layout.tokens).to(run.dtype);
    h = nn::replace_rows(h, layout.image_rows, features);
    const nn::RopeTable rope = text_.rope(layout.positions, run.dtype);
    return text_.layers(h, text_samples(layout), rope, 0, layer);
  }

  at::Tensor finish(const at::Tensor& stream, const GrootBatch& batch, const GrootBackboneRun& run,
                    int64_t layer) override {
    attach(text_, run);
    const at::Tensor h = rest_of_layers(text_, stream, batch.layout, run, layer, sizes_.text.depth);
    if (run.tap) run.tap("act.text_last_layer_pre_norm", h);
    return text_.final_norm(h);
  }

  void use_fp8(nn::Fp8Layers& layers) override {
    vision_.use_fp8(layers, "vision");
    text_.use_fp8(layers, "text");
  }

 private:
  static constexpr int64_t kBlock = GrootSizes::kMerge * GrootSizes::kMerge;

  static nn::Siglip2Sizes vision_sizes(const GrootSizes& s) {
    nn::Siglip2Sizes out;
    out.layers.width = s.vision.width;
    out.layers.depth = s.vision.depth;
    out.layers.num_heads = s.vision.num_heads;
    out.layers.mlp_dim = s.vision.mlp_dim;
    out.layers.eps = s.vision.eps;
    out.patch_values = s.patch_values();
    out.table_rows = s.vision.table_side * s.vision.table_side;
    out.full_attention = s.vision.full_attention;
    return out;
  }

  at::Tensor see(const GrootBatch& batch, const GrootBackboneRun& run) const {
    const GrootLayout& layout = batch.layout;
    nn::Siglip2Rows rows;
    rows.position_index = layout.position_index;
    rows.position_weight = layout.position_weight;
    rows.pictures = picture_samples(layout);
    rows.uniform_pictures = layout.uniform_pictures;
    rows.window_order = layout.window_order;
    rows.window_back = layout.window_back;
    rows.windows = {layout.window_cu, layout.window_segments, layout.longest_window};
    if (sizes_.vision.rope) {
      std::tie(rows.rope_cos, rows.rope_sin) = nn::siglip2_rope(
          layout.patch_rows, layout.patch_columns, sizes_.vision.width / sizes_.vision.num_heads,
          static_cast<double>(sizes_.vision.window_size));
    }
    const nn::SiglipPrecision precision{run.dtype, run.dtype};
    const at::Tensor embedded = vision_.embed(batch.patches, rows, precision);
    const at::Tensor out = vision_.encode(embedded, rows, precision, run.fused, run.vision);
    if (run.tap) run.tap("act.vision_last_hidden_state", out);
    return out;
  }

  // Channel c of the patch at (i, j) of a block of 2 x 2 becomes value 4 c + 2 i + j.
  at::Tensor project(const at::Tensor& patches, const GrootLayout& layout) const {
    const at::Tensor blocks = nn::select_rows(patches, layout.merge_index)
                                  .unflatten(0, {-1, kBlock})
                                  .permute({0, 2, 1})
                                  .flatten(1);
    return out_.forward(at::gelu(in_.forward(norm_.forward(blocks, false))));
  }

  GrootSizes sizes_;
  nn::Siglip2Tower vision_;
  nn::LayerNorm norm_;
  nn::Linear in_, out_;
  nn::Qwen3Text text_;
};

class QwenBackbone : public GrootBackbone {
 public:
  QwenBackbone(const GrootSizes& s, bool final_norm)
      : sizes_(s), final_norm_(final_norm), vision_(vision_sizes(s)), text_(text_sizes(s.text)) {
    register_child("model.model.visual", vision_);
    register_child("model.model.language_model", text_);
  }

  at::Tensor begin(const GrootBatch& batch, const GrootBackboneRun& run, int64_t layer) override {
    const GrootLayout& layout = batch.layout;
    attach(text_, run);
    vision_.fused = run.fused;
    vision_.run = run.vision;
    vision_.tap = run.tap;
    const nn::PatchTables tables{layout.patch_rows, layout.patch_columns, layout.position_index,
                                 layout.position_weight};
    const nn::Qwen3VisionFeatures seen =
        vision_.forward(batch.patches.to(run.dtype), tables, picture_samples(layout));
    if (run.tap) {
      run.tap("act.vision_merger", seen.merged);
      for (size_t j = 0; j < seen.deepstack.size(); ++j) {
        run.tap(fmt::format("act.deepstack{}", j), seen.deepstack[j]);
      }
    }
    at::Tensor h = text_.embed(layout.tokens).to(run.dtype);
    h = nn::replace_rows(h, layout.image_rows, seen.merged);
    const nn::RopeTable rope = text_.rope(layout.positions, run.dtype);
    if (run.tap) {
      run.tap("text.cos", rope.cos.squeeze(1));
      run.tap("text.sin", rope.sin.squeeze(1));
    }
    return text_.layers(h, text_samples(layout), rope, 0, layer,
                        {seen.deepstack, layout.image_rows});
  }

  at::Tensor finish(const at::Tensor& stream, const GrootBatch& batch, const GrootBackboneRun& run,
                    int64_t layer) override {
    attach(text_, run);
    const at::Tensor h = rest_of_layers(text_, stream, batch.layout, run, layer, sizes_.text.depth);
    return final_norm_ ? text_.final_norm(h) : h;
  }

  void use_fp8(nn::Fp8Layers& layers) override {
    vision_.use_fp8(layers, "vision");
    text_.use_fp8(layers, "text");
  }

 private:
  static nn::Qwen3VisionSizes vision_sizes(const GrootSizes& s) {
    nn::Qwen3VisionSizes out;
    out.width = s.vision.width;
    out.depth = s.vision.depth;
    out.num_heads = s.vision.num_heads;
    out.mlp_dim = s.vision.mlp_dim;
    out.patch_size = s.vision.patch_size;
    out.temporal_patch = s.vision.frames;
    out.merge = GrootSizes::kMerge;
    out.position_side = s.vision.table_side;
    out.out_width = s.text.width;
    out.deepstack = s.vision.deepstack;
    out.eps = s.vision.eps;
    return out;
  }

  GrootSizes sizes_;
  bool final_norm_;
  nn::Qwen3Vision vision_;
  nn::Qwen3Text text_;
};

}  // namespace

std::unique_ptr<GrootBackbone> make_groot_backbone(const GrootSizes& sizes, bool final_norm) {
  if (sizes.version == GrootVersion::kN16) return std::make_unique<EagleBackbone>(sizes);
  return std::make_unique<QwenBackbone>(sizes, final_norm);
}

}  // namespace longship::models
