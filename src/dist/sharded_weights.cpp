#include "dist/sharded_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "nn/unit.h"

namespace longship::dist {
namespace {

// A tensor of that shape whose storage has no memory yet.
at::Tensor without_memory(std::vector<int64_t> shape, const at::TensorOptions& options) {
  at::Tensor out = at::empty({0}, options);
  out.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return out;
}

// The memory belongs to somebody else, who outlives the use.
void set_memory(const at::Tensor& tensor, void* data, size_t bytes) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(data, tensor.device()));
  storage->set_nbytes(bytes);
}

}  // namespace

ShardedWeights::ShardedWeights(Communicator& shard_group, const ShardPlan& plan,
                               const std::vector<ReducedParam>& params, bool share_buffers)
    : group_(shard_group),
      plan_(plan),
      share_(share_buffers),
      alone_(shard_group.world_size() == 1) {
  const at::NoGradGuard no_grad;
  units_.resize(plan.units.size());
  for (const UnitShard& flat : plan.spaces) {
    Space space;
    const at::TensorOptions options =
        params[static_cast<size_t>(flat.slots.front().param)].param.options().requires_grad(false);
    space.shard = at::zeros({flat.shard_numel(plan.shard_size)}, options);
    space.whole = alone_ ? space.shard : without_memory({flat.numel}, options);
    fill_shard(flat, space, params);
    spaces_.push_back(std::move(space));
    // Unread ones are never whole, but in a group of one, where whole and shard are the same.
    if (flat.unit == nn::kUnreadUnit && !alone_) make_views(flat, spaces_.back(), params);
  }
  if (alone_) {
    for (size_t s = 0; s < spaces_.size(); ++s) make_views(plan.spaces[s], spaces_[s], params);
    return;
  }
  if (plan.spaces.empty()) return;
  make_buffers(spaces_.front().shard.device());
  for (size_t u = 0; u < units_.size(); ++u) {
    const int64_t unit = static_cast<int64_t>(u);
    // Views are made while there is memory, because making them checks its size.
    attach(unit, unit == 0 || !share_ ? unit : 1);
    for (const int64_t s : plan.units[u].spaces) {
      make_views(plan.spaces[static_cast<size_t>(s)], of(s), params);
    }
    if (unit > 0 && share_) detach(unit);
  }
  std::vector<at::Tensor> shards;
  for (const Space& space : spaces_) shards.push_back(space.shard);
  group_.share(shards);
}

// A gather that nobody waited for still writes.
ShardedWeights::~ShardedWeights() {
  try {
    for (size_t u = 0; u < units_.size(); ++u) wait(static_cast<int64_t>(u));
  } catch (const std::exception&) {
    // The peers are gone; whoever used the weights has been told or will be by the next collective.
  }
}

void ShardedWeights::fill_shard(const UnitShard& plan, Space& space,
                                const std::vector<ReducedParam>& params) {
  const int64_t part = space.shard.numel(), begin = group_.rank() * part, end = begin + part;
  for (const BucketSlot& slot : plan.slots) {
    const at::Tensor& param = params[static_cast<size_t>(slot.param)].param;
    space.shapes.push_back(param.sizes().vec());
    const int64_t from = std::max(begin, slot.offset), to = std::min(end, slot.end());
    if (from >= to || param.storage().nbytes() == 0) continue;
    space.shard.narrow(0, from - begin, to - from)
        .copy_(param.detach().view({-1}).narrow(0, from - slot.offset, to - from));
  }
}

void ShardedWeights::make_views(const UnitShard& plan, const Space& space,
                                const std::vector<ReducedParam>& params) {
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const BucketSlot& slot = plan.slots[i];
    at::Tensor param = params[static_cast<size_t>(slot.param)].param;
    const bool unread = plan.unit == nn::kUnreadUnit && !alone_;
    param.set_data(unread ? without_memory(space.shapes[i], space.shard.options())
                          : space.whole.narrow(0, slot.offset, slot.numel).view(space.shapes[i]));
  }
}

void ShardedWeights::make_buffers(at::Device device) {
  int64_t largest = 0;
  for (size_t u = 1; u < plan_.units.size(); ++u) {
    largest = std::max(largest, plan_.units[u].numel_bytes);
  }
  const auto add = [&](int64_t bytes) {
    buffers_.push_back({at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(device))});
  };
  add(plan_.units.front().numel_bytes);
  const size_t others = plan_.units.size() - 1;
  for (size_t i = 0; i < (share_ ? std::min<size_t>(2, others) : others); ++i) {
    add(share_ ? largest : plan_.units[i + 1].numel_bytes);
  }
}

int64_t ShardedWeights::free_buffer() const {
  for (size_t b = 1; b < buffers_.size(); ++b) {
    if (buffers_[b].holder < 0) return static_cast<int64_t>(b);
  }
  return -1;
}

void ShardedWeights::attach(int64_t unit, int64_t buffer) {
  char* data = static_cast<char*>(buffers_[static_cast<size_t>(buffer)].bytes.mutable_data_ptr());
  for (const int64_t s : plan_.units[static_cast<size_t>(unit)].spaces) {
    const size_t bytes = of(s).whole.nbytes();
    set_memory(of(s).whole, data, bytes);
    data += bytes;
  }
  buffers_[static_cast<size_t>(buffer)].holder = unit;
  units_[static_cast<size_t>(unit)].buffer = buffer;
}

void ShardedWeights::detach(int64_t unit) {
  Unit& state = units_[static_cast<size_t>(unit)];
  for (const int64_t s : plan_.units[static_cast<size_t>(unit)].spaces) {
    set_memory(of(s).whole, nullptr, 0);
  }
  buffers_[static_cast<size_t>(state.buffer)].holder = -1;
  state.buffer = -1;
}

bool ShardedWeights::can_gather(int64_t unit) const {
  const Unit& state = units_[static_cast<size_t>(unit)];
  return alone_ || state.gathered || state.buffer >= 0 || free_buffer() >= 0;
}

void ShardedWeights::begin_gather(int64_t unit) {
  Unit& state = units_[static_cast<size_t>(unit)];
  if (alone_ || state.gathered) return;
  if (state.buffer < 0) {
    const int64_t buffer = free_buffer();
    if (buffer < 0) {
      std::vector<std::string> holders;
      for (size_t b = 1; b < buffers_.size(); ++b) {
        holders.push_back(plan_.units[static_cast<size_t>(buffers_[b].holder)].name);
      }
      throw InternalError(fmt::format("fsdp: no buffer for unit '{}'; they are held by {}",
                                      plan_.units[static_cast<size_t>(unit)].name,
                                      join(holders, ", ")));
    }
    attach(unit, buffer);
  }
  state.gathered = true;
  const at::NoGradGuard no_grad;
  const ShardPlan::Unit& plan = plan_.units[static_cast<size_t>(unit)];
  for (const int64_t s : plan.spaces) {
    state.gathers.push_back(group_.all_gather(of(s).whole, of(s).shard, "params",
                                              plan.name.empty() ? "root" : plan.name));
  }
}

void ShardedWeights::wait(int64_t unit) {
  Unit& state = units_[static_cast<size_t>(unit)];
  for (Handle& handle : state.gathers) handle.wait();
  state.gathers.clear();
}

void ShardedWeights::release(int64_t unit) {
  Unit& state = units_[static_cast<size_t>(unit)];
  if (!state.gathered) return;
  wait(unit);
  state.gathered = false;
  if (unit > 0 && share_) detach(unit);
}

void ShardedWeights::forget() {
  for (size_t u = 0; u < units_.size(); ++u) release(static_cast<int64_t>(u));
}

void ShardedWeights::visit_whole(
    const std::function<void(int64_t, const at::Tensor&)>& visit) const {
  const at::NoGradGuard no_grad;
  for (size_t s = 0; s < spaces_.size(); ++s) {
    const Space& space = spaces_[s];
    const UnitShard& plan = plan_.spaces[s];
    at::Tensor whole = space.whole;
    if (!alone_) {
      whole = at::empty({plan.numel}, space.shard.options());
      group_.all_gather(whole, space.shard, "params export", plan.unit).wait();
    }
    for (size_t i = 0; i < plan.slots.size(); ++i) {
      visit(plan.slots[i].param,
            whole.narrow(0, plan.slots[i].offset, plan.slots[i].numel).view(space.shapes[i]));
    }
  }
}

int64_t ShardedWeights::shard_bytes() const {
  size_t sum = 0;
  for (const Space& space : spaces_) sum += space.shard.nbytes();
  return static_cast<int64_t>(sum);
}

int64_t ShardedWeights::buffer_bytes() const {
  size_t sum = 0;
  for (const Buffer& buffer : buffers_) sum += buffer.bytes.nbytes();
  return static_cast<int64_t>(sum);
}

}  // namespace longship::dist
