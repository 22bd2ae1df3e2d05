#include "dist/scaling_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace longship::dist {
namespace {

constexpr int64_t kWide = 4;  // bytes of fp32

int64_t size_of(c10::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

bool sharded(const CostOptions& options) {
  return options.strategy == Strategy::kFsdp || options.strategy == Strategy::kHsdp;
}

// Ranks that share one copy of the weights, and copies.
int64_t shard_ranks(const BucketPlan& plan, const CostOptions& options) {
  const int64_t world = plan.options.world_size;
  if (options.strategy != Strategy::kHsdp || options.shard_size == 0) return world;
  LS_CHECK(world % options.shard_size == 0, ConfigError,
           "parallel.shard: {} does not divide the {} ranks", options.shard_size, world);
  return options.shard_size;
}

bool alone(const BucketPlan& plan, const CostOptions& options) {
  return plan.options.world_size == 1 || options.strategy == Strategy::kNone;
}

// NCCL's ways, see the header. us.
struct Way {
  double base, inside, between, efficiency;
};
constexpr Way kRingSimple{8.4, 3.4, 14.0, 1.0};
constexpr Way kRingLl128{14.0, 1.9, 4.0, 0.92};
constexpr Way kTreeLl128{14.0, 1.25, 8.5, 0.73};

// Copy engines: waiting for each other, and adding up. us.
double peer_latency_us(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 55;
    case CollectiveKind::kReduceScatter:
      return 35;
    default:
      return 22;
  }
}

bool over_copy_engines(const RankGroup& group, const ScalingConstants& constants) {
  return constants.peer && group.nodes() == 1;
}

// Of a collective by which each rank sends `wire_bytes`.
double moving_ms(CollectiveKind kind, int64_t wire_bytes, const RankGroup& group,
                 const ScalingConstants& constants) {
  if (group.ranks == 1) return 0;
  const double megabytes = 1e-6 * static_cast<double>(wire_bytes);
  if (over_copy_engines(group, constants)) {
    return 1e-3 * peer_latency_us(kind) + megabytes / constants.peer_gb_s;
  }
  const int64_t nodes = group.nodes();
  double gb_s = group.per_node > 1 ? constants.nvlink_gb_s : std::numeric_limits<double>::max();
  if (nodes > 1) {
    gb_s = std::min(gb_s, static_cast<double>(group.per_node) * constants.network_gb_s *
                              constants.network_reached);
  }
  const double bytes_ms = megabytes / gb_s;
  const bool all_reduce = kind == CollectiveKind::kAllReduce;
  const double rounds = all_reduce ? 2 : 1;
  const auto between = rounds * static_cast<double>(nodes - 1);
  const auto inside = rounds * static_cast<double>(group.ranks - nodes);
  double best = std::numeric_limits<double>::max();
  for (const Way& way : {kRingSimple, kRingLl128}) {
    const double latency_us = way.base + inside * way.inside + between * way.between;
    best = std::min(best, 1e-3 * latency_us + bytes_ms / way.efficiency);
  }
  if (all_reduce) {
    const auto doublings = static_cast<double>(std::bit_width(static_cast<uint64_t>(nodes - 1)));
    const double latency_us =
        kTreeLl128.base + 2 * (static_cast<double>(group.per_node - 1) * kTreeLl128.inside +
                               doublings * kTreeLl128.between);
    best = std::min(best, 1e-3 * latency_us + bytes_ms / kTreeLl128.efficiency);
  }
  return best;
}

// Lists of a table's rows and of their numbers, when the backward pass has ended.
void row_exchanges(const ParamSpec& table, const RankGroup& group, std::vector<Exchange>& out) {
  const RowListBytes list = row_list_bytes(table);
  for (const int64_t bytes : {list.values, list.numbers}) {
    out.push_back({"grad", CollectiveKind::kAllGather, group.ranks * bytes, group, 1,
                   Pass::kBackward, /*hidden=*/false});
  }
}

void replicated_exchanges(const BucketPlan& plan, const CostOptions& options,
                          const RankGroup& world, std::vector<Exchange>& out) {
  const bool zero1 = options.strategy == Strategy::kZero1;
  const auto kind = zero1 ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
  size_t last = plan.buckets.size();
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    if (!plan.buckets[b].external) last = b;
  }
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    const int64_t sum_bytes = bucket.numel * size_of(plan.options.reduce_dtype);
    Exchange one{"grad", kind, sum_bytes, world, 1, Pass::kBackward};
    one.hidden = !bucket.external && b != last && !options.gradients_stay;
    if (exchanges_rows(plan, bucket)) {
      row_exchanges(plan.params[static_cast<size_t>(bucket.slots.front().param)], world, out);
      continue;
    }
    if (options.widened && sums_are_wider(plan, bucket)) {
      one.num_bytes = bucket.numel * size_of(bucket.grad_dtype);
      if (!zero1) one.sent = widened_all_reduce_bytes(world.ranks, one.num_bytes, sum_bytes);
    }
    out.push_back(one);
  }
  if (!zero1) return;
  for (size_t b = plan.buckets.size(); b-- > 0;) {
    const Bucket& bucket = plan.buckets[b];
    out.push_back({"params", CollectiveKind::kAllGather, bucket.numel * size_of(bucket.dtype),
                   world, 1, Pass::kForward, /*hidden=*/false});
  }
}

// Of one unit of a sharded plan.
struct UnitPlace {
  size_t index = 0;
  bool first = false;          // of the forward pass
  bool last_backward = false;  // its backward pass is the last
};

void gathers_of(const ShardPlan& shards, const UnitPlace& at, const UnitShard& space,
                const CostOptions& options, const RankGroup& group, std::vector<Exchange>& out) {
  Exchange gather{
      "params",       CollectiveKind::kAllGather, space.numel * size_of(space.dtype), group, 1,
      Pass::kForward, at.index != 0 && !at.first};
  if (at.index != 0 && options.reshard != Reshard::kAfterOptimizerStep) {
    gather.times = options.micro_batches;
  }
  out.push_back(gather);
  const bool again = at.index != 0 && options.reshard == Reshard::kAfterForward &&
                     shards.units[at.index].backward && at.index + 1 != shards.units.size();
  if (!again) return;
  gather.pass = Pass::kBackward;
  gather.hidden = true;
  out.push_back(gather);
}

void sharded_exchanges(const BucketPlan& plan, const CostOptions& options, int64_t node_size,
                       std::vector<Exchange>& out) {
  const int64_t world = plan.options.world_size, shard = shard_ranks(plan, options);
  const RankGroup group = whole_group(shard, node_size);
  // Ranks with the same part: one for each shard group, neighbours in a node where several fit.
  const int64_t copies = world / shard;
  const RankGroup replicas{copies, std::min(copies, std::max<int64_t>(1, node_size / shard))};
  const c10::ScalarType sum = plan.options.reduce_dtype;
  const ShardPlan shards = plan_shards(plan.params, shard);
  size_t last_backward = 0;
  for (size_t u = shards.units.size(); u-- > 1;) {
    if (shards.units[u].backward) last_backward = u;
  }
  for (size_t u = 0; u < shards.units.size(); ++u) {
    const UnitPlace at{u, u == 1, u == last_backward};
    for (const int64_t s : shards.units[u].spaces) {
      const UnitShard& space = shards.spaces[static_cast<size_t>(s)];
      gathers_of(shards, at, space, options, group, out);
      if (!space.trainable) continue;
      const bool hidden = !space.external && u != 0 && !at.last_backward;
      if (exchanges_rows(shards, space)) {
        row_exchanges(shards.params[static_cast<size_t>(space.slots.front().param)], group, out);
      } else {
        const bool narrow = options.widened && sums_are_wider(space, sum);
        out.push_back({"grad", CollectiveKind::kReduceScatter,
                       space.numel * size_of(narrow ? space.grad_dtype : sum), group,
                       space.external ? 1 : options.micro_batches, Pass::kBackward, hidden});
      }
      if (copies == 1) continue;
      out.push_back({"grad replicas", CollectiveKind::kAllReduce,
                     space.numel / shard * size_of(sum), replicas, 1, Pass::kBackward, hidden});
    }
  }
}

// Gradients of `numel` elements that autograd makes anew in every micro-batch, collected as `own`
// and sent as `wire`. One GPU adds up too: read both, write one.
int64_t collected_bytes(int64_t numel, int64_t grad, int64_t own, int64_t wire,
                        int64_t micro_batches) {
  int64_t bytes = grad + own + (micro_batches - 1) * 2 * (own - grad);
  if (own != wire) bytes += own + wire;
  return numel * bytes;
}

int64_t replicated_conversion(const BucketPlan& plan, const CostOptions& options) {
  const int64_t wire = size_of(plan.options.reduce_dtype);
  int64_t sum = 0;
  for (const Bucket& bucket : plan.buckets) {
    const int64_t grad = size_of(bucket.grad_dtype);
    // Nearly all of what is sent as it is has been written there.
    if (exchanges_rows(plan, bucket) || (options.widened && sums_are_wider(plan, bucket))) continue;
    if (bucket.external || options.gradients_stay) {
      // There and, as means, back, where they are not sent from where they are.
      const int64_t trips = options.strategy == Strategy::kDdp && bucket.external ? 2 : 1;
      if (grad != wire) sum += trips * bucket.numel * (grad + wire);
      continue;
    }
    sum += collected_bytes(bucket.numel, grad, std::max(grad, wire), wire, options.micro_batches);
  }
  return sum;
}

int64_t sharded_conversion(const BucketPlan& plan, const CostOptions& options) {
  const int64_t shard = shard_ranks(plan, options), wire = size_of(plan.options.reduce_dtype);
  int64_t sum = 0;
  const ShardPlan shards = plan_shards(plan.params, shard);
  for (const UnitShard& space : shards.spaces) {
    if (!space.trainable || exchanges_rows(shards, space)) continue;
    if (options.widened && sums_are_wider(space, plan.options.reduce_dtype)) continue;
    const int64_t grad = size_of(space.grad_dtype), part = space.numel / shard;
    if (space.external) {
      if (grad != wire) sum += space.numel * (grad + wire);
      sum += part * (wire + kWide);
      continue;
    }
    sum += space.numel *
           (options.micro_batches * (grad + wire) - (options.micro_batches - 1) * 3 * grad);
    // The means, added up in fp32.
    sum += part * (wire + kWide + (options.micro_batches - 1) * (wire + 2 * kWide));
  }
  return sum;
}

void check_positive(double value, const char* name) {
  LS_CHECK(std::isfinite(value) && value > 0, ConfigError,
           "scaling model: {} of {}; give more than 0", name, value);
}

void check(const ScalingConstants& c) {
  check_positive(c.nvlink_gb_s, "an NVLink bandwidth");
  check_positive(c.peer_gb_s, "a bandwidth of copy engines");
  check_positive(c.network_gb_s, "a network bandwidth");
  check_positive(c.network_reached, "a reached share of the network");
  check_positive(c.convert_tb_s, "a memory bandwidth of conversions");
  check_positive(c.update_tb_s, "a memory bandwidth of the update");
}

}  // namespace

RankGroup whole_group(int64_t world_size, int64_t node_size) {
  LS_CHECK(world_size >= 1 && node_size >= 1, ConfigError, "{} GPUs, {} a node; at least 1",
           world_size, node_size);
  if (world_size <= node_size) return {world_size, world_size};
  LS_CHECK(world_size % node_size == 0, ConfigError,
           "{} GPUs do not fill nodes of {}; give a multiple, or another size of a node",
           world_size, node_size);
  return {world_size, node_size};
}

double collective_ms(CollectiveKind kind, int64_t num_bytes, const RankGroup& group,
                     const ScalingConstants& constants) {
  return moving_ms(kind, ring_bytes(kind, group.ranks, num_bytes), group, constants);
}

std::vector<Exchange> exchanges(const BucketPlan& plan, const CostOptions& options,
                                int64_t node_size) {
  std::vector<Exchange> out;
  const RankGroup world = whole_group(plan.options.world_size, node_size);
  if (alone(plan, options)) return out;
  if (!sharded(options)) {
    replicated_exchanges(plan, options, world, out);
    if (options.strategy == Strategy::kDdp) return out;
  } else {
    sharded_exchanges(plan, options, node_size, out);
  }
  const RankGroup summed = whole_group(shard_ranks(plan, options), node_size);
  out.push_back({"norm", CollectiveKind::kAllReduce, 8, summed, 1, Pass::kBackward, false});
  return out;
}

int64_t conversion_bytes(const BucketPlan& plan, const CostOptions& options) {
  if (alone(plan, options)) return 0;
  return sharded(options) ? sharded_conversion(plan, options)
                          : replicated_conversion(plan, options);
}

int64_t update_bytes(const BucketPlan& plan, const CostOptions& options) {
  const bool one = alone(plan, options);
  const bool divided = !one && options.strategy != Strategy::kDdp;
  const int64_t wire = size_of(plan.options.reduce_dtype);
  int64_t sum = 0;
  for (const ParamSpec& p : plan.params) {
    if (p.source == GradSource::kNone) continue;
    if (p.source == GradSource::kExternal && !divided) continue;
    const bool own = one || options.gradients_stay;
    int64_t grad = own ? size_of(p.gradient_dtype()) : wire;
    if (!one && sharded(options)) grad = kWide;  // means
    const int64_t weights = size_of(p.dtype);
    const int64_t masters = p.dtype == c10::ScalarType::Float ? weights : 2 * kWide;
    sum += p.numel * (2 * grad + 4 * kWide + masters + weights);
  }
  return divided ? sum / shard_ranks(plan, options) : sum;
}

StepForecast forecast(const StepWork& work, const std::vector<Exchange>& all,
                      const ScalingConstants& constants) {
  StepForecast out;
  out.compute_ms = work.compute_ms;
  out.conversion_ms = 1e-9 * static_cast<double>(work.conversion_bytes) / constants.convert_tb_s;
  out.update_ms = 1e-9 * static_cast<double>(work.update_bytes) / constants.update_tb_s;
  const double passes =
      work.compute_ms / static_cast<double>(work.every_pass ? 1 : work.micro_batches);
  const std::array<double, 2> room = {constants.forward_share * passes,
                                      (1 - constants.forward_share) * passes};
  std::array<double, 2> behind_ms = {}, slowed_ms = {};
  for (const Exchange& e : all) {
    const auto times = static_cast<double>(e.times);
    const double ms = times * moving_ms(e.kind, e.wire_bytes(), e.group, constants);
    out.communication_ms += ms;
    if (!e.hidden) {
      out.exposed_ms += ms;
      continue;
    }
    const auto pass = static_cast<size_t>(e.pass);
    behind_ms[pass] += ms;
    const bool peer = over_copy_engines(e.group, constants);
    const double gigabytes = 1e-9 * static_cast<double>(e.wire_bytes());
    slowed_ms[pass] += times * (peer ? gigabytes * constants.peer_slowdown_ms_per_gb +
                                           constants.peer_slowdown_ms_per_collective
                                     : gigabytes * constants.slowdown_ms_per_gb);
  }
  for (size_t pass = 0; pass < room.size(); ++pass) {
    if (behind_ms[pass] <= 0) continue;
    const double hidden = std::min(behind_ms[pass], room[pass]);
    out.exposed_ms += behind_ms[pass] - hidden;
    out.slowdown_ms += slowed_ms[pass] * hidden / behind_ms[pass];
  }
  return out;
}

StepForecast predict_step(const BucketPlan& plan, const CostOptions& options, int64_t node_size,
                          double compute_ms, const ScalingConstants& constants) {
  check_positive(compute_ms, "a step of one GPU (ms)");
  check(constants);
  StepWork work;
  work.compute_ms = compute_ms;
  work.micro_batches = options.micro_batches;
  work.every_pass = sharded(options);
  work.conversion_bytes = conversion_bytes(plan, options);
  if (!alone(plan, options)) {
    CostOptions one = options;
    one.strategy = Strategy::kNone;
    work.update_bytes = update_bytes(plan, options) - update_bytes(plan, one);
  }
  return forecast(work, exchanges(plan, options, node_size), constants);
}

}  // namespace longship::dist
