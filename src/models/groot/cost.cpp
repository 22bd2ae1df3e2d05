#include "models/groot/cost.h"

namespace longship::models {
namespace {

double d(int64_t value) {
  return static_cast<double>(value);
}

double vision_flops(const GrootSizes& s, double patches) {
  const GrootVisionSizes& v = s.vision;
  const double width = d(v.width);
  const double layer =
      2 * patches * (4 * width * width + 2 * width * d(v.mlp_dim)) + 4 * patches * patches * width;
  return d(v.depth) * layer + 2 * patches * d(s.patch_values()) * width;
}

double projector_flops(const GrootSizes& s, double tokens) {
  const double in = 4 * d(s.vision.width), out = d(s.text.width);
  if (s.version == GrootVersion::kN16) return 2 * tokens * (in * out + out * out);
  return 2 * tokens * (1 + d(static_cast<int64_t>(s.vision.deepstack.size()))) *
         (in * in + in * out);
}

double text_layer_flops(const GrootTextSizes& t, double tokens) {
  const double width = d(t.width), query = d(t.num_heads * t.head_dim);
  const double weights =
      2 * width * query + 2 * width * d(t.num_kv_heads * t.head_dim) + 3 * width * d(t.mlp_dim);
  return 2 * tokens * weights + 2 * tokens * tokens * query;  // half of the square is seen
}

double plain_block_flops(double width, double tokens) {
  return 2 * tokens * 12 * width * width + 4 * tokens * tokens * width;
}

double dit_flops(const GrootSizes& s, double image_rows, double text_rows) {
  const double width = d(s.dit.width()), rows = d(s.horizon + 1), context = d(s.text.width);
  double out = 2 * (2 * width * width + 256 * width + width * width);  // time encoder, output
  for (int64_t i = 0; i < s.dit.depth; ++i) {
    out += 2 * 2 * width * width;  // modulation
    if (s.interleave_self && i % 2 == 1) {
      out += plain_block_flops(width, rows);
      continue;
    }
    const bool text = i % (2 * s.text_every) == 0;
    const double read = s.alternate_vl ? (text ? text_rows : image_rows) : image_rows + text_rows;
    out += 2 * rows * 10 * width * width + 2 * read * 2 * context * width + 4 * rows * read * width;
  }
  return out + 2 * rows * width * d(s.hidden);
}

double head_flops(const GrootSizes& s) {
  const double width = d(s.dit.width()), hidden = d(s.hidden), rows = d(s.horizon);
  const double state = d(s.state_history * s.max_state_dim), action = d(s.max_action_dim);
  return 2 * (state * hidden + hidden * width) +
         2 * rows * (action * width + 2 * width * width + width * width) +
         2 * rows * (hidden * hidden + hidden * action);
}

}  // namespace

GrootFlops groot_forward_flops(const GrootConfig& config,
                               const std::vector<std::array<int64_t, 2>>& grids, int64_t tokens,
                               int64_t padded) {
  const GrootSizes s = config.sizes();
  GrootFlops out;
  double image_rows = 0;
  for (const auto& [rows, columns] : grids) {
    out.vision += vision_flops(s, d(rows * columns));
    image_rows += d(rows * columns) / 4;
  }
  out.projector = projector_flops(s, image_rows);
  const double layer = text_layer_flops(s.text, d(tokens));
  out.text = d(s.text.depth) * layer;
  out.top_text = d(config.tune_llm ? s.text.depth : config.tune_top_llm_layers) * layer;
  if (s.vl) out.vl = d(s.vl->depth) * plain_block_flops(d(s.vl->width()), d(padded));
  out.dit = dit_flops(s, image_rows, d(tokens) - image_rows);
  out.heads = head_flops(s);
  return out;
}

double groot_training_flops(const GrootConfig& config, const GrootFlops& f) {
  double trained = f.dit + f.heads + f.vl + f.top_text;
  if (config.tune_visual) trained = f.total();
  return (f.total() + 2 * trained) / 3;
}

}  // namespace longship::models
