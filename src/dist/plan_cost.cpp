// Bytes on the wire and in memory of a plan, before anything is allocated.

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "dist/plan.h"

namespace longship::dist {
namespace {

constexpr int64_t kMasterBytes = 4, kMomentBytes = 8, kEmaBytes = 4;

int64_t size_of(c10::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

// Adds up what one name moves: `bytes` of the whole tensor, `wire_bytes` of them sent by a rank.
void count_sent(std::map<std::string, CollectiveCounter>& out, const std::string& name,
                int64_t bytes, int64_t wire_bytes) {
  CollectiveCounter one;
  one.count = 1;
  one.tensor_bytes = bytes;
  one.wire_bytes = wire_bytes;
  out[name] += one;
}

void count(std::map<std::string, CollectiveCounter>& out, const std::string& name,
           CollectiveKind kind, int64_t world_size, int64_t bytes, int64_t times = 1) {
  CollectiveCounter one;
  one.count = times;
  one.tensor_bytes = times * bytes;
  one.wire_bytes = times * ring_bytes(kind, world_size, bytes);
  out[name] += one;
}

// Bytes of a bucket as it is sent. One rank sends nothing and converts nothing.
int64_t sent_bytes(const BucketPlan& plan, const Bucket& bucket) {
  return bucket.numel *
         size_of(plan.options.world_size == 1 ? bucket.grad_dtype : plan.options.reduce_dtype);
}

// Whether a bucket is sent as it is and added up in the wider type.
bool widened(const BucketPlan& plan, const Bucket& bucket, const CostOptions& options) {
  return options.widened && sums_are_wider(plan, bucket);
}

void count_rows(const ParamSpec& table, int64_t world_size,
                std::map<std::string, CollectiveCounter>& out) {
  const RowListBytes list = row_list_bytes(table);
  count(out, "grad", CollectiveKind::kAllGather, world_size, world_size * list.values);
  count(out, "grad", CollectiveKind::kAllGather, world_size, world_size * list.numbers);
}

// What RowExchange holds.
int64_t row_exchange_bytes(const ParamSpec& table, int64_t world_size) {
  const RowListBytes list = row_list_bytes(table);
  // Where each row is in each list, besides.
  const int64_t places = table.numel / table.row_length * size_of(c10::ScalarType::Int);
  return world_size * (list.values + list.numbers + places);
}

void count_gradients(const BucketPlan& plan, const Bucket& bucket, const CostOptions& options,
                     std::map<std::string, CollectiveCounter>& out) {
  const int64_t world = plan.options.world_size;
  const bool zero1 = options.strategy == Strategy::kZero1;
  const auto kind = zero1 ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
  const int64_t sent = sent_bytes(plan, bucket);
  if (exchanges_rows(plan, bucket)) {
    count_rows(plan.params[static_cast<size_t>(bucket.slots.front().param)], world, out);
  } else if (widened(plan, bucket, options)) {
    const int64_t own = bucket.numel * size_of(bucket.grad_dtype);
    count_sent(out, "grad", own,
               zero1 ? ring_bytes(kind, world, own) : widened_all_reduce_bytes(world, own, sent));
  } else {
    count(out, "grad", kind, world, sent);
  }
}

int64_t shard_size(const BucketPlan& plan, const CostOptions& options) {
  if (options.strategy != Strategy::kHsdp || options.shard_size == 0) {
    return plan.options.world_size;
  }
  LS_CHECK(plan.options.world_size % options.shard_size == 0, ConfigError,
           "parallel.shard: {} does not divide the {} ranks", options.shard_size,
           plan.options.world_size);
  LS_CHECK(options.shard_size > 1 || plan.options.world_size == 1, ConfigError,
           "parallel.shard: 1 leaves every rank with all weights; use parallel.strategy ddp");
  return options.shard_size;
}

// How often a unit is gathered in one step.
int64_t gathers(const ShardPlan& plan, size_t unit, const CostOptions& options) {
  if (unit == 0 || options.reshard == Reshard::kAfterOptimizerStep) return 1;
  const bool once = options.reshard == Reshard::kNever || !plan.units[unit].backward ||
                    unit + 1 == plan.units.size();
  return (once ? 1 : 2) * options.micro_batches;
}

// Of an element of a flat space as it is sent.
int64_t sent_size(const BucketPlan& plan, const UnitShard& space, const CostOptions& options) {
  const c10::ScalarType sum = plan.options.reduce_dtype;
  return size_of(options.widened && sums_are_wider(space, sum) ? space.grad_dtype : sum);
}

void predict_sharded(const BucketPlan& plan, const CostOptions& options,
                     std::map<std::string, CollectiveCounter>& out) {
  const int64_t shard = shard_size(plan, options);
  if (shard == 1) return;  // one rank: nothing moves, not even within it
  const int64_t replicas = plan.options.world_size / shard;
  const int64_t wire = size_of(plan.options.reduce_dtype);
  const ShardPlan shards = plan_shards(plan.params, shard);
  for (size_t u = 0; u < shards.units.size(); ++u) {
    for (const int64_t s : shards.units[u].spaces) {
      const UnitShard& space = shards.spaces[static_cast<size_t>(s)];
      count(out, "params", CollectiveKind::kAllGather, shard, space.numel * size_of(space.dtype),
            gathers(shards, u, options));
      if (!space.trainable) continue;
      // Every micro-batch, so that no rank keeps whole gradients; external ones are whole anyway.
      if (exchanges_rows(shards, space)) {
        count_rows(shards.params[static_cast<size_t>(space.slots.front().param)], shard, out);
      } else {
        count(out, "grad", CollectiveKind::kReduceScatter, shard,
              space.numel * sent_size(plan, space, options),
              space.external ? 1 : options.micro_batches);
      }
      if (replicas > 1) {
        count(out, "grad replicas", CollectiveKind::kAllReduce, replicas,
              space.numel / shard * wire);
      }
    }
  }
}

// What the rank updates: elements, and those that need a master.
struct Updated {
  int64_t numel = 0, with_master = 0;
  void add(int64_t n, c10::ScalarType dtype) {
    numel += n;
    if (dtype != c10::ScalarType::Float) with_master += n;
  }
};

Updated updated_elements(const BucketPlan& plan, const CostOptions& options) {
  Updated most;
  if (options.strategy == Strategy::kFsdp || options.strategy == Strategy::kHsdp) {
    const int64_t shard = shard_size(plan, options);
    for (const UnitShard& unit : plan_units(plan.params, shard)) {
      if (unit.trainable) most.add(unit.numel / shard, unit.dtype);
    }
    return most;
  }
  if (options.strategy == Strategy::kZero1) {
    for (int64_t r = 0; r < plan.options.world_size; ++r) {
      Updated mine;
      for (const OwnedSlice& slice : owned_slices(plan, r)) {
        mine.add(slice.end - slice.begin, plan.params[static_cast<size_t>(slice.param)].dtype);
      }
      if (mine.numel > most.numel) most = mine;
    }
    return most;
  }
  for (const ParamSpec& p : plan.params) {
    if (p.source != GradSource::kNone) most.add(p.numel, p.dtype);
  }
  return most;
}

void predict_sharded_memory(const BucketPlan& plan, const CostOptions& options,
                            MemoryForecast& out) {
  const int64_t shard = shard_size(plan, options);
  const int64_t replicas = plan.options.world_size / shard;
  const int64_t wire = size_of(plan.options.reduce_dtype);
  const bool wide = plan.options.reduce_dtype == c10::ScalarType::Float;
  const ShardPlan shards = plan_shards(plan.params, shard);
  for (const UnitShard& space : shards.spaces) {
    out.parameters += space.numel / shard * size_of(space.dtype);
    if (!space.trainable) continue;
    if (shard == 1) {
      out.gradients += space.numel * size_of(space.grad_dtype);
      continue;
    }
    out.gradients += space.numel / shard * kMasterBytes;
    if (replicas > 1 && !wide) out.reduce_buffers += space.numel / shard * wire;
    if (!space.external) continue;
    out.gradients += space.numel * size_of(space.grad_dtype);
    if (exchanges_rows(shards, space)) {
      out.reduce_buffers +=
          row_exchange_bytes(shards.params[static_cast<size_t>(space.slots.front().param)], shard);
      continue;
    }
    if (space.grad_dtype != plan.options.reduce_dtype) out.reduce_buffers += space.numel * wire;
  }
  if (shard == 1) return;
  // Two units at a time, the one at work and the next; the root besides.
  int64_t largest = 0, all = 0, largest_grad = 0, with_grad = 0;
  for (size_t u = 0; u < shards.units.size(); ++u) {
    int64_t grad = 0;
    for (const int64_t s : shards.units[u].spaces) {
      const UnitShard& space = shards.spaces[static_cast<size_t>(s)];
      if (!space.trainable || space.external) continue;
      grad += space.numel * sent_size(plan, space, options);
    }
    if (u == 0) {
      out.gathered += shards.units[u].numel_bytes;
      out.reduce_buffers += grad;
      continue;
    }
    all += shards.units[u].numel_bytes;
    largest = std::max(largest, shards.units[u].numel_bytes);
    largest_grad = std::max(largest_grad, grad);
    with_grad += grad > 0 ? 1 : 0;
  }
  const int64_t units = static_cast<int64_t>(shards.units.size()) - 1;
  out.gathered +=
      options.reshard == Reshard::kAfterForward ? std::min<int64_t>(2, units) * largest : all;
  out.reduce_buffers += std::min<int64_t>(2, with_grad) * largest_grad;
}

}  // namespace

Strategy parse_strategy(const std::string& name) {
  if (name == "none") return Strategy::kNone;
  if (name == "ddp") return Strategy::kDdp;
  if (name == "zero1") return Strategy::kZero1;
  if (name == "fsdp") return Strategy::kFsdp;
  if (name == "hsdp") return Strategy::kHsdp;
  throw ConfigError(
      fmt::format("parallel.strategy: '{}' is none of none, ddp, zero1, fsdp, hsdp", name));
}

Reshard parse_reshard(const std::string& name) {
  if (name == "after_forward") return Reshard::kAfterForward;
  if (name == "never") return Reshard::kNever;
  if (name == "after_optimizer_step") return Reshard::kAfterOptimizerStep;
  throw ConfigError(fmt::format(
      "parallel.reshard: '{}' is none of after_forward, never, after_optimizer_step", name));
}

std::map<std::string, CollectiveCounter> predict_communication(const BucketPlan& plan,
                                                               const CostOptions& options) {
  std::map<std::string, CollectiveCounter> out;
  const int64_t world = plan.options.world_size;
  switch (options.strategy) {
    case Strategy::kNone:
      return out;
    case Strategy::kDdp:
      for (const Bucket& bucket : plan.buckets) {
        count_gradients(plan, bucket, options, out);
      }
      return out;  // gradients are whole everywhere: the norm needs no sum
    case Strategy::kZero1:
      for (const Bucket& bucket : plan.buckets) {
        count_gradients(plan, bucket, options, out);
        count(out, "params", CollectiveKind::kAllGather, world,
              bucket.numel * size_of(bucket.dtype));
      }
      break;
    case Strategy::kFsdp:
    case Strategy::kHsdp:
      predict_sharded(plan, options, out);
      break;
  }
  count(out, "norm", CollectiveKind::kAllReduce, shard_size(plan, options), 8);
  return out;
}

MemoryForecast predict_memory(const BucketPlan& plan, const CostOptions& options) {
  MemoryForecast out;
  const Updated updated = updated_elements(plan, options);
  out.masters = updated.with_master * kMasterBytes;
  out.moments = updated.numel * kMomentBytes;
  if (options.ema) out.ema = updated.numel * kEmaBytes;
  if (options.strategy == Strategy::kFsdp || options.strategy == Strategy::kHsdp) {
    predict_sharded_memory(plan, options, out);
    return out;
  }
  const bool zero1 = options.strategy == Strategy::kZero1;
  for (const ParamSpec& p : plan.params) {
    const bool flat = zero1 && p.source != GradSource::kNone;
    if (!flat) out.parameters += p.numel * size_of(p.dtype);
    if (options.strategy == Strategy::kNone && p.source != GradSource::kNone) {
      out.gradients += p.numel * size_of(p.gradient_dtype());
    }
  }
  if (options.strategy == Strategy::kNone) return out;
  const int64_t world = plan.options.world_size;
  for (const Bucket& bucket : plan.buckets) {
    if (zero1) out.parameters += bucket.numel * size_of(bucket.dtype);
    const int64_t sent = sent_bytes(plan, bucket), own = bucket.numel * size_of(bucket.grad_dtype);
    if (zero1 && world > 1) out.reduce_buffers += sent / world;
    if (exchanges_rows(plan, bucket)) {
      out.reduce_buffers +=
          row_exchange_bytes(plan.params[static_cast<size_t>(bucket.slots.front().param)], world);
      out.gradients += own;
      continue;
    }
    const bool stays = options.gradients_stay || bucket.external;
    const bool kept_own = own > sent || stays || widened(plan, bucket, options);
    const bool apart = own != sent && kept_own;
    out.gradients += apart ? own : sent;
    // zero1 needs no whole tensor of sums that come out as parts.
    if (apart && !(zero1 && widened(plan, bucket, options))) out.reduce_buffers += sent;
  }
  return out;
}

}  // namespace longship::dist
