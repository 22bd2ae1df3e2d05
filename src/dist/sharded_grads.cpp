#include "dist/sharded_grads.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "nn/unit.h"
#include "ops/convert.h"

namespace longship::dist {

ShardedGrads::ShardedGrads(Communicator& shard_group, Communicator* replicas, const ShardPlan& plan,
                           std::vector<ReducedParam> params, at::ScalarType reduce_dtype,
                           bool single_pass)
    : group_(shard_group),
      replicas_(replicas),
      plan_(plan),
      params_(std::move(params)),
      wire_dtype_(reduce_dtype),
      alone_(shard_group.world_size() == 1),
      widens_(single_pass && !alone_ && shard_group.widens() && reduce_dtype == at::kFloat) {
  units_.resize(plan.units.size());
  ready_.assign(plan.params.size(), 0);
  offset_of_.assign(plan.params.size(), 0);
  for (const UnitShard& flat : plan.spaces) make_space(flat);
  for (size_t u = 0; u < units_.size(); ++u) {
    for (const int64_t s : plan.units[u].spaces) {
      const UnitShard& flat = plan.spaces[static_cast<size_t>(s)];
      if (!flat.trainable || flat.external) continue;
      Space& space = spaces_[static_cast<size_t>(s)];
      space.wire_type =
          widens_ && sums_are_wider(flat, wire_dtype_) ? flat.grad_dtype : wire_dtype_;
      space.wire_offset = units_[u].wire_bytes;
      units_[u].wire_bytes += flat.numel * static_cast<int64_t>(c10::elementSize(space.wire_type));
      for (const BucketSlot& slot : flat.slots) {
        const GradSource source = plan.params[static_cast<size_t>(slot.param)].source;
        units_[u].expected += source == GradSource::kBackward ? 1 : 0;
      }
    }
  }
  if (!alone_) {
    make_buffers();
    share_buffers();
  }
  begin_step();
}

ShardedGrads::~ShardedGrads() {
  try {
    finish();
  } catch (const std::exception&) {
    // The peers are gone; see ShardedWeights.
  }
}

void ShardedGrads::make_space(const UnitShard& plan) {
  Space space;
  for (const BucketSlot& slot : plan.slots) {
    offset_of_[static_cast<size_t>(slot.param)] = slot.offset;
  }
  if (plan.trainable) {
    const at::TensorOptions options =
        params_[static_cast<size_t>(plan.slots.front().param)].param.options().requires_grad(false);
    const auto make = [&](int64_t numel, at::ScalarType dtype) {
      return at::zeros({numel}, options.dtype(dtype));
    };
    if (alone_) {
      space.mean = make(plan.numel, plan.grad_dtype);
      if (plan.external) space.external = space.mean;
    } else {
      const int64_t part = plan.shard_numel(plan_.shard_size);
      space.mean = make(part, at::kFloat);
      if (replicas_ != nullptr && wire_dtype_ != at::kFloat) {
        space.replicated = make(part, wire_dtype_);
      }
      if (plan.external) {
        space.external = make(plan.numel, plan.grad_dtype);
        make_external(space, plan);
      }
    }
  }
  spaces_.push_back(std::move(space));
}

void ShardedGrads::make_external(Space& space, const UnitShard& plan) {
  if (!exchanges_rows(plan_, plan)) {
    space.wire = plan.grad_dtype == wire_dtype_
                     ? space.external
                     : space.external.to(wire_dtype_, /*non_blocking=*/false,
                                         /*copy=*/true);
    return;
  }
  const auto first = static_cast<size_t>(plan.slots.front().param);
  const ParamSpec& table = plan_.params[first];
  space.rows = std::make_unique<RowExchange>(
      group_, space.external.narrow(0, 0, table.numel).view({-1, table.row_length}),
      params_[first].row_flags, table.touched_rows);
}

void ShardedGrads::make_buffers() {
  int64_t largest = 0, with_grad = 0;
  for (size_t u = 1; u < units_.size(); ++u) {
    largest = std::max(largest, units_[u].wire_bytes);
    with_grad += units_[u].wire_bytes > 0 ? 1 : 0;
  }
  if (params_.empty()) return;
  const at::TensorOptions options =
      params_.front().param.options().requires_grad(false).dtype(at::kByte);
  buffers_.push_back({at::zeros({units_.front().wire_bytes}, options)});
  for (int64_t i = 0; i < std::min<int64_t>(2, with_grad); ++i) {
    buffers_.push_back({at::zeros({largest}, options)});
  }
}

void ShardedGrads::share_buffers() {
  std::vector<at::Tensor> wires, parts;
  for (const Buffer& buffer : buffers_) wires.push_back(buffer.flat);
  for (const Space& space : spaces_) {
    if (space.wire.defined()) wires.push_back(space.wire);
    if (space.rows) {
      for (const at::Tensor& list : space.rows->exchanged()) wires.push_back(list);
    }
    if (space.mean.defined()) {
      parts.push_back(space.replicated.defined() ? space.replicated : space.mean);
    }
  }
  group_.share(wires);
  if (replicas_ != nullptr) replicas_->share(parts);
}

void ShardedGrads::install_views() {
  for (size_t s = 0; s < spaces_.size(); ++s) {
    const UnitShard& flat = plan_.spaces[s];
    if (!flat.trainable || (!alone_ && !flat.external)) continue;
    const at::Tensor& whole = flat.external ? spaces_[s].external : spaces_[s].mean;
    for (const BucketSlot& slot : flat.slots) {
      ReducedParam& tensors = params_[static_cast<size_t>(slot.param)];
      const at::Tensor view = whole.narrow(0, slot.offset, slot.numel);
      if (flat.external) {
        at::Tensor& grad = tensors.external_grad;
        if (grad.data_ptr() != view.data_ptr()) grad.set_data(view.view(grad.sizes()));
      } else if (!tensors.param.grad().defined() ||
                 tensors.param.grad().data_ptr() != view.data_ptr()) {
        tensors.param.mutable_grad() = view.view(tensors.param.sizes());
      }
    }
  }
}

void ShardedGrads::begin_step() {
  const at::NoGradGuard no_grad;
  for (size_t s = 0; s < spaces_.size(); ++s) {
    const UnitShard& flat = plan_.spaces[s];
    if (!flat.trainable) continue;
    if (alone_) spaces_[s].mean.zero_();
    if (spaces_[s].rows) {
      clear_rows(spaces_[s]);
    } else if (flat.external && !alone_) {
      spaces_[s].external.zero_();
    }
    if (alone_ || flat.external) continue;
    for (const BucketSlot& slot : flat.slots) {
      params_[static_cast<size_t>(slot.param)].param.mutable_grad() = at::Tensor();
    }
  }
  for (Unit& unit : units_) {
    unit.micro_batches = 0;
    unit.apart.clear();
    unit.places.clear();
  }
  num_passes_ = 0;
  offers_.withdraw();
  install_views();
}

void ShardedGrads::begin_micro_batch() {
  std::fill(ready_.begin(), ready_.end(), 0);
  for (Unit& unit : units_) unit.missing = unit.expected;
  LS_CHECK(!widens_ || num_passes_ == 0, InternalError,
           "fsdp: a second micro-batch in a step, but gradients of one are collected");
  ++num_passes_;
}

at::Tensor ShardedGrads::wire_of(int64_t unit, const Space& space, const UnitShard& plan) const {
  const auto bytes = plan.numel * static_cast<int64_t>(c10::elementSize(space.wire_type));
  return buffers_[static_cast<size_t>(of(unit).buffer)]
      .flat.narrow(0, space.wire_offset, bytes)
      .view(space.wire_type);
}

// In the wire of its unit, which has a buffer.
at::Tensor ShardedGrads::place_of(int64_t param) const {
  const auto p = static_cast<size_t>(param);
  const auto s = static_cast<size_t>(plan_.space_of[p]);
  return wire_of(plan_.unit_of[p], spaces_[s], plan_.spaces[s])
      .narrow(0, offset_of_[p], plan_.params[p].numel)
      .view(params_[p].param.sizes());
}

void ShardedGrads::offer_places(int64_t unit) {
  if (alone_ || of(unit).wire_bytes == 0) return;
  take_buffer(unit);
  std::vector<ops::GradientPlace> offered;
  for_each_reduced(unit, [&](Space& space, const UnitShard& flat) {
    for (const BucketSlot& slot : flat.slots) {
      const auto p = static_cast<size_t>(slot.param);
      const at::Tensor& param = params_[p].param;
      const bool direct = plan_.params[p].source == GradSource::kBackward && param.dim() > 1 &&
                          space.wire_type == param.scalar_type();
      if (direct) offered.push_back({param.detach(), place_of(slot.param)});
    }
  });
  offers_.offer(offered);
}

void ShardedGrads::take_buffer(int64_t unit) {
  Unit& state = of(unit);
  if (state.buffer >= 0 && !state.sending) return;
  if (state.sending) finish_scatter(unit);  // of the micro-batch before
  const int64_t buffer = unit == 0 ? 0 : 1 + turn_++ % static_cast<int64_t>(buffers_.size() - 1);
  Buffer& taken = buffers_[static_cast<size_t>(buffer)];
  if (taken.holder >= 0) {
    LS_CHECK(of(taken.holder).sending, InternalError,
             "fsdp: gradients of unit '{}' come before those of '{}' are complete",
             plan_.units[static_cast<size_t>(unit)].name,
             plan_.units[static_cast<size_t>(taken.holder)].name);
    finish_scatter(taken.holder);
  }
  taken.holder = unit;
  state.buffer = buffer;
}

void ShardedGrads::arrived(int64_t param) {
  const size_t p = static_cast<size_t>(param);
  const ParamSpec& spec = plan_.params[p];
  LS_CHECK(spec.source == GradSource::kBackward, InternalError,
           "fsdp: parameter '{}' got a gradient although the plan says that none comes", spec.name);
  LS_CHECK(ready_[p] == 0, InternalError,
           "fsdp: parameter '{}' got a second gradient in one backward pass, after it was counted "
           "as complete",
           spec.name);
  ready_[p] = 1;
  const int64_t unit = plan_.unit_of[p];
  --of(unit).missing;
  if (alone_) return;
  const at::NoGradGuard no_grad;
  take_buffer(unit);
  at::Tensor& grad = params_[p].param.mutable_grad();
  const at::Tensor place = place_of(param);
  if (grad.dim() <= 1 && grad.scalar_type() == place.scalar_type()) {
    // Small ones are copied together.
    of(unit).apart.push_back(grad);
    of(unit).places.push_back(place);
  } else if (grad.data_ptr() != place.data_ptr()) {
    ops::convert_into(place, grad, /*add=*/false);
  }
  grad = at::Tensor();
}

std::string ShardedGrads::missing(int64_t unit) const {
  std::vector<std::string> names;
  for (size_t p = 0; p < ready_.size(); ++p) {
    const bool waits = plan_.unit_of[p] == unit && ready_[p] == 0 &&
                       plan_.params[p].source == GradSource::kBackward;
    if (waits && names.size() < 8) names.push_back(plan_.params[p].name);
  }
  return join(names, ", ") + (of(unit).missing > 8 ? ", ..." : "");
}

template <class Function>
void ShardedGrads::for_each_reduced(int64_t unit, Function&& function) {
  for (const int64_t s : plan_.units[static_cast<size_t>(unit)].spaces) {
    const UnitShard& flat = plan_.spaces[static_cast<size_t>(s)];
    if (flat.trainable && !flat.external) function(spaces_[static_cast<size_t>(s)], flat);
  }
}

void ShardedGrads::reduce(int64_t unit, bool last) {
  Unit& state = of(unit);
  if (alone_ || state.wire_bytes == 0) return;
  const at::NoGradGuard no_grad;
  take_buffer(unit);
  copy_apart(state);
  const std::string& name = plan_.units[static_cast<size_t>(unit)].name;
  for_each_reduced(unit, [&](Space& space, const UnitShard& flat) {
    const at::Tensor wire = wire_of(unit, space, flat);
    for (const BucketSlot& slot : flat.slots) {
      if (ready_[static_cast<size_t>(slot.param)] == 0) {
        wire.narrow(0, slot.offset, slot.numel).zero_();
      }
    }
    const int64_t part = flat.shard_numel(plan_.shard_size);
    const at::Tensor sum =
        space.wire_type == wire_dtype_ ? wire.narrow(0, group_.rank() * part, part) : space.mean;
    space.scatter =
        group_.reduce_scatter(sum, wire, ReduceOp::kMean, "grad", name.empty() ? "root" : name);
  });
  state.sending = true;
  state.last = last;
}

// One copy for each dtype.
void ShardedGrads::copy_apart(Unit& unit) {
  while (!unit.apart.empty()) {
    std::vector<at::Tensor> from, to, other, others;
    const at::ScalarType type = unit.apart.front().scalar_type();
    for (size_t i = 0; i < unit.apart.size(); ++i) {
      const bool same = unit.apart[i].scalar_type() == type;
      (same ? from : other).push_back(unit.apart[i]);
      (same ? to : others).push_back(unit.places[i]);
    }
    at::_foreach_copy_(to, from);
    unit.apart = std::move(other);
    unit.places = std::move(others);
  }
}

void ShardedGrads::clear_rows(const Space& space) const {
  // With replicas rows of other groups are in the means too.
  if (replicas_ != nullptr) {
    space.mean.zero_();
    return;
  }
  space.rows->clear(space.mean, group_.rank() * space.mean.numel());
}

void ShardedGrads::add_mean(Space& space, const at::Tensor& wire, bool first) {
  const int64_t part = space.mean.numel();
  const at::Tensor own = wire.narrow(0, group_.rank() * part, part);
  if (first) {
    space.mean.copy_(own);
  } else {
    space.mean.add_(own);
  }
}

void ShardedGrads::begin_replicate(Space& space, const std::string& detail) {
  if (replicas_ == nullptr) return;
  if (space.replicated.defined()) space.replicated.copy_(space.mean);
  space.replicate =
      replicas_->all_reduce(space.replicated.defined() ? space.replicated : space.mean,
                            ReduceOp::kMean, "grad replicas", detail);
}

void ShardedGrads::finish_scatter(int64_t unit) {
  const at::NoGradGuard no_grad;
  Unit& state = of(unit);
  const std::string& name = plan_.units[static_cast<size_t>(unit)].name;
  for_each_reduced(unit, [&](Space& space, const UnitShard& flat) {
    space.scatter.wait();
    if (space.wire_type == wire_dtype_) {
      add_mean(space, wire_of(unit, space, flat), state.micro_batches == 0);
    }
    if (state.last) begin_replicate(space, name.empty() ? "root" : name);
  });
  ++state.micro_batches;
  state.sending = false;
  buffers_[static_cast<size_t>(state.buffer)].holder = -1;
  state.buffer = -1;
}

void ShardedGrads::reduce_external() {
  if (alone_) return;
  const at::NoGradGuard no_grad;
  for (size_t s = 0; s < spaces_.size(); ++s) {
    Space& space = spaces_[s];
    const UnitShard& flat = plan_.spaces[s];
    if (!flat.external) continue;
    if (space.rows) {
      space.rows->send("external");
      continue;
    }
    if (!space.wire.is_same(space.external)) space.wire.copy_(space.external);
    const int64_t part = flat.shard_numel(plan_.shard_size);
    space.scatter = group_.reduce_scatter(space.wire.narrow(0, group_.rank() * part, part),
                                          space.wire, ReduceOp::kMean, "grad", "external");
  }
}

void ShardedGrads::finish() {
  if (alone_) return;
  const at::NoGradGuard no_grad;
  // In the order in which they were sent.
  for (int64_t u = static_cast<int64_t>(units_.size()) - 1; u >= 0; --u) {
    if (of(u).sending) finish_scatter(u);
  }
  for (size_t s = 0; s < spaces_.size(); ++s) {
    Space& space = spaces_[s];
    if (!plan_.spaces[s].external) continue;
    if (space.rows) {
      space.rows->wait();
      space.rows->add_up(space.mean, group_.rank() * space.mean.numel());
    } else if (space.scatter.valid()) {
      space.scatter.wait();
      space.scatter = {};
      add_mean(space, space.wire, true);
    } else {
      continue;
    }
    begin_replicate(space, "external");
  }
  for (Space& space : spaces_) {
    if (!space.replicate.valid()) continue;
    space.replicate.wait();
    space.replicate = {};
    if (space.replicated.defined()) space.mean.copy_(space.replicated);
  }
}

int64_t ShardedGrads::gradient_bytes() const {
  size_t sum = 0;
  for (const Space& space : spaces_) {
    if (space.mean.defined()) sum += space.mean.nbytes();
    if (space.external.defined() && !alone_) sum += space.external.nbytes();
  }
  return static_cast<int64_t>(sum);
}

int64_t ShardedGrads::buffer_bytes() const {
  size_t sum = 0;
  for (const Space& space : spaces_) {
    if (space.wire.defined() && !space.wire.is_same(space.external)) sum += space.wire.nbytes();
    if (space.replicated.defined()) sum += space.replicated.nbytes();
    if (space.rows) sum += static_cast<size_t>(space.rows->bytes());
  }
  for (const Buffer& buffer : buffers_) sum += buffer.flat.nbytes();
  return static_cast<int64_t>(sum);
}

}  // namespace longship::dist
