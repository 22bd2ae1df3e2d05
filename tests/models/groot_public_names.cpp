#include "groot_public_names.h"

#include <initializer_list>
#include <utility>

namespace longship::models::testing {
namespace {

using Shape = std::vector<int64_t>;

/// Collects tensors under a prefix.
class Names {
 public:
  explicit Names(std::string prefix = "") : prefix_(std::move(prefix)) {}

  void add(const std::string& name, Shape shape) {
    tensors.push_back({prefix_ + name, std::move(shape)});
  }
  /// Weight and bias.
  void linear(const std::string& name, int64_t out, int64_t in) {
    add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  }
  void norm(const std::string& name, int64_t width) {
    add(name + ".weight", {width});
    add(name + ".bias", {width});
  }
  /// A category-specific layer.
  void per_slot(const std::string& name, int64_t slots, int64_t in, int64_t out) {
    add(name + ".W", {slots, in, out});
    add(name + ".b", {slots, out});
  }
  void append(const std::vector<GrootPublicTensor>& more) {
    tensors.insert(tensors.end(), more.begin(), more.end());
  }

  std::vector<GrootPublicTensor> tensors;

 private:
  std::string prefix_;
};

std::string numbered(const std::string& prefix, int64_t number) {
  return prefix + std::to_string(number) + ".";
}

std::vector<GrootPublicTensor> siglip(const GrootPublicSizes& s) {
  const std::string tower = "backbone.model.vision_model.vision_model.";
  Names out(tower);
  out.linear("embeddings.patch_embedding", s.vision, 3 * s.patch * s.patch);
  out.add("embeddings.position_embedding.weight", {s.positions, s.vision});
  for (int64_t l = 0; l < s.vision_layers; ++l) {
    Names layer(numbered(tower + "encoder.layers.", l));
    layer.norm("layer_norm1", s.vision);
    layer.norm("layer_norm2", s.vision);
    for (const char* one : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
      layer.linear(std::string("self_attn.") + one, s.vision, s.vision);
    }
    layer.linear("mlp.fc1", s.vision_mlp, s.vision);
    layer.linear("mlp.fc2", s.vision, s.vision_mlp);
    out.append(layer.tensors);
  }
  out.norm("post_layernorm", s.vision);
  Names pooling(kGrootPooling);
  pooling.add("probe", {1, 1, s.vision});
  pooling.add("attention.in_proj_weight", {3 * s.vision, s.vision});
  pooling.add("attention.in_proj_bias", {3 * s.vision});
  pooling.linear("attention.out_proj", s.vision, s.vision);
  pooling.norm("layernorm", s.vision);
  pooling.linear("mlp.fc1", s.vision_mlp, s.vision);
  pooling.linear("mlp.fc2", s.vision, s.vision_mlp);
  out.append(pooling.tensors);
  Names projector("backbone.model.mlp1.");
  projector.norm("0", 4 * s.vision);
  projector.linear("1", s.text, 4 * s.vision);
  projector.linear("3", s.text, s.text);
  out.append(projector.tensors);
  return out.tensors;
}

std::vector<GrootPublicTensor> qwen_vision(const GrootPublicSizes& s) {
  const std::string tower = "backbone.model.model.visual.";
  Names out(tower);
  out.add("patch_embed.proj.weight", {s.vision, 3, s.frames, s.patch, s.patch});
  out.add("patch_embed.proj.bias", {s.vision});
  out.add("pos_embed.weight", {s.positions, s.vision});
  for (int64_t l = 0; l < s.vision_layers; ++l) {
    Names block(numbered(tower + "blocks.", l));
    block.norm("norm1", s.vision);
    block.norm("norm2", s.vision);
    block.linear("attn.qkv", 3 * s.vision, s.vision);
    block.linear("attn.proj", s.vision, s.vision);
    block.linear("mlp.linear_fc1", s.vision_mlp, s.vision);
    block.linear("mlp.linear_fc2", s.vision, s.vision_mlp);
    out.append(block.tensors);
  }
  const auto merger = [&](const std::string& name, int64_t normed) {
    out.norm(name + ".norm", normed);
    out.linear(name + ".linear_fc1", 4 * s.vision, 4 * s.vision);
    out.linear(name + ".linear_fc2", s.text, 4 * s.vision);
  };
  merger("merger", s.vision);
  for (int64_t j = 0; j < s.deepstack; ++j) {
    merger("deepstack_merger_list." + std::to_string(j), 4 * s.vision);
  }
  return out.tensors;
}

std::string text_name(GrootVersion version, const std::string& name) {
  std::string out = "backbone.model.";
  out += version == GrootVersion::kN17 ? "model.language_model." : "language_model.model.";
  return out += name;
}

void feed_forward(Names& out, int64_t width) {
  out.linear("ff.net.0.proj", 4 * width, width);
  out.linear("ff.net.2", width, 4 * width);
}

std::vector<GrootPublicTensor> action_head(const GrootPublicSizes& s) {
  Names out("action_head.");
  out.linear("model.timestep_encoder.timestep_embedder.linear_1", s.dit, 256);
  out.linear("model.timestep_encoder.timestep_embedder.linear_2", s.dit, s.dit);
  for (int64_t l = 0; l < s.dit_layers; ++l) {
    Names block(numbered("action_head.model.transformer_blocks.", l));
    const int64_t source = l % 2 == 0 ? s.text : s.dit;  // even ones read the backbone
    block.linear("norm1.linear", 2 * s.dit, s.dit);
    block.linear("attn1.to_q", s.dit, s.dit);
    block.linear("attn1.to_k", s.dit, source);
    block.linear("attn1.to_v", s.dit, source);
    block.linear("attn1.to_out.0", s.dit, s.dit);
    feed_forward(block, s.dit);
    out.append(block.tensors);
  }
  out.linear("model.proj_out_1", 2 * s.dit, s.dit);
  out.linear("model.proj_out_2", s.hidden, s.dit);
  for (int64_t l = 0; l < s.vl_layers; ++l) {
    Names block(numbered("action_head.vl_self_attention.transformer_blocks.", l));
    block.norm("norm1", s.text);
    block.norm("norm3", s.text);
    for (const char* one : {"to_q", "to_k", "to_v", "to_out.0"}) {
      block.linear(std::string("attn1.") + one, s.text, s.text);
    }
    feed_forward(block, s.text);
    out.append(block.tensors);
  }
  out.per_slot("state_encoder.layer1", s.slots, s.state, s.hidden);
  out.per_slot("state_encoder.layer2", s.slots, s.hidden, s.dit);
  out.per_slot("action_encoder.W1", s.slots, s.action, s.dit);
  out.per_slot("action_encoder.W2", s.slots, 2 * s.dit, s.dit);
  out.per_slot("action_encoder.W3", s.slots, s.dit, s.dit);
  out.per_slot("action_decoder.layer1", s.slots, s.hidden, s.hidden);
  out.per_slot("action_decoder.layer2", s.slots, s.hidden, s.action);
  out.norm("vlln", s.text);
  out.add("position_embedding.weight", {s.rows, s.dit});
  return out.tensors;
}

}  // namespace

int64_t GrootPublicTensor::numel() const {
  int64_t out = 1;
  for (const int64_t size : shape) out *= size;
  return out;
}

GrootPublicSizes groot_published(GrootVersion version) {
  GrootPublicSizes s;
  if (version == GrootVersion::kN16) return s;
  s.version = version;
  s.vision = 1024;
  s.vision_layers = 24;
  s.vision_mlp = 4096;
  s.positions = 2304;
  s.patch = 16;
  s.frames = 2;
  s.deepstack = 3;
  s.vocab = 151936;
  s.vl_layers = 4;
  s.state = s.action = 132;
  return s;
}

GrootPublicSizes groot_demo(GrootVersion version) {
  GrootPublicSizes s = groot_published(version);
  const bool n17 = version == GrootVersion::kN17;
  s.vision = 32;
  s.vision_layers = 2;
  s.vision_mlp = 64;
  s.positions = 16;
  s.patch = n17 ? 6 : 14;
  s.deepstack = n17 ? 1 : 0;
  s.vocab = 1024;
  s.text = 64;
  s.text_layers = 2;
  s.text_mlp = 128;
  s.queries = 96;
  s.keys = 48;
  s.head = 24;
  s.dit = 64;
  s.dit_layers = 4;
  s.vl_layers = n17 ? 1 : 0;
  s.hidden = s.rows = 64;
  s.state = s.action = 8;
  return s;
}

std::string groot_output_head(GrootVersion version) {
  return version == GrootVersion::kN17 ? "backbone.model.lm_head.weight"
                                       : "backbone.model.language_model.lm_head.weight";
}

std::string groot_embedding(GrootVersion version) {
  return text_name(version, "embed_tokens.weight");
}

std::string groot_text_layer(GrootVersion version, int64_t layer) {
  return numbered(text_name(version, "layers."), layer);
}

std::vector<GrootPublicTensor> groot_public_text_layer(const GrootPublicSizes& s, int64_t layer) {
  Names out(groot_text_layer(s.version, layer));
  out.add("input_layernorm.weight", {s.text});
  out.add("post_attention_layernorm.weight", {s.text});
  out.add("self_attn.q_proj.weight", {s.queries, s.text});
  out.add("self_attn.k_proj.weight", {s.keys, s.text});
  out.add("self_attn.v_proj.weight", {s.keys, s.text});
  out.add("self_attn.o_proj.weight", {s.text, s.queries});
  out.add("self_attn.q_norm.weight", {s.head});
  out.add("self_attn.k_norm.weight", {s.head});
  out.add("mlp.gate_proj.weight", {s.text_mlp, s.text});
  out.add("mlp.up_proj.weight", {s.text_mlp, s.text});
  out.add("mlp.down_proj.weight", {s.text, s.text_mlp});
  return out.tensors;
}

std::vector<GrootPublicTensor> groot_public_tensors(const GrootPublicSizes& s) {
  Names out;
  out.append(s.version == GrootVersion::kN17 ? qwen_vision(s) : siglip(s));
  out.add(groot_embedding(s.version), {s.vocab, s.text});
  for (int64_t l = 0; l < s.text_layers; ++l) out.append(groot_public_text_layer(s, l));
  out.add(text_name(s.version, "norm.weight"), {s.text});
  out.add(groot_output_head(s.version), {s.vocab, s.text});
  out.append(action_head(s));
  return out.tensors;
}

}  // namespace longship::models::testing
