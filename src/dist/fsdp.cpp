#include "dist/fsdp.h"

#include <ATen/core/grad_mode.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace longship::dist {
namespace {

Communicator* real_replicas(const FsdpGroups& groups) {
  const bool several = groups.replicas != nullptr && groups.replicas->world_size() > 1;
  LS_CHECK(!several || groups.shard.world_size() > 1, ConfigError,
           "parallel.shard: 1 leaves every rank with all weights; use parallel.strategy ddp");
  return several ? groups.replicas : nullptr;
}

bool takes_hook(GradSource source) {
  return source == GradSource::kBackward || source == GradSource::kUnused;
}

void check(const ParamSpec& spec, const ReducedParam& tensors) {
  const at::Tensor& p = tensors.param;
  LS_CHECK(
      p.defined() && p.is_contiguous() && p.numel() == spec.numel && p.scalar_type() == spec.dtype,
      InternalError,
      "fsdp: parameter '{}' is not the contiguous {} tensor of {} elements that the plan has",
      spec.name, c10::toString(spec.dtype), spec.numel);
  if (spec.source == GradSource::kExternal) {
    const at::Tensor& g = tensors.external_grad;
    LS_CHECK(g.defined() && g.is_contiguous() && g.numel() == spec.numel &&
                 g.scalar_type() == spec.gradient_dtype(),
             InternalError,
             "fsdp: the external gradient of '{}' is not the contiguous {} tensor of {} elements "
             "that the plan has",
             spec.name, c10::toString(spec.gradient_dtype()), spec.numel);
    return;
  }
  if (!takes_hook(spec.source)) return;
  LS_CHECK(p.requires_grad() && p.is_leaf(), InternalError,
           "fsdp: parameter '{}' is in the plan but takes no gradient", spec.name);
  LS_CHECK(spec.gradient_dtype() == spec.dtype, InternalError,
           "fsdp: autograd gives '{}' a gradient of its own dtype {}, the plan has {}", spec.name,
           c10::toString(spec.dtype), c10::toString(spec.gradient_dtype()));
}

std::vector<ReducedParam> checked(const ShardPlan& plan, std::vector<ReducedParam> params) {
  LS_CHECK(params.size() == plan.params.size(), InternalError,
           "fsdp: {} tensors for a plan of {} parameters", params.size(), plan.params.size());
  for (size_t i = 0; i < params.size(); ++i) check(plan.params[i], params[i]);
  return params;
}

}  // namespace

// Called by autograd right after it has added to a parameter's gradient.
class Fsdp::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(Fsdp* owner, int64_t param) : owner_(owner), param_(param) {}
  void operator()(const at::Tensor&) override { owner_->gradient_ready(param_); }

 private:
  Fsdp* owner_;
  int64_t param_;
};

Fsdp::Fsdp(const FsdpGroups& groups, std::vector<ParamSpec> specs, std::vector<ReducedParam> params,
           const FsdpOptions& options)
    : shard_group_(groups.shard),
      options_(options),
      plan_(plan_shards(std::move(specs), groups.shard.world_size())),
      params_(checked(plan_, std::move(params))),
      alone_(groups.shard.world_size() == 1),
      weights_(groups.shard, plan_, params_, options.reshard == Reshard::kAfterForward),
      grads_(groups.shard, real_replicas(groups), plan_, params_, options.reduce_dtype,
             options.single_pass) {
  passes_.resize(plan_.units.size());
  make_slices();
  for (size_t i = 0; i < params_.size(); ++i) {
    if (alone_ || !takes_hook(plan_.params[i].source)) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(
        params_[i].param, std::make_unique<Hook>(this, static_cast<int64_t>(i)));
  }
}

Fsdp::~Fsdp() {
  for (size_t i = 0; i < params_.size(); ++i) {
    if (alone_ || !takes_hook(plan_.params[i].source)) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(params_[i].param, nullptr);
  }
}

void Fsdp::make_slices() {
  for (size_t s = 0; s < plan_.spaces.size(); ++s) {
    const UnitShard& space = plan_.spaces[s];
    const int64_t part = space.shard_numel(plan_.shard_size);
    const int64_t begin = shard_group_.rank() * part, end = begin + part;
    for (const BucketSlot& slot : space.slots) {
      const int64_t from = std::max(begin, slot.offset), to = std::min(end, slot.end());
      if (from >= to) continue;
      const auto own = [&](const at::Tensor& flat) {
        return flat.narrow(0, from - begin, to - from);
      };
      const int64_t index = static_cast<int64_t>(s);
      ShardSlice slice{slot.param,
                       plan_.params[static_cast<size_t>(slot.param)].name,
                       from - slot.offset,
                       to - slot.offset,
                       own(weights_.shard(index)),
                       {}};
      if (space.trainable) slice.grad = own(grads_.mean(index));
      (space.trainable ? slices_ : gradless_).push_back(std::move(slice));
    }
  }
}

int64_t Fsdp::find(std::string_view unit) const {
  for (size_t u = 0; u < plan_.units.size(); ++u) {
    if (plan_.units[u].name == unit) return static_cast<int64_t>(u);
  }
  throw InternalError(
      fmt::format("fsdp: the model runs unit '{}', which no parameter names", unit));
}

void Fsdp::prefetch(int64_t unit) {
  if (options_.prefetch && weights_.can_gather(unit)) weights_.begin_gather(unit);
}

// ---- Forward. --------------------------------------------------------------------------------

void Fsdp::before_forward(std::string_view unit) {
  const int64_t u = find(unit);
  if (u == 0 || !at::GradMode::is_enabled()) {
    weights_.begin_gather(u);
    weights_.wait(u);
    return;
  }
  LS_CHECK(training_, InternalError,
           "fsdp: unit '{}' runs with gradients outside of begin_micro_batch() and finish()", unit);
  LS_CHECK(u >= forward_next_, InternalError,
           "fsdp: unit '{}' runs after '{}', which comes behind it in the plan, or for the second "
           "time",
           unit, name(forward_next_ - 1));
  while (forward_next_ < u) {  // this batch does not reach them, those of other ranks may
    enter_forward(forward_next_);
    leave_forward(forward_next_ - 1);
  }
  enter_forward(u);
  pass(u).ran = true;
}

void Fsdp::enter_forward(int64_t unit) {
  weights_.begin_gather(unit);
  weights_.wait(unit);
  if (unit < last_unit()) prefetch(unit + 1);
  forward_next_ = unit + 1;
}

void Fsdp::after_forward(std::string_view unit, bool needs_backward, bool inputs_need_grad) {
  const int64_t u = find(unit);
  if (u == 0) return;
  if (!at::GradMode::is_enabled()) {
    if (options_.reshard == Reshard::kAfterForward) weights_.release(u);
    return;
  }
  LS_CHECK(!needs_backward || in_backward(u), InternalError,
           "fsdp: a gradient will pass through unit '{}', which the plan has as forward only",
           unit);
  pass(u).inputs_done = !inputs_need_grad;
  leave_forward(u);
}

void Fsdp::leave_forward(int64_t unit) {
  const bool comes_next = unit == last_unit() && in_backward(unit);
  if (options_.reshard == Reshard::kAfterForward && !comes_next) weights_.release(unit);
}

void Fsdp::finish_forward() {
  while (forward_next_ <= last_unit()) {
    enter_forward(forward_next_);
    leave_forward(forward_next_ - 1);
  }
}

// ---- Backward. -------------------------------------------------------------------------------

void Fsdp::before_backward(std::string_view unit) {
  const int64_t u = find(unit);
  LS_CHECK(training_ && u <= backward_next_ && in_backward(u), InternalError,
           "fsdp: the backward pass of unit '{}' comes out of order", unit);
  finish_forward();
  pass_backward(u);
  enter_backward(u);
}

// The end of the backward passes of all units behind `down_to`.
void Fsdp::pass_backward(int64_t down_to) {
  for (; backward_next_ > down_to; --backward_next_) {
    const int64_t u = backward_next_;
    if (!in_backward(u) || pass(u).done) continue;
    LS_CHECK(!pass(u).ran || grads_.all_arrived(u), InternalError,
             "fsdp: the backward pass gave parameters of unit '{}' no gradient ({}); the plan must "
             "list them as unused",
             name(u), grads_.missing(u));
    // A begun unit without parameters to wait for, none of whose inputs takes a gradient, is over
    // when the next one begins.
    LS_CHECK(!pass(u).begun || pass(u).inputs_done, InternalError,
             "fsdp: the backward pass of unit '{}' is not over when that of '{}' begins", name(u),
             name(down_to));
    if (!pass(u).begun) enter_backward(u);
    leave_backward(u);
  }
}

void Fsdp::enter_backward(int64_t unit) {
  weights_.begin_gather(unit);
  weights_.wait(unit);
  int64_t next = unit - 1;
  while (next > 0 && !in_backward(next)) --next;
  if (next > 0) prefetch(next);
  pass(unit).begun = true;
  grads_.offer_places(unit);
}

void Fsdp::leave_backward(int64_t unit) {
  pass(unit).done = true;
  if (options_.reshard != Reshard::kAfterOptimizerStep) weights_.release(unit);
  grads_.reduce(unit, last_);
}

void Fsdp::after_backward(std::string_view unit) {
  const int64_t u = find(unit);
  pass(u).inputs_done = true;
  end_if_complete(u);
}

void Fsdp::gradient_ready(int64_t param) {
  LS_CHECK(training_, InternalError,
           "fsdp: parameter '{}' got a gradient outside of begin_micro_batch() and finish()",
           plan_.params[static_cast<size_t>(param)].name);
  grads_.arrived(param);
  const int64_t unit = plan_.unit_of[static_cast<size_t>(param)];
  if (unit > 0) end_if_complete(unit);
}

// The gradients of inputs and parameters are there: nothing reads the weights any more. Called when
// one of them came; a unit without any is ended by pass_backward().
void Fsdp::end_if_complete(int64_t unit) {
  const Pass& p = pass(unit);
  if (!p.begun || p.done || !p.inputs_done || !grads_.all_arrived(unit)) return;
  leave_backward(unit);
}

// ---- Steps. ----------------------------------------------------------------------------------

void Fsdp::begin_step() {
  LS_CHECK(!training_, InternalError, "fsdp: begin_step() during a step; finish() first");
  grads_.begin_step();
}

void Fsdp::begin_micro_batch(bool last) {
  if (training_) end_micro_batch();
  grads_.begin_micro_batch();
  if (alone_) return;
  training_ = true;
  last_ = last;
  forward_next_ = 1;
  backward_next_ = last_unit();
  std::fill(passes_.begin(), passes_.end(), Pass{});
  if (options_.reshard == Reshard::kNever) {
    for (int64_t u = 1; u <= last_unit(); ++u) weights_.release(u);
  }
  weights_.begin_gather(0);
  if (last_unit() > 0) prefetch(1);
}

void Fsdp::end_micro_batch() {
  finish_forward();
  pass_backward(0);
  LS_CHECK(grads_.all_arrived(0), InternalError,
           "fsdp: the backward pass gave parameters of the root no gradient ({}); the plan must "
           "list them as unused",
           grads_.missing(0));
  grads_.withdraw_places();
  grads_.reduce(0, last_);
  if (last_) grads_.reduce_external();
  training_ = false;
}

void Fsdp::finish() {
  if (alone_) return;
  LS_CHECK(training_ && last_, InternalError, "fsdp: finish() without a last backward pass");
  end_micro_batch();
  grads_.finish();
}

double Fsdp::grad_norm(ShardOptimizer& optimizer) {
  return std::sqrt(shard_group_.sum({optimizer.squared_norm()}, "norm").front());
}

void Fsdp::update(ShardOptimizer& optimizer, double lr, double norm) {
  optimizer.apply(lr, norm);
  weights_changed();
}

void Fsdp::fill_slice(const ShardSlice& slice, const at::Tensor& whole, const SliceSink& sink) {
  const int64_t wanted = plan_.params[static_cast<size_t>(slice.param)].numel;
  LS_CHECK(whole.defined() && whole.numel() == wanted, ShapeError,
           "'{}' has {} elements, the model wants {}", slice.name,
           whole.defined() ? whole.numel() : 0, wanted);
  const at::Tensor values = whole.detach()
                                .reshape({-1})
                                .narrow(0, slice.begin, slice.end - slice.begin)
                                .to(slice.weights.device(), at::kFloat);
  slice.weights.copy_(values);
  if (sink) sink(slice, values);
}

void Fsdp::load(const WholeTensor& whole, const SliceSink& sink) {
  LS_CHECK(!training_, InternalError, "fsdp: load() during a step");
  const at::NoGradGuard no_grad;
  weights_.forget();
  for (const auto* slices : {&slices_, &gradless_}) {
    for (const ShardSlice& slice : *slices) fill_slice(slice, whole(slice.name), sink);
  }
}

void Fsdp::fill(const std::string& name, const at::Tensor& whole, const SliceSink& sink) {
  LS_CHECK(!training_, InternalError, "fsdp: fill() during a step");
  const at::NoGradGuard no_grad;
  weights_.forget();
  const auto known = std::find_if(plan_.params.begin(), plan_.params.end(),
                                  [&](const ParamSpec& spec) { return spec.name == name; });
  LS_CHECK(known != plan_.params.end(), InternalError, "fsdp: no parameter '{}'", name);
  for (const auto* slices : {&slices_, &gradless_}) {
    for (const ShardSlice& slice : *slices) {
      if (slice.name == name) fill_slice(slice, whole, sink);
    }
  }
}

void Fsdp::visit_whole(const std::function<void(const ParamSpec&, const at::Tensor&)>& visit) {
  LS_CHECK(!training_, InternalError, "fsdp: visit_whole() during a step");
  weights_.visit_whole([&](int64_t param, const at::Tensor& whole) {
    visit(plan_.params[static_cast<size_t>(param)], whole);
  });
}

}  // namespace longship::dist
