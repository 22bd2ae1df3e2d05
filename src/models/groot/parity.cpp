#include "models/groot/parity.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "io/tensor_io.h"
#include "models/common/strict_weights.h"
#include "models/groot/parity_inputs.h"
#include "models/groot/policy.h"
#include "nn/functions.h"
#include "nn/tensor_math.h"

namespace longship::models {
namespace {

using Tensors = GrootParityTensors;
using Inputs = GrootParityInputs;

void collect_gradients(const std::vector<ParamInfo>& parameters, Tensors& out,
                       size_t drop_prefix = 0) {
  for (const ParamInfo& info : parameters) {
    if (info.role == ParamRole::kFrozen) continue;
    const at::Tensor& grad = info.tensor.grad();
    out["grad." + info.name.substr(drop_prefix)] =
        grad.defined() ? grad.to(at::kFloat) : at::zeros_like(info.tensor, at::kFloat);
  }
}

void add_flow(const GrootFlow& flow, Tensors& out) {
  out["loss"] = flow.loss.reshape({1});
  out["pred"] = flow.pred;
  out["action_loss"] = flow.action_loss;
  out["t"] = flow.time;
  out["t_discretized"] = flow.bucket;
}

GrootConfig case_config(const ParityCase& c) {
  GrootConfig config = groot_import_config(c.folder / "config.json", groot_parity_version(c));
  config.bf16_inputs = false;
  return config;
}

/// A whole model.
class FullAdapter : public ParityAdapter {
 public:
  FullAdapter(const ParityCase& c, const ParityOptions& options)
      : folder_(c.folder),
        options_(options),
        config_(case_config(c)),
        recorded_{Inputs(c.folder / "inputs.safetensors")} {
    if (std::filesystem::exists(folder_ / "inputs_b1.safetensors")) {
      recorded_.emplace_back(folder_ / "inputs_b1.safetensors");
    }
    inputs_ = recorded_;
    groot_parity_batch(inputs_.front(), *config_.imported);  // finds the padding token
    policy_ = make_policy("isaac");
  }

  Tensors forward() override {
    Tensors out;
    const auto run = [&](const std::string& parity, const std::string& prefix) {
      policy_ = make_policy(parity);
      GrootModel& model = policy_->model();
      Tensors own;
      model.set_tap([&](std::string_view name, const at::Tensor& value) {
        own.emplace(std::string(name), value.detach());
      });
      const GrootFlow flow = model.flow(batch(0), /*training=*/true);
      model.set_tap({});
      flow.loss.backward();
      add_flow(flow, own);
      collect_gradients(policy_->parameters(), own);
      own["grad_norm"] = parity_gradient_norm(own);
      add_activations(own);
      for (auto& [name, value] : own) out[prefix + name] = value;
    };
    if (config_.is_n17()) run("loongforge", "postnorm.");
    run("isaac", "");
    // The step as recorded with SDPA in the text layers. Here it is what the text layers use, and
    // padding rows leave it as zeros in both recordings.
    out["sdpa.loss"] = out.at("loss");
    groot_parity_to_host(out);
    return out;
  }

  Tensors sample() override {
    if (!inputs_.front().has("sample_noise")) return {};
    const at::NoGradGuard no_grad;
    const at::Tensor noise = inputs_.front()["sample_noise"].to(options_.device);
    const GrootBatch own = batch(0);
    GrootModel& model = policy_->model();
    Tensors out{{"action_pred", model.integrate(model.encode(own), own, noise)}, {"noise", noise}};
    groot_parity_to_host(out);
    return out;
  }

  void move_inputs(uint64_t member) override {
    inputs_.clear();
    for (const Inputs& inputs : recorded_) {
      inputs_.push_back(inputs.moved(member, fmt::format("input{}.", inputs_.size())));
    }
  }
  std::vector<ParamInfo> begin_trajectory(const std::string&, const std::string&) override {
    policy_ = make_policy("isaac");
    return policy_->parameters();
  }
  at::Tensor train_loss(int64_t index) override {
    return policy_->model().flow(batch(index), /*training=*/true).loss;
  }
  ParityTolerance low_precision_tolerance() const override {
    return groot_low_precision_tolerance();
  }
  std::vector<std::string> own_files() const override {
    return {"backbone_config.json", "inputs_b1.safetensors"};
  }

 private:
  std::unique_ptr<GrootPolicy> make_policy(const std::string& parity) const {
    GrootConfig config = config_;
    config.parity = parity;
    auto policy = std::make_unique<GrootPolicy>(config, parity_build_options(options_));
    policy->load_weights(folder_ / "weights.safetensors");
    return policy;
  }

  GrootBatch batch(int64_t index) {
    GrootBatch out = groot_parity_batch(inputs_.at(static_cast<size_t>(index)), *config_.imported);
    policy_->model().prepare(out, /*to_buckets=*/false);
    out.to(options_.device);
    return out;
  }

  /// Activations under the names and in the shapes of the recording: packed rows of text padded,
  /// N1.6's patches as one batch of all pictures.
  void add_activations(Tensors& out) {
    const GrootBatch own = batch(0);
    const auto padded = [&](const at::Tensor& rows) {
      return nn::select_rows(rows, own.layout.pad_index).unflatten(0, own.layout.valid.sizes());
    };
    const auto whole = [&](const at::Tensor& rows) {
      return config_.is_n17() ? rows : rows.unsqueeze(0);
    };
    // N1.6's reference keeps patches in the order of windows whether its attention stays inside of
    // them or not; ours does only where it has to.
    const auto windowed = [&](const at::Tensor& rows) {
      if (own.layout.window_order.defined()) return whole(rows);
      GrootSizes sizes = config_.sizes();
      sizes.vision.windows = true;
      const GrootLayout layout = make_groot_layout(
          {own.grids, own.pictures, own.lengths, own.token_ids.to(at::kCPU)}, sizes);
      return whole(nn::select_rows(rows, layout.window_order.to(rows.device())));
    };
    const auto each = [&](const char* ours, const char* theirs, const auto& shaped) {
      int64_t count = 0;
      for (; out.contains(fmt::format(fmt::runtime(ours), count)); ++count) {
        out[fmt::format(fmt::runtime(theirs), count)] =
            shaped(out.at(fmt::format(fmt::runtime(ours), count)));
      }
      return count;
    };
    const auto renamed = [&](const char* ours, const char* theirs, const auto& shaped) {
      if (out.contains(ours)) out[theirs] = shaped(out.at(ours));
    };
    each("text_layer{}.out", "act.text_layer{}", padded);
    each("vision_layer{}.out", "act.vision_layer{}", windowed);
    const int64_t blocks = each("vision_block{}.out", "act.vision_block{}", whole);
    if (blocks > 0) {
      out["act.vision_last_block"] = out.at(fmt::format("act.vision_block{}", blocks - 1));
    }
    renamed("vision.patches", "act.vision_patch_embed", whole);
    renamed("vision.embeddings", "act.vision_embeddings_windowed", windowed);
    for (const char* name : {"act.projector", "act.vision_last_hidden_state"}) {
      renamed(name, name, whole);
    }
    renamed("act.text_last_layer_pre_norm", "act.text_last_layer_pre_norm", padded);
    out["act.image_mask"] = own.layout.image.to(at::kFloat);
  }

  std::filesystem::path folder_;
  ParityOptions options_;
  GrootConfig config_;
  std::vector<Inputs> recorded_, inputs_;  // the second: what batches are made of
  std::unique_ptr<GrootPolicy> policy_;
};

/// The action head alone.
class HeadAdapter : public ParityAdapter {
 public:
  HeadAdapter(const ParityCase& c, const ParityOptions& options)
      : config_(case_config(c)),
        device_(options.device),
        inputs_(c.folder / "inputs.safetensors"),
        head_(groot_head_sizes(config_.sizes()), groot_head_precision(config_, options.dtype),
              options.fused) {
    const nlohmann::json notes =
        parse_json_file(c.folder / "inputs.json", {.code = ExitCode::kConfig});
    if (notes.contains("rtc_options") && notes["rtc_options"].is_object()) {
      rtc_ = notes["rtc_options"];
    }
    if (rtc_) sample_ = io::load_tensors(c.folder / "sample.safetensors");
    head_.materialise(device_, [&](std::string_view name) {
      return groot_parameter_dtype(options.dtype, "action_head." + std::string(name));
    });
    const io::Weights weights = io::open_weights(c.folder / "weights.safetensors");
    WeightFaults faults;
    NamedInfos tensors = collect_weights(
        weights, [](std::string_view name) { return std::string(name); }, faults);
    copy_weights(head_, weights, std::move(tensors), c.folder, "config.json", std::move(faults),
                 {});
    for (const auto& [name, tensor] : head_.named_parameters()) {
      tensor.set_requires_grad(true);
      parameters_.push_back({name, tensor, ParamRole::kTrainable});
    }
  }

  Tensors forward() override {
    Tensors out;
    const at::Tensor features = input("backbone_features").requires_grad_(true);
    head_.tap = [&](std::string_view name, const at::Tensor& value) {
      out.emplace(std::string(name), value.detach());
    };
    GrootFlowInputs in;
    in.state = input("state");
    in.actions = input("action");
    in.action_mask = input("action_mask");
    in.noise = input("noise");
    in.beta = input("beta_sample");
    in.embodiment = input("embodiment_id").to(at::kLong);
    in.left_out = head_.left_out(input("state_dropout_u"));
    const GrootFlow flow = head_.flow(context(features), in);
    head_.tap = nullptr;
    flow.loss.backward();
    add_flow(flow, out);
    collect_gradients(parameters_, out);
    out["grad_input.backbone_features"] = features.grad();
    groot_parity_to_host(out);
    return out;
  }

  Tensors sample() override {
    const at::NoGradGuard no_grad;
    const GrootVlContext rows = context(input("backbone_features"));
    const at::Tensor state = input("state"), noise = input("sample_noise");
    const at::Tensor embodiment = input("embodiment_id").to(at::kLong);
    Tensors out{{"action_pred", head_.integrate(rows, state, embodiment, noise)}, {"noise", noise}};
    if (rtc_) {
      GrootRtc rtc;
      rtc.previous = sample_.at("rtc_prev_action").to(device_);
      rtc.action_horizon = rtc_->at("action_horizon").get<int64_t>();
      rtc.overlap_steps = rtc_->at("rtc_overlap_steps").get<int64_t>();
      rtc.frozen_steps = rtc_->at("rtc_frozen_steps").get<int64_t>();
      rtc.ramp_rate = rtc_->at("rtc_ramp_rate").get<double>();
      out["rtc_action_pred"] = head_.integrate(rows, state, embodiment, noise, {}, &rtc);
    }
    groot_parity_to_host(out);
    return out;
  }

  void move_inputs(uint64_t) override {}  // nothing is trained
  std::vector<ParamInfo> begin_trajectory(const std::string& file, const std::string&) override {
    throw ConfigError(fmt::format("{}: a head alone has no recorded training", file));
  }
  at::Tensor train_loss(int64_t) override { return {}; }
  ParityTolerance low_precision_tolerance() const override {
    return groot_low_precision_tolerance();
  }
  // The chunk before, which real-time chunking continues.
  std::vector<std::string> recorded_inputs() const override { return {"sample:rtc_prev_action"}; }

 private:
  at::Tensor input(const std::string& name) const { return inputs_[name].to(device_); }
  GrootVlContext context(const at::Tensor& features) const {
    return head_.encode_context(features, input("backbone_attention_mask").to(at::kBool),
                                input("image_mask").to(at::kBool));
  }

  GrootConfig config_;
  at::Device device_;
  Inputs inputs_;
  GrootActionHead head_;
  std::optional<nlohmann::json> rtc_;
  Tensors sample_;
  std::vector<ParamInfo> parameters_;
};

}  // namespace

std::unique_ptr<ParityAdapter> make_groot_parity_adapter(const ParityCase& c,
                                                         const ParityOptions& options) {
  const nlohmann::json notes =
      parse_json_file(c.folder / "inputs.json", {.code = ExitCode::kConfig});
  const std::string kind = notes.value("kind", std::string("full"));
  if (kind == "full") return std::make_unique<FullAdapter>(c, options);
  if (kind == "head") return std::make_unique<HeadAdapter>(c, options);
  if (kind == "vision") return make_groot_backbone_parity_adapter(c, options);
  throw ConfigError(fmt::format("{}: kind '{}' is none of full, head, vision",
                                (c.folder / "inputs.json").string(), kind));
}

}  // namespace longship::models
