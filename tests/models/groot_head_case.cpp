#include "groot_head_case.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "io/tensor_io.h"
#include "models/parity.h"
#include "nn/tensor_math.h"
#include "support/paths.h"

namespace longship::models::testing {
namespace {

using longship::testing::golden_path;
using nlohmann::json;

GrootHeadSizes sizes_of(const json& c) {
  GrootHeadSizes s;
  const json& dit = c.at("diffusion_model_cfg");
  s.version = c.at("model_type") == "Gr00tN1d6" ? 16 : 17;
  s.backbone_width = c.at("backbone_embedding_dim");
  s.hidden = c.at("hidden_size");
  s.width = c.at("input_embedding_dim");
  s.state_dim = c.at("max_state_dim").get<int64_t>() * c.value("state_history_length", 1);
  s.action_dim = c.at("max_action_dim");
  s.horizon = c.at("action_horizon");
  s.embodiments = c.at("max_num_embodiments");
  s.heads = dit.at("num_attention_heads");
  s.head_dim = dit.at("attention_head_dim");
  s.depth = dit.at("num_layers");
  s.interleave_self_attention = dit.at("interleave_self_attention");
  s.alternate_vl = c.at("use_alternate_vl_dit");
  s.attend_text_every_n_blocks = c.at("attend_text_every_n_blocks");
  s.vl_depth = 0;
  if (c.value("use_vl_self_attention", false)) {
    const json& vl = c.at("vl_self_attention_cfg");
    s.vl_depth = vl.at("num_layers");
    s.vl_heads = vl.at("num_attention_heads");
    s.vl_head_dim = vl.at("attention_head_dim");
  }
  s.has_vlln = c.at("use_vlln");
  s.position_rows = c.at("add_pos_embed") ? c.at("max_seq_len").get<int64_t>() : 0;
  s.noise_s = c.at("noise_s");
  s.time_buckets = c.at("num_timestep_buckets");
  s.inference_steps = c.at("num_inference_timesteps");
  s.state_dropout = c.at("state_dropout_prob");
  return s;
}

}  // namespace

json read_golden_json(const std::string& file) {
  std::ifstream in(golden_path(file));
  return json::parse(in);
}

HeadCase::HeadCase(const std::string& folder, const nn::Fused& fused, at::ScalarType dtype)
    : sizes(sizes_of(read_golden_json(folder + "/config.json"))),
      head(sizes, groot_head_precision(sizes.version, dtype), fused),
      inputs(io::load_tensors(golden_path(folder) / "inputs.safetensors")) {
  const at::ScalarType stored = dtype == at::kDouble ? at::kDouble : at::kFloat;
  head.materialise(at::kCPU, [=](std::string_view) { return stored; });
  HeadTensors weights = io::load_tensors(golden_path(folder) / "weights.safetensors");
  for (auto& [name, parameter] : head.named_parameters()) {
    const auto it = weights.find(name);
    LS_CHECK(it != weights.end(), InternalError, "the case has no weight '{}'", name);
    LS_CHECK(it->second.sizes() == parameter.sizes(), InternalError, "shape of '{}'", name);
    parameter.copy_(it->second);
    parameter.set_requires_grad(true);
    weights.erase(it);
  }
  LS_CHECK(weights.empty(), InternalError, "no parameter takes '{}'", weights.begin()->first);
  features =
      inputs.at("backbone_features").to(stored, false, /*copy=*/true).set_requires_grad(true);
}

GrootVlContext HeadCase::context(const GrootHeadCall& call) const {
  return head.encode_context(features, flag("backbone_attention_mask"), flag("image_mask"), call);
}

GrootFlowInputs HeadCase::flow_inputs() const {
  return {in("state"),
          in("action"),
          in("action_mask"),
          in("noise"),
          in("beta_sample"),
          in("embodiment_id"),
          head.left_out(in("state_dropout_u"))};
}

GrootFlow HeadCase::flow(const GrootHeadCall& call) const {
  return head.flow(context(call), flow_inputs(), call);
}

HeadTensors HeadCase::outcome(const GrootHeadCall& call) {
  const GrootFlow out = flow(call);
  out.loss.backward();
  HeadTensors all{{"loss", out.loss.detach()}, {"pred", out.pred.detach()}};
  for (auto& [name, parameter] : head.named_parameters()) all["grad." + name] = grad_of(parameter);
  all["grad_input.backbone_features"] = grad_of(features);
  return all;
}

at::Tensor HeadCase::grad_of(const at::Tensor& t) {
  return t.grad().defined() ? t.grad().clone() : at::zeros_like(t);
}

bool zero_in_exact_arithmetic(const std::string& name) {
  return name.ends_with("attn1.to_k.bias");
}

double head_error(const at::Tensor& ours, const at::Tensor& ref) {
  return parity_error(ours, ref, 1e-6).second;
}

void expect_close(const HeadTensors& ours, const HeadTensors& ref, double tolerance) {
  double largest = 0;
  for (const auto& [name, tensor] : ref) {
    if (name.starts_with("grad")) largest = std::max(largest, tensor.abs().max().item<double>());
  }
  for (const auto& [name, tensor] : ref) {
    if (zero_in_exact_arithmetic(name)) continue;
    const double floor = name.starts_with("grad") ? 1e-3 * largest : 1e-6;
    EXPECT_LT(parity_error(ours.at(name), tensor, floor).second, tolerance) << name;
  }
}

void expect_equal(const HeadTensors& ours, const HeadTensors& ref) {
  for (const auto& [name, tensor] : ref) EXPECT_TRUE(at::equal(ours.at(name), tensor)) << name;
}

at::Tensor drop_drawn(const at::Tensor& x, int64_t site) {
  at::Tensor out = at::zeros(x.sizes());
  std::vector<double> u(static_cast<size_t>(out.numel()));
  fill_uniform(make_key(1, RngStream::kDropout, 0, static_cast<uint64_t>(site)), u);
  for (size_t i = 0; i < u.size(); ++i) {
    out.mutable_data_ptr<float>()[i] = u[i] < 0.2 ? 0.0f : 1.25f;
  }
  return x * out;
}

}  // namespace longship::models::testing
