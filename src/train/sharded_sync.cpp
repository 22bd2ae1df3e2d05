#include "train/sharded_sync.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace longship::train {

using models::ParamInfo;
using models::ParamRole;

ShardedSync::ShardedSync(dist::Communicator& shard, dist::Communicator* replicas,
                         const ParallelSection& section, const StepSize& step,
                         models::Policy& policy)
    : shard_(shard), replicas_(replicas), policy_(policy) {
  PlannedParameters planned = parameters_to_plan(policy, step.samples);
  plan_ = plan_gradients(planned.specs, section,
                         shard.world_size() * (replicas == nullptr ? 1 : replicas->world_size()));
  std::vector<dist::ReducedParam> tensors;
  for (const ParamInfo& info : planned.infos) {
    tensors.push_back({info.tensor, {}});
    if (info.row_sparse) {
      tensors.back().external_grad = info.row_sparse->grad;
      tensors.back().row_flags = info.row_sparse->row_flags;
    }
    parameters_.emplace(info.name, info);
  }
  dist::FsdpOptions options;
  options.reshard = dist::parse_reshard(section.reshard);
  options.reduce_dtype = plan_.options.reduce_dtype;
  options.single_pass = step.passes == 1;
  fsdp_ = std::make_unique<dist::Fsdp>(dist::FsdpGroups{shard, replicas}, std::move(planned.specs),
                                       std::move(tensors), options);
  policy.attach(fsdp_->hooks());
  for (const dist::ShardSlice& slice : fsdp_->slices()) {
    parts_[slice.name] = {slice.begin, slice.end};
    updated_.push_back({slice.name, slice.weights, ParamRole::kTrainable});
  }
  for (const dist::ShardSlice& slice : fsdp_->gradless_slices()) {
    parts_[slice.name] = {slice.begin, slice.end};
    if (parameters_.at(slice.name).role != ParamRole::kDecayOnly) continue;
    updated_.push_back({slice.name, slice.weights, ParamRole::kDecayOnly});
  }
}

ShardedSync::~ShardedSync() {
  policy_.attach(nullptr);
}

void ShardedSync::set_values(AdamW& optimizer, const std::string& name, const at::Tensor& whole) {
  sums_[name] = sum_of_bits(whole);
  fsdp_->fill(name, whole, [&](const dist::ShardSlice& slice, const at::Tensor& values) {
    optimizer.set_master(slice.name, values);
  });
}

std::vector<std::pair<std::string, at::Tensor>> ShardedSync::weight_sums() const {
  return {sums_.begin(), sums_.end()};
}

std::vector<StateSlice> ShardedSync::own_state(const AdamW& optimizer, bool loading) const {
  std::vector<StateSlice> out = whole_slices(optimizer.state());
  const auto place = [&](StateSlice& slice, const std::string& name) {
    const Part& part = parts_.at(name);
    slice.begin = part.begin;
    slice.end = part.end;
    slice.shape = parameters_.at(name).tensor.sizes().vec();
  };
  for (StateSlice& slice : out) place(slice, slice.name.substr(slice.name.find('.') + 1));
  if (loading) return out;
  for (const dist::ShardSlice& frozen : fsdp_->gradless_slices()) {
    if (parameters_.at(frozen.name).role != ParamRole::kFrozen) continue;
    StateSlice slice{"param." + frozen.name, 0, 0, {}, frozen.weights};
    place(slice, frozen.name);
    out.push_back(std::move(slice));
  }
  return replicas_ == nullptr ? out : even_share(out, replicas_->rank(), replicas_->world_size());
}

void ShardedSync::all_gradients_ready() {
  throw InternalError("gradients of sharded weights come through hooks only");
}

void ShardedSync::begin_step() {
  fsdp_->begin_step();
  // Others may have dropped them since.
  for (const dist::ShardSlice& slice : fsdp_->slices()) slice.weights.mutable_grad() = slice.grad;
}

double ShardedSync::combine_norm(double norm, bool bad) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const double sum = shard_.sum({bad ? kNan : norm * norm}, "norm").front();
  if (replicas_ == nullptr) return std::sqrt(sum);
  // Copies have the same gradients, but only one of them may have seen a bad loss.
  const double faults = replicas_->sum({std::isnan(sum) ? kNan : 0.0}, "faults").front();
  return std::sqrt(sum) + faults;
}

dist::MemoryForecast ShardedSync::held_memory() const {
  dist::MemoryForecast out;
  out.parameters = fsdp_->shard_bytes();
  out.gathered = fsdp_->gathered_bytes();
  out.gradients = fsdp_->gradient_bytes();
  out.reduce_buffers = fsdp_->buffer_bytes();
  return out;
}

std::vector<dist::Communicator*> ShardedSync::communicators() const {
  std::vector<dist::Communicator*> out{&shard_};
  if (replicas_ != nullptr) out.push_back(replicas_);
  return out;
}

}  // namespace longship::train
