#include "pi05_runs.h"

#include <ATen/DeviceGuard.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>

#include "base/error.h"
#include "models/tiny_case.h"
#include "ranks.h"
#include "runtime/device.h"
#include "support/paths.h"

namespace longship::dist {
namespace {

using models::ParamInfo;
using models::ParamRole;
using models::testing::PaddedInputs;

constexpr int64_t kSamples = 12;
// With 1e-3 the rounding of another order of sums grows from the tenth step on, by an amount that
// depends on the processor's vectors.
constexpr double kLr = 5e-4;

PaddedInputs all_samples() {
  const PaddedInputs a = models::testing::tiny_inputs("pi05/tiny_train", 0);
  const PaddedInputs b = models::testing::tiny_inputs("pi05/tiny_train", 1);
  const auto three = [](const at::Tensor& x, const at::Tensor& y) { return at::cat({x, y, x}); };
  PaddedInputs out{three(a.images, b.images),
                   three(a.image_masks, b.image_masks),
                   three(a.tokens, b.tokens),
                   three(a.token_mask, b.token_mask),
                   three(a.state, b.state),
                   three(a.actions, b.actions),
                   three(a.action_is_pad, b.action_is_pad),
                   three(a.noise, b.noise),
                   three(a.time, b.time)};
  out.image_masks = out.image_masks.clone();
  out.image_masks.narrow(0, 9, 3).fill_(false);
  return out;
}

models::Pi05Batch samples(const PaddedInputs& all, int64_t step, int64_t begin, int64_t count) {
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, begin, count).contiguous(); };
  PaddedInputs own{part(all.images),        part(all.image_masks), part(all.tokens),
                   part(all.token_mask),    part(all.state),       part(all.actions),
                   part(all.action_is_pad), part(all.noise),       part(all.time)};
  own.noise = own.noise.mul(1 + 0.1 * std::sin(static_cast<double>(step)));
  own.time = own.time.mul(0.5 + 0.02 * static_cast<double>(step));
  return own.pack_batch();
}

std::unique_ptr<models::Pi05Policy> make_policy(const Pi05RunOptions& options, at::Device device,
                                                bool memory) {
  const auto change = [&](models::Pi05Config& config) {
    config.freeze = options.freeze;
    config.mask_action_padding = false;  // the mean over samples is that of their parts
  };
  models::BuildOptions build;
  build.recompute = options.recompute;
  build.device = device;
  if (options.fused) {
    build.fused = {.norms = true,
                   .activations = true,
                   .rope = true,
                   .embedding = true,
                   .loss = true,
                   .stacked = true};
  }
  if (memory) {
    return models::testing::tiny_policy("pi05/tiny_train", change, options.dtype, build);
  }
  models::Pi05Config config =
      models::pi05_import_config(testing::golden_path("pi05/tiny_train") / "config.json");
  change(config);
  build.dtype = options.dtype;
  build.initialise = build.allocate = false;
  return std::make_unique<models::Pi05Policy>(config, build);
}

bool has_devices(int64_t count) {
  try {
    runtime::parse_device(fmt::format("cuda:{}", count - 1));
    return true;
  } catch (const DeviceError&) {
    return false;
  }
}

class Run {
 public:
  Run(ProcessGroup& group, const Pi05RunOptions& options)
      : world_(group.world()), options_(options), all_(all_samples()) {
    if (options.cuda) {
      device_ = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(group.rank()));
    }
    policy_ = make_policy(options, device_, !options.without_memory);
    list_parameters();
    PlanOptions plan;
    plan.world_size = world_.world_size();
    plan.first_bucket_bytes = 2000;
    plan.bucket_bytes = 20000;
    plan.reduce_dtype = options.reduce_dtype;
    plan_ = plan_buckets(specs_, plan);
    attach(group);
    optimizer_ = std::make_unique<SliceAdamW>(slices());
  }

  void step(int64_t index, TrainResult& result) {
    if (zero1_) zero1_->wait_parameters();
    GradReducer* reducer = zero1_ ? &zero1_->reducer() : ddp_.get();
    begin_step(reducer);
    const int64_t share = kSamples / world_.world_size(), size = share / options_.micro_batches;
    double sum = 0;
    for (int64_t m = 0; m < options_.micro_batches; ++m) {
      const bool last = m + 1 == options_.micro_batches;
      if (reducer != nullptr) reducer->begin_micro_batch(last);
      if (fsdp_) fsdp_->begin_micro_batch(last);
      const auto batch = samples(all_, index, world_.rank() * share + m * size, size);
      const at::Tensor loss = policy_->loss(batch, {}).loss;
      loss.div(static_cast<double>(options_.micro_batches)).backward();
      sum += loss.item<double>() / static_cast<double>(options_.micro_batches);
    }
    if (reducer != nullptr) reducer->finish();
    if (fsdp_) fsdp_->finish();
    // ddp: the means, which may lie elsewhere than what the passes gave.
    if (!zero1_ && !fsdp_) point_at_gradients();
    double norm = 0;
    decay();
    if (fsdp_) {
      norm = fsdp_->grad_norm(*optimizer_);
      fsdp_->update(*optimizer_, kLr, norm);
    } else if (zero1_) {
      norm = zero1_->grad_norm(*optimizer_);
      zero1_->update(*optimizer_, kLr, norm);
    } else {
      norm = std::sqrt(optimizer_->squared_norm());
      optimizer_->apply(kLr, norm);
    }
    result.losses.push_back(world_.sum({sum}, "loss").front() /
                            static_cast<double>(world_.world_size()));
    result.norms.push_back(norm);
  }

  void finish(TrainResult& result) {
    if (zero1_) zero1_->wait_parameters();
    if (fsdp_) check_fsdp();
    std::map<std::string, at::Tensor> whole;
    for (size_t i = 0; i < specs_.size(); ++i) whole[specs_[i].name] = tensors_[i].param.detach();
    if (fsdp_) {
      fsdp_->visit_whole(
          [&](const ParamSpec& spec, const at::Tensor& t) { whole[spec.name] = t.clone(); });
    }
    for (const auto& [name, tensor] : whole) {  // a few of each
      // The true gradient of a key's bias is zero, which leaves noise for AdamW to scale up.
      if (name.ends_with("k_proj.bias")) continue;
      const at::Tensor values = tensor.cpu().to(at::kDouble).flatten();
      for (int64_t k = 0; k < values.numel(); k += 1 + values.numel() / 5) {
        result.weights.push_back(values.const_data_ptr<double>()[k]);
      }
    }
  }

 private:
  void list_parameters() {
    std::vector<ParamSpec> specs;
    const std::vector<ParamInfo> infos = policy_->parameters();
    for (const ParamInfo& info : infos) {
      ParamSpec spec{info.name, info.tensor.numel(), info.tensor.scalar_type(), info.unit};
      spec.forward_only = info.forward_only;
      spec.source = info.role != ParamRole::kTrainable ? GradSource::kNone
                    : info.row_sparse                  ? GradSource::kExternal
                                                       : GradSource::kBackward;
      specs.push_back(spec);
    }
    for (const int64_t i : keep_stacks_together(specs, policy_->module().stacks())) {
      const ParamInfo& info = infos[static_cast<size_t>(i)];
      tensors_.push_back({info.tensor, info.row_sparse ? info.row_sparse->grad : at::Tensor()});
      decay_only_[info.name] = info.role == ParamRole::kDecayOnly;
    }
    specs_ = std::move(specs);
  }

  void attach(ProcessGroup& group) {
    switch (options_.strategy) {
      case Strategy::kNone:
        return;
      case Strategy::kDdp:
        ddp_ = std::make_unique<GradReducer>(world_, plan_, tensors_, ReduceMode::kAllReduce);
        return;
      case Strategy::kZero1:
        zero1_ = std::make_unique<Zero1>(world_, plan_, tensors_);
        return;
      case Strategy::kHsdp: {
        const HsdpGroups ranks =
            hsdp_groups(world_.rank(), world_.world_size(), options_.shard_size);
        shard_ = group.make_group(fmt::format("shard{}", ranks.shard.front()), ranks.shard);
        replicas_ =
            group.make_group(fmt::format("replicas{}", ranks.replicate.front()), ranks.replicate);
        break;
      }
      case Strategy::kFsdp:
        break;
    }
    fsdp_ = std::make_unique<Fsdp>(
        FsdpGroups{shard_ ? *shard_ : world_, replicas_.get()}, specs_, tensors_,
        FsdpOptions{.reshard = options_.reshard, .reduce_dtype = options_.reduce_dtype});
    policy_->attach(fsdp_->hooks());
    if (!options_.without_memory) return;
    policy_->load_weights(
        testing::golden_path("pi05/tiny_train") / "weights.safetensors",
        [&](const std::string& name, const at::Tensor& value) { fsdp_->fill(name, value); });
  }

  std::vector<ShardSlice> slices() const {
    if (zero1_) return {zero1_->slices().begin(), zero1_->slices().end()};
    if (fsdp_) return {fsdp_->slices().begin(), fsdp_->slices().end()};
    std::vector<ShardSlice> out;
    for (size_t i = 0; i < specs_.size(); ++i) {
      if (specs_[i].source == GradSource::kNone) continue;
      const at::Tensor& p = tensors_[i].param;
      const at::Tensor& grad =
          tensors_[i].external_grad.defined() ? tensors_[i].external_grad : p.grad();
      out.push_back({static_cast<int64_t>(i), specs_[i].name, 0, p.numel(), p.detach().view({-1}),
                     grad.defined() ? grad.view({-1}) : at::Tensor()});
    }
    return out;
  }

  void begin_step(GradReducer* reducer) {
    if (reducer != nullptr) return reducer->begin_step();
    if (fsdp_) return fsdp_->begin_step();
    for (ReducedParam& t : tensors_) {
      t.param.mutable_grad() = at::Tensor();
      if (t.external_grad.defined()) t.external_grad.zero_();
    }
  }

  void point_at_gradients() {
    for (ShardSlice& slice : optimizer_->slices()) {
      if (specs_[static_cast<size_t>(slice.param)].source == GradSource::kExternal) continue;
      slice.grad = tensors_[static_cast<size_t>(slice.param)].param.grad().reshape({-1});
    }
  }

  // What train's optimizer does with decay-only parameters: every rank whole ones, or its parts.
  void decay() {
    const at::NoGradGuard no_grad;
    if (fsdp_) {
      for (const ShardSlice& slice : fsdp_->gradless_slices()) {
        if (decay_only_.at(slice.name)) at::Tensor(slice.weights).mul_(0.99);
      }
      return;
    }
    for (size_t i = 0; i < specs_.size(); ++i) {
      if (decay_only_.at(specs_[i].name)) tensors_[i].param.detach().mul_(0.99);
    }
  }

  void check_fsdp() const {
    CostOptions cost;
    cost.strategy = options_.strategy;
    cost.micro_batches = options_.micro_batches;
    cost.reshard = options_.reshard;
    cost.shard_size = options_.shard_size;
    const auto expect = [](int64_t actual, int64_t wanted, const std::string& what) {
      LS_CHECK(actual == wanted, InternalError, "{}: {} instead of {}", what, actual, wanted);
    };
    auto counted = world_.counters();
    for (const Communicator* more : {shard_.get(), replicas_.get()}) {
      if (more == nullptr) continue;
      for (const auto& [name, one] : more->counters()) counted[name] += one;
    }
    counted.erase("loss");
    const auto predicted = predict_communication(plan_, cost);
    expect(static_cast<int64_t>(counted.size()), static_cast<int64_t>(predicted.size()), "names");
    for (const auto& [name, one] : predicted) {
      expect(counted[name].count, kSteps * one.count, name + " count");
      expect(counted[name].wire_bytes, kSteps * one.wire_bytes, name + " wire bytes");
    }
    const MemoryForecast memory = predict_memory(plan_, cost);
    expect(fsdp_->shard_bytes(), memory.parameters, "bytes of shards");
    expect(fsdp_->gathered_bytes(), memory.gathered, "bytes of gathered weights");
    expect(fsdp_->gradient_bytes(), memory.gradients, "bytes of gradients");
    expect(fsdp_->buffer_bytes(), memory.reduce_buffers, "bytes of reduce buffers");
  }

  Communicator& world_;
  at::Device device_ = at::kCPU;
  Pi05RunOptions options_;
  PaddedInputs all_;
  std::unique_ptr<models::Pi05Policy> policy_;
  std::vector<ParamSpec> specs_;
  std::vector<ReducedParam> tensors_;
  std::map<std::string, bool> decay_only_;
  BucketPlan plan_;
  std::unique_ptr<Communicator> shard_, replicas_;
  std::unique_ptr<GradReducer> ddp_;
  std::unique_ptr<Zero1> zero1_;
  std::unique_ptr<Fsdp> fsdp_;
  std::unique_ptr<SliceAdamW> optimizer_;
};

}  // namespace

TrainResult train_pi05(int64_t world_size, const Pi05RunOptions& options) {
  const std::vector<RankResult> ranks = run_world(world_size, [&](const LaunchInfo& launch) {
    GroupOptions setup = test_options(launch);
    setup.cuda = options.cuda;
    if (options.cuda && !has_devices(world_size)) return TrainResult().pack();
    const std::optional<c10::DeviceGuard> guard =
        options.cuda ? std::make_optional<c10::DeviceGuard>(
                           at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(launch.rank)))
                     : std::nullopt;
    const auto group = ProcessGroup::connect(setup);
    TrainResult result;
    Run run(*group, options);
    for (int64_t step = 0; step < kSteps; ++step) run.step(step, result);
    run.finish(result);
    group->close();
    return result.pack();
  });
  for (size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(ranks[r].exit_code, 0) << "rank " << r << ": " << ranks[r].text;
    EXPECT_EQ(ranks[r].text, ranks[0].text) << "rank " << r;
  }
  const TrainResult result = TrainResult::unpack(ranks[0].text);
  if (!options.cuda) {
    EXPECT_EQ(result.losses.size(), static_cast<size_t>(kSteps));
  }
  return result;
}

}  // namespace longship::dist
