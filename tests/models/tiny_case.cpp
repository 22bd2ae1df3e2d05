#include "models/tiny_case.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "io/tensor_io.h"
#include "support/paths.h"

namespace longship::models::testing {
namespace {

class PlainOptimizer : public ParityOptimizer {
 public:
  PlainOptimizer(std::vector<ParamInfo> parameters, const ParityRecipe& recipe)
      : parameters_(std::move(parameters)),
        r_(recipe),
        m_(parameters_.size()),
        v_(parameters_.size()) {}

  double lr(int64_t step) const override {
    const double s = static_cast<double>(step), w = static_cast<double>(r_.warmup_steps);
    const double q = (s - w) / (static_cast<double>(r_.decay_steps) - w);
    const auto cosine = [&](double x) {
      return r_.min_lr + (r_.peak_lr - r_.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * x));
    };
    if (r_.schedule.find("openpi") != std::string::npos) {
      const double first = r_.peak_lr / (w + 1);
      return s < w ? first + (r_.peak_lr - first) * s / w : cosine(std::min(1.0, q));
    }
    return s < w ? r_.peak_lr * s / w : cosine(q);
  }

  double step(int64_t step) override {
    at::NoGradGuard no_grad;
    double squares = 0;
    for (const ParamInfo& info : parameters_) {
      if (info.tensor.grad().defined())
        squares += info.tensor.grad().to(at::kDouble).pow(2).sum().item<double>();
    }
    const double norm = std::sqrt(squares), clip = std::min(1.0, r_.clip_norm / (norm + 1e-6)),
                 rate = lr(step);
    const double t = static_cast<double>(step + 1);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].role == ParamRole::kFrozen) continue;
      at::Tensor p = parameters_[i].tensor.detach();
      if (std::find(r_.no_decay.begin(), r_.no_decay.end(), parameters_[i].name) ==
          r_.no_decay.end()) {
        p.mul_(1 - rate * r_.weight_decay);
      }
      if (!parameters_[i].tensor.grad().defined()) continue;
      const at::Tensor g = parameters_[i].tensor.grad().mul(clip);
      if (!m_[i].defined()) m_[i] = at::zeros_like(g);
      if (!v_[i].defined()) v_[i] = at::zeros_like(g);
      m_[i].mul_(r_.beta1).add_(g, 1 - r_.beta1);
      v_[i].mul_(r_.beta2).addcmul_(g, g, 1 - r_.beta2);
      const at::Tensor scale = v_[i].div(1 - std::pow(r_.beta2, t)).sqrt_().add_(r_.eps);
      p.addcdiv_(m_[i], scale, -rate / (1 - std::pow(r_.beta1, t)));
      parameters_[i].tensor.mutable_grad() = at::Tensor();
    }
    return norm;
  }

 private:
  std::vector<ParamInfo> parameters_;
  ParityRecipe r_;
  std::vector<at::Tensor> m_, v_;
};

}  // namespace

Pi05Batch PaddedInputs::pack_batch() const {
  Pi05Batch batch = pack(images, image_masks, tokens, token_mask, state, actions, action_is_pad);
  batch.noise = noise;
  batch.time = time;
  return batch;
}

PaddedInputs tiny_inputs(const std::string& golden, int64_t batch) {
  const auto tensors =
      io::load_tensors(longship::testing::golden_path(golden) / "inputs.safetensors");
  const auto get = [&](const char* name) { return tensors.at(fmt::format("b{}.{}", batch, name)); };
  return {get("images"),  get("image_masks"),   get("tokens"), get("token_mask"), get("state"),
          get("actions"), get("action_is_pad"), get("noise"),  get("time")};
}

std::unique_ptr<Pi05Policy> tiny_policy(const std::string& golden,
                                        const std::function<void(Pi05Config&)>& change,
                                        at::ScalarType dtype, const BuildOptions& build) {
  const auto folder = longship::testing::golden_path(golden);
  Pi05Config config = pi05_import_config(folder / "config.json");
  if (change) change(config);
  BuildOptions options = build;
  options.dtype = dtype;
  options.initialise = false;
  auto policy = std::make_unique<Pi05Policy>(config, options);
  policy->load_weights(folder / "weights.safetensors");
  return policy;
}

std::unique_ptr<ParityOptimizer> plain_optimizer(std::vector<ParamInfo> parameters,
                                                 const ParityRecipe& recipe) {
  return std::make_unique<PlainOptimizer>(std::move(parameters), recipe);
}

double relative(const at::Tensor& ours, const at::Tensor& ref) {
  return parity_error(ours, ref, 1e-6).second;
}

}  // namespace longship::models::testing
