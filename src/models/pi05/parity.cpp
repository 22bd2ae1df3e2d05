#include "models/pi05/parity.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "io/tensor_io.h"
#include "models/pi05/policy.h"
#include "models/pi05/sampling.h"
#include "nn/tensor_math.h"

namespace longship::models {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

class Pi05ParityAdapter : public ParityAdapter {
 public:
  Pi05ParityAdapter(const ParityCase& c, const ParityOptions& options)
      : folder_(c.folder),
        options_(options),
        config_(pi05_import_config(c.folder / "config.json")) {
    config_.freeze.clear();  // a case holds the gradient of every parameter
    recorded_ = io::load_tensors(folder_ / "inputs.safetensors");
    inputs_ = recorded_;
    num_slots_ = input("b0.images").size(1);
    if (!config_.data.cameras.empty()) {
      num_slots_ = std::min<int64_t>(num_slots_, static_cast<int64_t>(config_.data.cameras.size()));
    }
    if (std::filesystem::exists(folder_ / "inputs.json")) read_notes();
    policy_ = make_policy("openpi");
  }

  Tensors forward() override {
    Tensors out, taps;
    const Pi05Batch batch = make_batch(0);
    policy_->model().tap = [&](std::string_view name, const at::Tensor& value) {
      taps.emplace(std::string(name), value.detach().to(at::kCPU).to(at::kFloat));
    };
    const Pi05Flow flow = policy_->flow(batch);
    policy_->model().tap = nullptr;
    at::Tensor loss = policy_->reduce(flow, batch);
    loss.backward();
    const at::Tensor elem = flow.elem.detach();
    const at::Tensor real = elem.narrow(-1, 0, config_.action_dim);
    const at::Tensor valid = batch.action_is_pad.logical_not().to(at::kFloat);
    out["x_t"] = flow.x_t;
    out["u_t"] = flow.u_t;
    out["v_t"] = flow.v_t;
    out["loss"] = loss.reshape({1});
    out["loss_elem"] = elem;
    out["loss_per_sample"] = at::mean(elem, {1, 2});
    out["loss_real_dims"] = at::mean(real).reshape({1});
    out["loss_real_dims_valid_steps"] =
        (at::sum(at::mean(real, {-1}) * valid) / valid.sum().clamp_min(1)).reshape({1});
    add_gradients(out);
    add_activations(taps, out);
    for (auto& [name, value] : out) value = value.detach().to(at::kCPU);
    return out;
  }

  Tensors sample() override {
    if (!inputs_.contains("sample.noise")) return {};
    at::NoGradGuard no_grad;
    const Pi05Batch batch = make_batch(0);
    const Pi05Model& model = policy_->model();
    const PrefixLayout layout = model.layout(batch);
    const at::Tensor actions =
        model.integrate(model.encode_prefix(batch, layout), layout, batch.state,
                        input("sample.noise").to(options_.device));
    return {{"actions", actions.to(at::kCPU)}};
  }

  void move_inputs(uint64_t member) override {
    inputs_ = parity_moved(recorded_, member, "input.");
  }

  std::vector<ParamInfo> begin_trajectory(const std::string& file,
                                          const std::string& description) override {
    const bool loongforge = file.find("loongforge") != std::string::npos ||
                            description.find("loongforge") != std::string::npos;
    policy_ = make_policy(loongforge ? "loongforge" : "openpi");
    return policy_->parameters();
  }

  at::Tensor train_loss(int64_t batch) override { return policy_->loss(make_batch(batch)).loss; }

  ParityTolerance low_precision_tolerance() const override {
    // Documented in README.md: several times the largest difference seen on the recorded cases.
    return {.outputs = 1e-1,
            .loss = 2e-2,
            .grads = 5e-1,
            .train = 2e-1,
            .sample = 1e-1,
            .zero_grads = 2e-2};
  }

 private:
  const at::Tensor& input(const std::string& name) const {
    const auto it = inputs_.find(name);
    LS_CHECK(it != inputs_.end(), ConfigError, "{}: tensor '{}' is missing",
             (folder_ / "inputs.safetensors").string(), name);
    return it->second;
  }

  void read_notes() {
    const nlohmann::json notes =
        parse_json_file(folder_ / "inputs.json", {.code = ExitCode::kConfig});
    try {
      num_slots_ = notes.value("camera_slots_used", num_slots_);
      config_.action_dim = notes.value("real_action_dim", config_.action_dim);
      config_.state_dim = notes.value("real_state_dim", config_.state_dim);
      config_.num_inference_steps = notes.value("num_inference_steps", config_.num_inference_steps);
    } catch (const nlohmann::json::exception& e) {
      throw ConfigError(fmt::format("{}: {}", (folder_ / "inputs.json").string(), e.what()));
    }
    LS_CHECK(num_slots_ >= 1 && num_slots_ <= input("b0.images").size(1), ConfigError,
             "{}: camera_slots_used is {}, the images have {} slots",
             (folder_ / "inputs.json").string(), num_slots_, input("b0.images").size(1));
  }

  std::unique_ptr<Pi05Policy> make_policy(const std::string& parity) const {
    Pi05Config config = config_;
    config.parity = parity;
    auto policy = std::make_unique<Pi05Policy>(config, parity_build_options(options_));
    policy->load_weights(folder_ / "weights.safetensors");
    return policy;
  }

  Pi05Batch make_batch(int64_t i) const {
    const std::string p = fmt::format("b{}.", i);
    Pi05Batch batch = pack(input(p + "images").narrow(1, 0, num_slots_),
                           input(p + "image_masks").narrow(1, 0, num_slots_), input(p + "tokens"),
                           input(p + "token_mask"), input(p + "state"), input(p + "actions"),
                           input(p + "action_is_pad"));
    batch.noise = input(p + "noise");
    batch.time = input(p + "time");
    policy_->prepare(batch, {});
    batch.to(options_.device);
    return batch;
  }

  void add_gradients(Tensors& out) {
    for (ParamInfo& info : policy_->parameters()) {
      if (info.role == ParamRole::kFrozen) continue;
      const at::Tensor& grad = info.row_sparse ? info.row_sparse->grad : info.tensor.grad();
      out["grad." + info.name] =
          grad.defined() ? grad.to(at::kFloat) : at::zeros_like(info.tensor, at::kFloat);
    }
  }

  /// Renames activations of the packed layout to those of the recording.
  void add_activations(const Tensors& taps, Tensors& out) const {
    const at::Tensor image_masks = input("b0.image_masks").narrow(1, 0, num_slots_).to(at::kBool);
    const int64_t tokens_per_image = policy_->model().sizes().vision.num_tokens();
    const at::Tensor mask = at::cat(
        {image_masks.repeat_interleave(tokens_per_image, 1), input("b0.token_mask").to(at::kBool)},
        1);
    const bool first_slot_everywhere = image_masks.select(1, 0).all().item<bool>();
    for (const auto& [name, value] : taps) {
      if (name.starts_with("act.stream0.")) {
        at::Tensor padded = at::zeros({mask.size(0), mask.size(1), value.size(-1)}, at::kFloat);
        padded.index_put_({mask}, value);
        out[name] = padded;
      } else if (name.starts_with("act.vision.")) {
        if (first_slot_everywhere)
          out["act.vision.cam0." + name.substr(11)] = first_slots(value, image_masks);
      } else {
        out[name] = value;
      }
    }
  }

  /// Rows of packed pictures that belong to slot 0; every sample has one.
  static at::Tensor first_slots(const at::Tensor& packed, const at::Tensor& image_masks) {
    const at::Tensor counts = image_masks.sum(1);
    return packed.index_select(0, counts.cumsum(0) - counts);
  }

  std::filesystem::path folder_;
  ParityOptions options_;
  Pi05Config config_;
  Tensors recorded_, inputs_;  // the second: what batches are made of
  int64_t num_slots_ = 0;
  std::unique_ptr<Pi05Policy> policy_;
};

}  // namespace

std::unique_ptr<ParityAdapter> make_pi05_parity_adapter(const ParityCase& c,
                                                        const ParityOptions& options) {
  return std::make_unique<Pi05ParityAdapter>(c, options);
}

}  // namespace longship::models
