#include "train/gradient_sync.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "base/error.h"
#include "train/parallel.h"
#include "train/replicated_sync.h"
#include "train/sharded_sync.h"

namespace longship::train {
namespace {

using dist::GradSource;
using models::ParamInfo;
using models::ParamRole;

GradSource source_of(const ParamInfo& info) {
  if (info.role != ParamRole::kTrainable) return GradSource::kNone;
  return info.row_sparse ? GradSource::kExternal : GradSource::kBackward;
}

}  // namespace

std::vector<ParamInfo> parameters_in_use_order(models::Policy& policy) {
  std::map<std::string, ParamInfo> by_name;
  for (const ParamInfo& info : policy.parameters()) by_name.emplace(info.name, info);
  const size_t count = by_name.size();
  std::vector<ParamInfo> out;
  for (const std::string& name : policy.use_order()) {
    const auto found = by_name.find(name);
    LS_CHECK(found != by_name.end(), InternalError,
             "'{}' is in the order of use but no parameter, or twice", name);
    out.push_back(found->second);
    by_name.erase(found);
  }
  LS_CHECK(out.size() == count, InternalError, "parameter '{}' is not in the order of use",
           by_name.begin()->first);
  return out;
}

PlannedParameters parameters_to_plan(models::Policy& policy, int64_t samples) {
  const std::vector<ParamInfo> ordered = parameters_in_use_order(policy);
  PlannedParameters out;
  for (const ParamInfo& info : ordered) {
    dist::ParamSpec spec;
    spec.name = info.name;
    spec.numel = info.tensor.numel();
    spec.dtype = info.tensor.scalar_type();
    spec.unit = info.unit;
    spec.forward_only = info.forward_only;
    spec.source = source_of(info);
    if (info.row_sparse) {
      spec.grad_dtype = info.row_sparse->grad.scalar_type();
      spec.row_length = spec.numel / info.tensor.size(0);
      spec.touched_rows = info.row_sparse->rows_per_sample * samples;
    }
    out.specs.push_back(std::move(spec));
  }
  for (const int64_t i : dist::keep_stacks_together(out.specs, policy.module().stacks())) {
    out.infos.push_back(ordered[static_cast<size_t>(i)]);
  }
  return out;
}

dist::BucketPlan plan_gradients(std::vector<dist::ParamSpec> specs, const ParallelSection& section,
                                int64_t world_size) {
  dist::PlanOptions options;
  options.world_size = world_size;
  options.bucket_bytes = static_cast<int64_t>(section.bucket_mb * (1 << 20));
  options.reduce_dtype =
      section.reduce_dtype == "bf16" ? c10::ScalarType::BFloat16 : c10::ScalarType::Float;
  return dist::plan_buckets(std::move(specs), options);
}

bool GradientSync::first() const {
  const std::vector<dist::Communicator*> all = communicators();
  return std::all_of(all.begin(), all.end(),
                     [](const dist::Communicator* one) { return one->rank() == 0; });
}

void GradientSync::combine_norm(const at::Tensor& norm) {
  const at::NoGradGuard no_grad;
  norm.square_();
  communicators().front()->all_reduce(norm, dist::ReduceOp::kSum, "norm").wait();
  norm.sqrt_();
}

void GradientSync::time_on(at::Device device) {
  for (dist::Communicator* one : communicators()) one->time_on(device);
}

void GradientSync::begin_times() {
  for (dist::Communicator* one : communicators()) one->clock()->begin();
}

GradientSync::Timed GradientSync::end_times() {
  Timed out;
  for (dist::Communicator* one : communicators()) out.push_back(one->clock()->end());
  return out;
}

std::vector<at::Tensor> GradientSync::copy_stamps(const Timed& step) const {
  std::vector<at::Tensor> out;
  const std::vector<dist::Communicator*> all = communicators();
  for (size_t i = 0; i < all.size(); ++i) {
    const at::Tensor used = all[i]->clock()->stamps().narrow(0, 0, step[i].num_slots);
    out.push_back(at::empty(used.sizes(), at::TensorOptions(at::kLong).pinned_memory(true)));
    out.back().copy_(used, /*non_blocking=*/true);
  }
  return out;
}

GradientSync::Times GradientSync::read_times(const Timed& step,
                                             const std::vector<at::Tensor>& stamps) {
  Times out;
  const std::vector<dist::Communicator*> all = communicators();
  for (size_t i = 0; i < all.size(); ++i) {
    const dist::StepTimes times = dist::DeviceClock::read(step[i], stamps[i]);
    all[i]->add_times(times);
    out.waited += times.waited;
    for (const auto& [name, ms] : times.collectives) out.collectives += ms;
  }
  return out;
}

GradientSync::Traffic GradientSync::traffic() const {
  Traffic out;
  for (const dist::Communicator* one : communicators()) out.push_back(one->counters());
  return out;
}

dist::CollectiveCounter GradientSync::total_traffic() const {
  dist::CollectiveCounter out;
  for (const dist::Communicator* one : communicators()) {
    for (const auto& [name, counter] : one->counters()) out += counter;
  }
  return out;
}

GradientSync::Traffic GradientSync::traffic_since(const Traffic& before) const {
  Traffic out = traffic();
  for (size_t i = 0; i < out.size(); ++i) out[i] = dist::difference(out[i], before.at(i));
  return out;
}

void GradientSync::count_again(const Traffic& captured) {
  const std::vector<dist::Communicator*> all = communicators();
  for (size_t i = 0; i < all.size(); ++i) all[i]->count_again(captured.at(i));
}

at::Tensor sum_of_bits(const at::Tensor& values) {
  // Sums of integers are exact, whatever the order.
  const at::ScalarType bits = values.element_size() == 4 ? at::kInt : at::kShort;
  return values.detach().contiguous().view(bits).sum(at::kLong);
}

std::unique_ptr<GradientSync> make_gradient_sync(dist::Communicator& data,
                                                 dist::Communicator* replicas,
                                                 const ParallelSection& section, GraphMode graph,
                                                 const StepSize& step, models::Policy& policy) {
  if (shards_weights(section)) {
    return std::make_unique<ShardedSync>(data, replicas, section, step, policy);
  }
  return std::make_unique<ReplicatedSync>(data, section, graph, step, policy);
}

}  // namespace longship::train
