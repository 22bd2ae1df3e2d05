#include "models/groot/parity.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "io/tensor_io.h"
#include "models/common/strict_weights.h"
#include "models/groot/policy.h"
#include "nn/functions.h"
#include "nn/tensor_math.h"

namespace longship::models {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

/// Tensors of inputs.safetensors and its like.
class Inputs {
 public:
  explicit Inputs(const std::filesystem::path& path)
      : path_(path), tensors_(io::load_tensors(path)) {}
  bool has(const std::string& name) const { return tensors_.contains(name); }
  const at::Tensor& operator[](const std::string& name) const {
    const auto it = tensors_.find(name);
    LS_CHECK(it != tensors_.end(), ConfigError, "{}: tensor '{}' is missing", path_.string(), name);
    return it->second;
  }
  const std::filesystem::path& path() const { return path_; }
  /// These inputs moved by rounding.
  Inputs moved(uint64_t member, const std::string& prefix) const {
    Inputs out = *this;
    out.tensors_ = parity_moved(tensors_, member, prefix);
    return out;
  }

 private:
  std::filesystem::path path_;
  Tensors tensors_;
};

GrootVersion version_of(const ParityCase& c) {
  return c.family == "groot_n17" ? GrootVersion::kN17 : GrootVersion::kN16;
}

void collect_gradients(const std::vector<ParamInfo>& parameters, Tensors& out,
                       size_t drop_prefix = 0) {
  for (const ParamInfo& info : parameters) {
    if (info.role == ParamRole::kFrozen) continue;
    const at::Tensor& grad = info.tensor.grad();
    out["grad." + info.name.substr(drop_prefix)] =
        grad.defined() ? grad.to(at::kFloat) : at::zeros_like(info.tensor, at::kFloat);
  }
}

void to_host(Tensors& tensors) {
  for (auto& [name, value] : tensors) {
    value = value.detach().to(at::kCPU);
    if (value.is_floating_point()) value = value.to(at::kFloat);
  }
}

void add_flow(const GrootFlow& flow, Tensors& out) {
  out["loss"] = flow.loss.reshape({1});
  out["pred"] = flow.pred;
  out["action_loss"] = flow.action_loss;
  out["t"] = flow.time;
  out["t_discretized"] = flow.bucket;
}

// N1.6 records pictures as CHW tensors: rows of patches, values in order (y, x, channel).
at::Tensor raster_patches(const at::Tensor& picture, int64_t patch) {
  const int64_t rows = picture.size(2) / patch, columns = picture.size(3) / patch;
  return picture.reshape({3, rows, patch, columns, patch})
      .permute({1, 3, 2, 4, 0})
      .reshape({rows * columns, patch * patch * 3})
      .contiguous();
}

/// The padded, left-aligned recording as a packed batch.
GrootBatch pack(const Inputs& in, GrootSizes& sizes) {
  GrootBatch batch;
  const at::Tensor ids = in["input_ids"].to(at::kLong), mask = in["attention_mask"].to(at::kBool);
  const int64_t count = ids.size(0);
  std::vector<at::Tensor> tokens;
  for (int64_t b = 0; b < count; ++b) {
    const at::Tensor valid = mask.select(0, b);
    tokens.push_back(ids.select(0, b).masked_select(valid));
    batch.lengths.push_back(tokens.back().size(0));
    batch.sample_ids.push_back(b);
    const at::Tensor padding = ids.select(0, b).masked_select(valid.logical_not());
    if (padding.size(0) > 0) sizes.text.pad_token = padding.select(0, 0).item<int64_t>();
  }
  batch.token_ids = at::cat(tokens).contiguous();
  if (in.has("pixel_values")) {
    batch.patches = in["pixel_values"];
    const at::Tensor grids = in["image_grid_thw"].to(at::kLong).contiguous();
    const auto at = grids.accessor<int64_t, 2>();
    for (int64_t v = 0; v < grids.size(0); ++v) batch.grids.push_back({at[v][1], at[v][2]});
  } else {
    std::vector<at::Tensor> rows;
    for (int64_t v = 0; in.has(fmt::format("pixel_values.{}", v)); ++v) {
      const at::Tensor picture = in[fmt::format("pixel_values.{}", v)];
      rows.push_back(raster_patches(picture, sizes.vision.patch_size));
      batch.grids.push_back(
          {picture.size(2) / sizes.vision.patch_size, picture.size(3) / sizes.vision.patch_size});
    }
    batch.patches = at::cat(rows);
  }
  // Pictures belong to samples by the placeholders that they fill.
  size_t picture = 0;
  for (const at::Tensor& own : tokens) {
    int64_t left = own.eq(sizes.text.image_token).sum().item<int64_t>();
    batch.pictures.push_back(0);
    while (left > 0 && picture < batch.grids.size()) {
      left -= batch.grids[picture][0] * batch.grids[picture][1] / 4;
      ++batch.pictures.back();
      ++picture;
    }
  }
  batch.embodiment = in.has("embodiment_id") ? in["embodiment_id"].to(at::kLong)
                                             : at::zeros_like(ids.select(1, 0));
  if (!in.has("action")) return batch;
  batch.state = in["state"];
  batch.actions = in["action"];
  batch.action_mask = in["action_mask"];
  batch.noise = in["noise"];
  batch.beta = in["beta_sample"];
  if (in.has("state_dropout_u")) batch.state_u = in["state_dropout_u"];
  return batch;
}

// Documented in README.md: about twice the largest difference seen on the recorded cases. Those are
// fp32 throughout, so N1.6's inputs are not rounded for the comparison.
ParityTolerance low_precision() {
  return {.outputs = 4e-1,
          .loss = 5e-2,
          .grads = 8e-1,
          .train = 5e-1,
          .sample = 2e-1,
          .zero_grads = 5e-2};
}

GrootConfig case_config(const ParityCase& c) {
  GrootConfig config = groot_import_config(c.folder / "config.json", version_of(c));
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
    pack(inputs_.front(), *config_.imported);  // finds the padding token
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
      add_activations(own);
      for (auto& [name, value] : own) out[prefix + name] = value;
    };
    if (config_.is_n17()) run("loongforge", "postnorm.");
    run("isaac", "");
    to_host(out);
    return out;
  }

  Tensors sample() override {
    if (!inputs_.front().has("sample_noise")) return {};
    const at::NoGradGuard no_grad;
    const at::Tensor noise = inputs_.front()["sample_noise"].to(options_.device);
    const GrootBatch own = batch(0);
    GrootModel& model = policy_->model();
    Tensors out{{"action_pred", model.integrate(model.encode(own), own, noise)}};
    to_host(out);
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
  ParityTolerance low_precision_tolerance() const override { return low_precision(); }

 private:
  std::unique_ptr<GrootPolicy> make_policy(const std::string& parity) const {
    GrootConfig config = config_;
    config.parity = parity;
    auto policy = std::make_unique<GrootPolicy>(config, parity_build_options(options_));
    policy->load_weights(folder_ / "weights.safetensors");
    return policy;
  }

  GrootBatch batch(int64_t index) {
    GrootBatch out = pack(inputs_.at(static_cast<size_t>(index)), *config_.imported);
    policy_->model().prepare(out);
    out.to(options_.device);
    return out;
  }

  /// Packed rows of text as the recording has them, padded.
  void add_activations(Tensors& out) {
    const GrootBatch own = batch(0);
    const auto padded = [&](const at::Tensor& rows) {
      return nn::select_rows(rows, own.layout.pad_index).unflatten(0, own.layout.valid.sizes());
    };
    for (int64_t l = 0; out.contains(fmt::format("text_layer{}.out", l)); ++l) {
      out[fmt::format("act.text_layer{}", l)] = padded(out.at(fmt::format("text_layer{}.out", l)));
    }
    const std::string last = "act.text_last_layer_pre_norm";
    if (out.contains(last)) out[last] = padded(out.at(last));
    for (const char* name : {"act.projector", "act.vision_last_hidden_state"}) {
      if (!config_.is_n17() && out.contains(name)) out[name] = out.at(name).unsqueeze(0);
    }
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
    if (notes.contains("rtc_options")) rtc_ = notes["rtc_options"];
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
    to_host(out);
    return out;
  }

  Tensors sample() override {
    const at::NoGradGuard no_grad;
    const GrootVlContext rows = context(input("backbone_features"));
    const at::Tensor state = input("state"), noise = input("sample_noise");
    const at::Tensor embodiment = input("embodiment_id").to(at::kLong);
    Tensors out{{"action_pred", head_.integrate(rows, state, embodiment, noise)}};
    if (rtc_) {
      GrootRtc rtc;
      rtc.previous = sample_.at("rtc_prev_action").to(device_);
      rtc.action_horizon = rtc_->at("action_horizon").get<int64_t>();
      rtc.overlap_steps = rtc_->at("rtc_overlap_steps").get<int64_t>();
      rtc.frozen_steps = rtc_->at("rtc_frozen_steps").get<int64_t>();
      rtc.ramp_rate = rtc_->at("rtc_ramp_rate").get<double>();
      out["rtc_action_pred"] = head_.integrate(rows, state, embodiment, noise, {}, &rtc);
    }
    to_host(out);
    return out;
  }

  void move_inputs(uint64_t) override {}  // nothing is trained
  std::vector<ParamInfo> begin_trajectory(const std::string& file, const std::string&) override {
    throw ConfigError(fmt::format("{}: a head alone has no recorded training", file));
  }
  at::Tensor train_loss(int64_t) override { return {}; }
  ParityTolerance low_precision_tolerance() const override { return low_precision(); }

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

/// N1.7's backbone alone, under the names of its own checkpoint.
class BackboneAdapter : public ParityAdapter {
 public:
  BackboneAdapter(const ParityCase& c, const ParityOptions& options)
      : options_(options),
        sizes_(groot_import_backbone(c.folder / "backbone_config.json", version_of(c))),
        inputs_(c.folder / "inputs.safetensors"),
        backbone_(make_groot_backbone(sizes_, /*final_norm=*/false)) {
    backbone_->materialise(options.device, [&](std::string_view) { return options.dtype; });
    const io::Weights weights = io::open_weights(c.folder / "weights.safetensors");
    WeightFaults faults;
    NamedInfos tensors = collect_weights(
        weights,
        [](std::string_view name) -> std::optional<std::string> {
          if (name.ends_with("lm_head.weight")) return std::nullopt;
          return fmt::format("model.{}", name);
        },
        faults);
    copy_weights(*backbone_, weights, std::move(tensors), c.folder, "backbone_config.json",
                 std::move(faults), {});
  }

  Tensors forward() override {
    const at::NoGradGuard no_grad;
    GrootBatch batch = pack(inputs_, sizes_);
    batch.layout =
        make_groot_layout({batch.grids, batch.pictures, batch.lengths, batch.token_ids}, sizes_);
    batch.to(options_.device);
    Tensors taps, out;
    GrootBackboneRun run;
    run.dtype = options_.dtype;
    run.fused = options_.fused;
    run.tap = [&](std::string_view name, const at::Tensor& value) {
      taps.emplace(std::string(name), value);
    };
    const auto padded = [&](const at::Tensor& rows) {
      return nn::select_rows(rows, batch.layout.pad_index).unflatten(0, batch.layout.valid.sizes());
    };
    const int64_t depth = sizes_.text.depth;
    const at::Tensor rows = backbone_->begin(batch, run, depth);
    out["pre_norm_hidden"] = padded(backbone_->finish(rows, batch, run, depth));
    out["vision.features"] = taps.at("act.vision_merger");
    for (size_t j = 0; j < sizes_.vision.deepstack.size(); ++j) {
      out[fmt::format("vision.deepstack{}", j)] = taps.at(fmt::format("act.deepstack{}", j));
    }
    for (int64_t l = 0; l < sizes_.text.depth; ++l) {
      for (const char* end : {"in", "out"}) {
        out[fmt::format("text_layer{}_{}", l, end)] =
            padded(taps.at(fmt::format("text_layer{}.{}", l, end)));
      }
    }
    to_host(out);
    return out;
  }

  Tensors sample() override { return {}; }
  void move_inputs(uint64_t) override {}  // nothing is trained
  std::vector<ParamInfo> begin_trajectory(const std::string& file, const std::string&) override {
    throw ConfigError(fmt::format("{}: a backbone alone has no recorded training", file));
  }
  at::Tensor train_loss(int64_t) override { return {}; }
  ParityTolerance low_precision_tolerance() const override { return low_precision(); }

 private:
  ParityOptions options_;
  GrootSizes sizes_;
  Inputs inputs_;
  std::unique_ptr<GrootBackbone> backbone_;
};

}  // namespace

std::unique_ptr<ParityAdapter> make_groot_parity_adapter(const ParityCase& c,
                                                         const ParityOptions& options) {
  const nlohmann::json notes =
      parse_json_file(c.folder / "inputs.json", {.code = ExitCode::kConfig});
  const std::string kind = notes.value("kind", std::string("full"));
  if (kind == "full") return std::make_unique<FullAdapter>(c, options);
  if (kind == "head") return std::make_unique<HeadAdapter>(c, options);
  if (kind == "vision") return std::make_unique<BackboneAdapter>(c, options);
  throw ConfigError(fmt::format("{}: kind '{}' is none of full, head, vision",
                                (c.folder / "inputs.json").string(), kind));
}

}  // namespace longship::models
