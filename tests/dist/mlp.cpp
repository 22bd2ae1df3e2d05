#include "mlp.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "nn/linear.h"
#include "ranks.h"

namespace longship::dist {
namespace {

constexpr int64_t kIn = 6, kHidden = 13, kMiddle = 11, kOut = 3, kSamples = 24;
constexpr double kLr = 3e-3, kClip = 0.5, kDecay = 0.01, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8;

// Deterministic values in (-scale, scale) that look random enough.
at::Tensor waves(std::vector<int64_t> shape, double phase, double scale) {
  at::Tensor t = at::empty(shape, at::kFloat);
  float* data = t.mutable_data_ptr<float>();
  for (int64_t i = 0; i < t.numel(); ++i) {
    data[i] = static_cast<float>(scale * std::sin(12.9898 * (static_cast<double>(i) + phase) +
                                                  0.37 * static_cast<double>(i * i % 97)));
  }
  return t;
}

}  // namespace

SliceAdamW::SliceAdamW(std::vector<ShardSlice> slices) : slices_(std::move(slices)) {
  const at::NoGradGuard no_grad;
  for (const ShardSlice& slice : slices_) {
    masters_.push_back(slice.weights.scalar_type() == at::kFloat ? slice.weights
                                                                 : slice.weights.to(at::kFloat));
    exp_avg_.push_back(at::zeros_like(masters_.back()));
    exp_avg_sq_.push_back(at::zeros_like(masters_.back()));
  }
}

void SliceAdamW::apply(double lr, double norm) {
  const at::NoGradGuard no_grad;
  ++updates_;
  const double t = static_cast<double>(updates_);
  const double clip = std::min(1.0, kClip / (norm + 1e-6));
  for (size_t i = 0; i < slices_.size(); ++i) {
    const at::Tensor grad = slices_[i].grad.to(at::kFloat).mul(clip);
    masters_[i].mul_(1 - lr * kDecay);
    exp_avg_[i].mul_(kBeta1).add_(grad, 1 - kBeta1);
    exp_avg_sq_[i].mul_(kBeta2).addcmul_(grad, grad, 1 - kBeta2);
    const at::Tensor denominator =
        exp_avg_sq_[i].sqrt().div_(std::sqrt(1 - std::pow(kBeta2, t))).add_(kEps);
    masters_[i].addcdiv_(exp_avg_[i], denominator, -lr / (1 - std::pow(kBeta1, t)));
    if (!masters_[i].is_same(slices_[i].weights)) slices_[i].weights.copy_(masters_[i]);
  }
}

int64_t SliceAdamW::master_bytes() const {
  size_t sum = 0;
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (!masters_[i].is_same(slices_[i].weights)) sum += masters_[i].nbytes();
  }
  return static_cast<int64_t>(sum);
}

int64_t SliceAdamW::moment_bytes() const {
  size_t sum = 0;
  for (size_t i = 0; i < slices_.size(); ++i) sum += exp_avg_[i].nbytes() + exp_avg_sq_[i].nbytes();
  return static_cast<int64_t>(sum);
}

Mlp::Mlp(at::ScalarType dtype, bool recompute) : recompute_(recompute) {
  double phase = 1;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, double scale,
                       GradSource source, const std::string& unit) {
    at::Tensor t = waves(std::move(shape), phase, scale).to(dtype);
    phase += 17;
    t.requires_grad_(source != GradSource::kNone);
    specs.push_back({name, t.numel(), dtype, unit, source});
    specs.back().forward_only = unit == "pre";
    tensors.push_back({t, {}});
  };
  add("pre.weight", {kIn, kIn}, 0.6, GradSource::kNone, "pre");
  add("in.weight", {kHidden, kIn}, 0.5, GradSource::kBackward, "in");
  add("in.bias", {kHidden}, 0.1, GradSource::kBackward, "in");
  add("mid.weight", {kMiddle, kHidden}, 0.4, GradSource::kBackward, "mid");
  add("mid.bias", {kMiddle}, 0.1, GradSource::kBackward, "mid");
  add("mid.gain", {kMiddle}, 0.2, GradSource::kNone, "mid");
  add("frozen.weight", {kMiddle, kMiddle}, 0.4, GradSource::kNone, "frozen");
  add("unused.weight", {5}, 0.1, GradSource::kUnused, "out");
  add("out.weight", {kOut, kMiddle}, 0.4, GradSource::kBackward, "out");
  add("out.bias", {kOut}, 0.1, GradSource::kBackward, "out");
  add("unread.weight", {7}, 0.1, GradSource::kNone, "unread");
  add("scale", {}, 0.9, GradSource::kBackward, "");
}

const at::Tensor& Mlp::get(const std::string& name) const {
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name) return tensors[i].param;
  }
  throw InternalError("no parameter " + name);
}

at::Tensor& Mlp::operator[](const std::string& name) {
  return const_cast<at::Tensor&>(get(name));
}

at::Tensor Mlp::run(const std::string& unit, const nn::UnitFunction& function,
                    const at::Tensor& x) const {
  return nn::run_unit(hooks, unit, recompute_ && unit != "pre", function, {x}).front();
}

at::Tensor Mlp::loss(int64_t step, int64_t begin, int64_t end) const {
  const at::ScalarType dtype = tensors.front().param.scalar_type();
  const auto rows = [&](int64_t width, double phase) {
    return waves({kSamples, width}, phase + 31.0 * static_cast<double>(step), 1.0)
        .narrow(0, begin, end - begin);
  };
  const at::Tensor x = rows(kIn, 0.5).to(dtype);
  const at::Tensor target = rows(kOut, 0.25);
  using Tensors = std::vector<at::Tensor>;
  return nn::run_root(hooks, [&] {
    at::Tensor h = run(
        "pre", [&](const Tensors& in) { return Tensors{nn::linear(in[0], get("pre.weight"))}; }, x);
    const auto first = [this](const Tensors& in) {
      return Tensors{nn::linear(in[0], get("in.weight"), get("in.bias")).tanh()};
    };
    h = run("in", first, h);
    const auto mid = [this](const Tensors& in) {
      const at::Tensor product = nn::linear(in[0], get("mid.weight"), get("mid.bias"));
      return Tensors{(product * (1 + get("mid.gain"))).tanh()};
    };
    h = run("mid", mid, h);
    const auto frozen = [this](const Tensors& in) {
      return Tensors{nn::linear(in[0], get("frozen.weight")).tanh()};
    };
    h = run("frozen", frozen, h);
    const auto out = [this](const Tensors& in) {
      return Tensors{nn::linear(in[0], get("out.weight"), get("out.bias"))};
    };
    h = run("out", out, h) * get("scale");
    return (h.to(at::kFloat) - target).square().mean();
  });
}

namespace {

void expect_equal(int64_t actual, int64_t wanted, const std::string& what) {
  LS_CHECK(actual == wanted, InternalError, "{}: {} instead of {}", what, actual, wanted);
}

bool is_fsdp(Strategy strategy) {
  return strategy == Strategy::kFsdp || strategy == Strategy::kHsdp;
}

CostOptions cost_options(const TrainOptions& options) {
  CostOptions cost;
  cost.strategy = options.strategy;
  cost.micro_batches = options.micro_batches;
  cost.reshard = options.reshard;
  cost.shard_size = options.shard_size;
  cost.gradients_stay = options.buffers == GradientBuffers::kStay;
  cost.widened = options.widening && options.buffers == GradientBuffers::kHandedOverOnce;
  return cost;
}

// Predicted against counted, name by name; and the plain formula once more by hand.
void check_traffic(std::map<std::string, CollectiveCounter> counted, int64_t w,
                   const BucketPlan& plan, const TrainOptions& options, int64_t steps) {
  const CostOptions cost = cost_options(options);
  counted.erase("loss");
  counted.erase("params initial");
  const auto predicted = predict_communication(plan, cost);
  expect_equal(static_cast<int64_t>(counted.size()), static_cast<int64_t>(predicted.size()),
               "names of collectives");
  for (const auto& [name, one] : predicted) {
    expect_equal(counted[name].count, steps * one.count, name + " count");
    expect_equal(counted[name].tensor_bytes, steps * one.tensor_bytes, name + " tensor bytes");
    expect_equal(counted[name].wire_bytes, steps * one.wire_bytes, name + " wire bytes");
  }
  if (is_fsdp(options.strategy)) return;
  const at::ScalarType sent = w == 1 ? options.dtype : options.reduce_dtype;
  const int64_t wire = sent == at::kFloat ? 4 : 2;
  const int64_t weight = options.dtype == at::kFloat ? 4 : 2;
  int64_t grad = 0, params = 0;
  const bool ddp = options.strategy == Strategy::kDdp;
  for (const Bucket& bucket : plan.buckets) {
    const int64_t part = bucket.numel / w;  // a ring sends w - 1 parts, twice for an all-reduce
    if (cost.widened && options.dtype == at::kBFloat16 && w > 1) {
      grad += (w - 1) * part * (ddp ? 2 + 4 : 2);  // bf16 parts, and fp32 ones back
    } else {
      grad += (ddp ? 2 : 1) * (w - 1) * part * wire;
    }
    params += (w - 1) * part * weight;
  }
  expect_equal(counted["grad"].wire_bytes, steps * grad, "grad by hand");
  if (options.strategy == Strategy::kZero1) {
    expect_equal(counted["params"].wire_bytes, steps * params, "params by hand");
  }
}

class Done : public Pending {
 public:
  bool done() override { return true; }
  void wait() override {}
};

// Sums of bf16 in fp32, over a group that knows one type only: the bits of a transport that adds up
// in fp32.
class WideningTransport : public Transport {
 public:
  explicit WideningTransport(std::unique_ptr<Communicator> group) : group_(std::move(group)) {}
  std::string name() const override { return "gloo"; }
  int64_t rank() const override { return group_->rank(); }
  int64_t world_size() const override { return group_->world_size(); }
  bool widens() const override { return true; }
  std::unique_ptr<Pending> all_reduce(at::Tensor tensor, ReduceOp op) override {
    return after(group_->all_reduce(tensor, op, "inner"));
  }
  std::unique_ptr<Pending> all_reduce_into(at::Tensor output, at::Tensor input,
                                           ReduceOp op) override {
    output.copy_(input);
    return all_reduce(output, op);
  }
  std::unique_ptr<Pending> reduce_scatter(at::Tensor output, at::Tensor input,
                                          ReduceOp op) override {
    return after(group_->reduce_scatter(output, input.to(output.scalar_type()), op, "inner"));
  }
  std::unique_ptr<Pending> all_gather(at::Tensor output, at::Tensor input) override {
    return after(group_->all_gather(output, input, "inner"));
  }
  std::unique_ptr<Pending> broadcast(at::Tensor tensor, int64_t root) override {
    return after(group_->broadcast(tensor, root, "inner"));
  }
  std::unique_ptr<Pending> barrier() override {
    group_->barrier("inner");
    return std::make_unique<Done>();
  }
  void abort() override { group_->abort(); }

 private:
  static std::unique_ptr<Pending> after(Handle handle) {
    handle.wait();
    return std::make_unique<Done>();
  }
  std::unique_ptr<Communicator> group_;
};

std::unique_ptr<Communicator> widening_group(ProcessGroup& group) {
  std::vector<int64_t> all(static_cast<size_t>(group.world().world_size()));
  std::iota(all.begin(), all.end(), 0);
  return std::make_unique<Communicator>(
      std::make_unique<WideningTransport>(group.make_group("inner", all)));
}

// One trained model under one strategy.
class Run {
 public:
  Run(ProcessGroup& group, const TrainOptions& options)
      : widening_(options.widening ? widening_group(group) : nullptr),
        communicator_(widening_ ? *widening_ : group.world()),
        options_(options),
        mlp_(options.dtype, options.recompute) {
    Communicator& communicator = communicator_;
    PlanOptions plan;
    plan.world_size = communicator.world_size();
    plan.first_bucket_bytes = 100;
    plan.bucket_bytes = 500;
    plan.reduce_dtype = options.reduce_dtype;
    plan_ = plan_buckets(mlp_.specs, plan);
    if (options.strategy == Strategy::kDdp) {
      ddp_ =
          std::make_unique<GradReducer>(communicator, plan_, mlp_.tensors, ReduceMode::kAllReduce,
                                        MissingGradients::kError, options.buffers);
    } else if (options.strategy == Strategy::kZero1) {
      zero1_ = std::make_unique<Zero1>(communicator, plan_, mlp_.tensors, MissingGradients::kError,
                                       options.buffers);
    }
    if (options.strategy == Strategy::kHsdp) {
      const HsdpGroups ranks =
          hsdp_groups(communicator.rank(), communicator.world_size(), options.shard_size);
      shard_ = group.make_group(fmt::format("shard{}", ranks.shard.front()), ranks.shard);
      replicas_ =
          group.make_group(fmt::format("replicas{}", ranks.replicate.front()), ranks.replicate);
    }
    if (is_fsdp(options.strategy)) {
      fsdp_ = std::make_unique<Fsdp>(
          FsdpGroups{shard_ ? *shard_ : communicator, replicas_.get()}, mlp_.specs, mlp_.tensors,
          FsdpOptions{.reshard = options.reshard,
                      .reduce_dtype = options.reduce_dtype,
                      .single_pass = options.buffers == GradientBuffers::kHandedOverOnce});
      mlp_.hooks = fsdp_->hooks();
    }
    const auto slices = zero1_  ? zero1_->slices()
                        : fsdp_ ? fsdp_->slices()
                                : std::span<const ShardSlice>();
    if (zero1_ || fsdp_) {
      optimizer_ =
          std::make_unique<SliceAdamW>(std::vector<ShardSlice>(slices.begin(), slices.end()));
    } else {
      optimizer_ = std::make_unique<SliceAdamW>(whole_slices());
    }
  }

  void step(int64_t index, TrainResult& result) {
    communicator_.set_step(index);
    if (zero1_) zero1_->wait_parameters();
    GradReducer* reducer = zero1_ ? &zero1_->reducer() : ddp_.get();
    if (reducer != nullptr) {
      reducer->begin_step();
    } else if (fsdp_) {
      fsdp_->begin_step();
    } else {
      for (auto& t : mlp_.tensors) t.param.mutable_grad() = at::Tensor();
    }
    const int64_t share = kSamples / communicator_.world_size();
    const int64_t size = share / options_.micro_batches;
    double sum = 0;
    for (int64_t m = 0; m < options_.micro_batches; ++m) {
      const bool last = m + 1 == options_.micro_batches;
      const int64_t begin = communicator_.rank() * share + m * size;
      if (reducer != nullptr) reducer->begin_micro_batch(last);
      if (fsdp_) fsdp_->begin_micro_batch(last);
      const at::Tensor loss = mlp_.loss(index, begin, begin + size);
      loss.div(static_cast<double>(options_.micro_batches)).backward();
      sum += loss.item<double>() / static_cast<double>(options_.micro_batches);
      if (reducer != nullptr) {
        // Nothing moves before the last backward pass; all of it is under way when that ends.
        const int64_t buckets = static_cast<int64_t>(plan_.buckets.size());
        expect_equal(communicator_.counters()["grad"].count, (index + (last ? 1 : 0)) * buckets,
                     "buckets sent in the backward pass");
      }
    }
    if (reducer != nullptr) reducer->finish();
    if (fsdp_) fsdp_->finish();
    double norm = 0;
    if (fsdp_) {
      norm = fsdp_->grad_norm(*optimizer_);
      fsdp_->update(*optimizer_, kLr, norm);
    } else if (zero1_) {
      norm = zero1_->grad_norm(*optimizer_);
      zero1_->update(*optimizer_, kLr, norm);
    } else {
      point_at_gradients();
      norm = std::sqrt(optimizer_->squared_norm());
      optimizer_->apply(kLr, norm);
    }
    const double mean =
        communicator_.sum({sum}, "loss").front() / static_cast<double>(communicator_.world_size());
    result.losses.push_back(mean);
    result.norms.push_back(norm);
  }

  void finish(TrainResult& result) {
    if (zero1_) zero1_->wait_parameters();
    std::map<std::string, CollectiveCounter> counted = communicator_.counters();
    for (const Communicator* more : {shard_.get(), replicas_.get()}) {
      if (more == nullptr) continue;
      for (const auto& [name, one] : more->counters()) counted[name] += one;
    }
    std::map<std::string, at::Tensor> whole;
    if (fsdp_) {
      fsdp_->visit_whole([&](const ParamSpec& spec, const at::Tensor& t) {
        whole[spec.name] = t.to(at::kDouble).flatten();
      });
    }
    for (size_t i = 0; i < mlp_.specs.size(); ++i) {
      const at::Tensor values = fsdp_ ? whole.at(mlp_.specs[i].name)
                                      : mlp_.tensors[i].param.detach().to(at::kDouble).flatten();
      for (int64_t k = 0; k < values.numel(); ++k) {
        result.weights.push_back(values.const_data_ptr<double>()[k]);
      }
    }
    if (options_.strategy == Strategy::kNone) return;
    check_traffic(std::move(counted), communicator_.world_size(), plan_, options_, kSteps);
    check_memory();
  }

 private:
  // Real tensor bytes against the forecast; the forecast's rank is the one with the most.
  void check_memory() const {
    const MemoryForecast memory = predict_memory(plan_, cost_options(options_));
    if (fsdp_) {
      expect_equal(fsdp_->shard_bytes(), memory.parameters, "bytes of shards");
      expect_equal(fsdp_->gathered_bytes(), memory.gathered, "bytes of gathered weights");
      expect_equal(fsdp_->gradient_bytes(), memory.gradients, "bytes of gradients");
      expect_equal(fsdp_->buffer_bytes(), memory.reduce_buffers, "bytes of reduce buffers");
      LS_CHECK(optimizer_->moment_bytes() <= memory.moments &&
                   optimizer_->master_bytes() <= memory.masters,
               InternalError, "moments: {} here, {} at most", optimizer_->moment_bytes(),
               memory.moments);
      return;
    }
    const GradReducer& reducer = zero1_ ? zero1_->reducer() : *ddp_;
    expect_equal(reducer.gradient_bytes(), memory.gradients, "bytes of gradients");
    expect_equal(reducer.buffer_bytes(), memory.reduce_buffers, "bytes of reduce buffers");
    int64_t parameters = zero1_ ? zero1_->weight_bytes() : 0;
    for (size_t i = 0; i < mlp_.specs.size(); ++i) {
      if (!zero1_ || plan_.bucket_of(static_cast<int64_t>(i)) < 0) {
        parameters += static_cast<int64_t>(mlp_.tensors[i].param.nbytes());
      }
    }
    expect_equal(parameters, memory.parameters, "bytes of parameters");
    const double world = static_cast<double>(communicator_.world_size());
    if (options_.strategy == Strategy::kDdp) {
      expect_equal(optimizer_->master_bytes(), memory.masters, "bytes of masters");
      expect_equal(optimizer_->moment_bytes(), memory.moments, "bytes of moments");
      return;
    }
    // Over all ranks, the parts make the whole; none exceeds the forecast.
    const std::vector<double> sums =
        communicator_.sum({static_cast<double>(optimizer_->moment_bytes())}, "check");
    int64_t trained = 0;
    for (const ParamSpec& spec : mlp_.specs) {
      if (spec.source != GradSource::kNone) trained += spec.numel;
    }
    expect_equal(static_cast<int64_t>(sums.front()), trained * 8, "moments of all ranks");
    LS_CHECK(
        optimizer_->moment_bytes() <= memory.moments &&
            static_cast<double>(memory.moments) < static_cast<double>(trained * 8) / world + 800,
        InternalError, "moments: {} here, {} at most, {} in all", optimizer_->moment_bytes(),
        memory.moments, trained * 8);
  }

  std::vector<ShardSlice> whole_slices() {
    std::vector<ShardSlice> slices;
    for (size_t i = 0; i < mlp_.specs.size(); ++i) {
      if (mlp_.specs[i].source == GradSource::kNone) continue;
      const at::Tensor& param = mlp_.tensors[i].param;
      slices.push_back({static_cast<int64_t>(i),
                        mlp_.specs[i].name,
                        0,
                        param.numel(),
                        param.detach().view({-1}),
                        {}});
      if (param.grad().defined()) slices.back().grad = param.grad().view({-1});
    }
    return slices;
  }
  // Gradients are wherever autograd, or the reducer, has put them; an unused one is zero.
  void point_at_gradients() {
    for (ShardSlice& slice : optimizer_->slices()) {
      const at::Tensor& grad = mlp_.tensors[static_cast<size_t>(slice.param)].param.grad();
      slice.grad = grad.defined() ? grad.reshape({-1}) : at::zeros_like(slice.weights);
    }
  }

  std::unique_ptr<Communicator> widening_;
  Communicator& communicator_;
  TrainOptions options_;
  Mlp mlp_;
  BucketPlan plan_;
  std::unique_ptr<GradReducer> ddp_;
  std::unique_ptr<Zero1> zero1_;
  std::unique_ptr<Communicator> shard_, replicas_;
  std::unique_ptr<Fsdp> fsdp_;
  std::unique_ptr<SliceAdamW> optimizer_;
};

}  // namespace

TrainResult train_mlp(ProcessGroup& group, const TrainOptions& options) {
  TrainResult result;
  Run run(group, options);
  for (int64_t step = 0; step < kSteps; ++step) run.step(step, result);
  run.finish(result);
  return result;
}

std::string TrainResult::pack() const {
  std::string out;
  for (const auto* list : {&losses, &norms, &weights}) {
    out += fmt::format("{} ", list->size());
    for (const double value : *list) out += fmt::format("{:.17g} ", value);
  }
  return out;
}

TrainResult TrainResult::unpack(const std::string& text) {
  TrainResult out;
  std::istringstream in(text);
  for (auto* list : {&out.losses, &out.norms, &out.weights}) {
    size_t count = 0;
    in >> count;
    list->resize(count);
    for (double& value : *list) in >> value;
  }
  return out;
}

TrainResult train_ranks(int64_t world_size, const TrainOptions& options) {
  const std::vector<RankResult> ranks = run_world(world_size, [&](const LaunchInfo& launch) {
    const auto group = ProcessGroup::connect(test_options(launch));
    const std::string packed = train_mlp(*group, options).pack();
    group->close();
    return packed;
  });
  for (size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(ranks[r].exit_code, 0) << "rank " << r << ": " << ranks[r].text;
    // Every rank has the same losses, norms and weights, bit for bit.
    EXPECT_EQ(ranks[r].text, ranks[0].text) << "rank " << r;
  }
  const TrainResult result = TrainResult::unpack(ranks[0].text);
  EXPECT_EQ(result.losses.size(), static_cast<size_t>(kSteps));
  return result;
}

double worst_error(const std::vector<double>& a, const std::vector<double>& b, double floor) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]) / std::max(std::abs(b[i]), floor);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

}  // namespace longship::dist
