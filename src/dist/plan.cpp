#include "dist/plan.h"

#include <c10/core/ScalarType.h>
#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.h"
#include "nn/unit.h"

namespace longship::dist {
namespace {

constexpr int64_t kAlignBytes = 16;

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

int64_t size_of(c10::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

bool is_float(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Float || dtype == c10::ScalarType::BFloat16;
}

void check_params(const std::vector<ParamSpec>& params) {
  std::set<std::string> names;
  for (const ParamSpec& p : params) {
    LS_CHECK(p.numel > 0, ConfigError, "parallel plan: parameter '{}' has {} elements", p.name,
             p.numel);
    LS_CHECK(names.insert(p.name).second, ConfigError,
             "parallel plan: parameter '{}' is listed twice", p.name);
    LS_CHECK(p.source == GradSource::kNone || (is_float(p.dtype) && is_float(p.gradient_dtype())),
             ConfigError, "parallel plan: parameter '{}' is {} with gradients of {}; fp32 or bf16",
             p.name, c10::toString(p.dtype), c10::toString(p.gradient_dtype()));
    LS_CHECK(p.touched_rows == 0 ||
                 (p.touched_rows > 0 && p.row_length > 0 && p.numel % p.row_length == 0),
             ConfigError,
             "parallel plan: parameter '{}' of {} elements has rows of {} and touches {} of them",
             p.name, p.numel, p.row_length, p.touched_rows);
  }
}

// Appends a slot at the next aligned offset. Both dtypes of a bucket share the offsets, so the
// coarser alignment counts.
void append(std::vector<BucketSlot>& slots, int64_t& numel, int64_t param, int64_t count,
            int64_t align) {
  const int64_t offset = round_up(numel, align);
  slots.push_back({param, offset, count});
  numel = offset + count;
}

// The parameters of one kind in reverse order of use; those of a stack at the place of its last
// member, ascending.
std::vector<std::vector<int64_t>> placed_together(const std::vector<ParamSpec>& params,
                                                  bool external) {
  using Key = std::tuple<int64_t, c10::ScalarType, c10::ScalarType>;
  std::vector<std::vector<int64_t>> out;
  std::map<Key, size_t> stacks;
  for (int64_t i = static_cast<int64_t>(params.size()) - 1; i >= 0; --i) {
    const ParamSpec& p = params[static_cast<size_t>(i)];
    if (p.source == GradSource::kNone || (p.source == GradSource::kExternal) != external) continue;
    if (p.stack >= 0) {
      const auto [found, fresh] =
          stacks.try_emplace(Key(p.stack, p.dtype, p.gradient_dtype()), out.size());
      if (!fresh) {
        out[found->second].insert(out[found->second].begin(), i);
        continue;
      }
    }
    out.push_back({i});
  }
  return out;
}

int64_t bucket_alignment(const Bucket& bucket) {
  return std::max(alignment_elements(bucket.dtype), alignment_elements(bucket.grad_dtype));
}

int64_t unit_alignment(const UnitShard& unit) {
  return std::max(alignment_elements(unit.dtype), alignment_elements(unit.grad_dtype));
}

}  // namespace

int64_t alignment_elements(c10::ScalarType dtype) {
  return kAlignBytes / size_of(dtype);
}

int64_t Bucket::payload() const {
  int64_t sum = 0;
  for (const BucketSlot& slot : slots) sum += slot.numel;
  return sum;
}

bool BucketPlan::operator==(const BucketPlan& other) const {
  return params == other.params && buckets == other.buckets && bucket_index == other.bucket_index;
}

bool exchanges_rows(const ParamSpec& spec, int64_t world_size) {
  if (world_size == 1 || spec.source != GradSource::kExternal || spec.touched_rows == 0)
    return false;
  return 2 * world_size * spec.touched_rows <= spec.numel / spec.row_length;
}

bool exchanges_rows(const BucketPlan& plan, const Bucket& bucket) {
  const auto& first = plan.params[static_cast<size_t>(bucket.slots.front().param)];
  return exchanges_rows(first, plan.options.world_size);
}

bool sums_are_wider(const BucketPlan& plan, const Bucket& bucket) {
  return plan.options.world_size > 1 && !bucket.external &&
         bucket.grad_dtype == c10::ScalarType::BFloat16 &&
         plan.options.reduce_dtype == c10::ScalarType::Float;
}

bool exchanges_rows(const ShardPlan& plan, const UnitShard& space) {
  const auto& first = plan.params[static_cast<size_t>(space.slots.front().param)];
  return space.slots.size() == 1 && exchanges_rows(first, plan.shard_size);
}

bool sums_are_wider(const UnitShard& space, c10::ScalarType reduce_dtype) {
  return !space.external && space.grad_dtype == c10::ScalarType::BFloat16 &&
         reduce_dtype == c10::ScalarType::Float;
}

RowListBytes row_list_bytes(const ParamSpec& spec) {
  return {spec.touched_rows * spec.row_length * size_of(spec.gradient_dtype()),
          (spec.touched_rows + 1) * size_of(c10::ScalarType::Int)};
}

BucketPlan plan_buckets(std::vector<ParamSpec> params, const PlanOptions& options) {
  LS_CHECK(options.world_size >= 1, ConfigError, "parallel plan: {} ranks", options.world_size);
  LS_CHECK(options.bucket_bytes >= 1 && options.first_bucket_bytes >= 1, ConfigError,
           "parallel plan: a bucket of {} and {} bytes; at least 1", options.first_bucket_bytes,
           options.bucket_bytes);
  LS_CHECK(is_float(options.reduce_dtype), ConfigError,
           "parallel.reduce_dtype: {} is neither fp32 nor bf16",
           c10::toString(options.reduce_dtype));
  check_params(params);
  BucketPlan plan;
  plan.options = options;
  plan.params = std::move(params);
  plan.bucket_index.assign(plan.params.size(), -1);

  const auto fill = [&](bool external) {
    // One open bucket for each pair of dtypes, so that models that mix dtypes layer by layer do not
    // get a bucket a layer. A bucket takes its place in the order when it is closed.
    std::map<std::pair<c10::ScalarType, c10::ScalarType>, Bucket> open;
    const auto close = [&](Bucket& bucket) {
      if (bucket.slots.empty()) return;
      bucket.numel = round_up(bucket.numel, bucket_alignment(bucket) * options.world_size);
      for (const BucketSlot& slot : bucket.slots) {
        plan.bucket_index[static_cast<size_t>(slot.param)] =
            static_cast<int64_t>(plan.buckets.size());
      }
      plan.buckets.push_back(std::move(bucket));
      bucket = Bucket{};
    };
    std::vector<std::pair<c10::ScalarType, c10::ScalarType>> order;  // of the last use
    for (const std::vector<int64_t>& members : placed_together(plan.params, external)) {
      const ParamSpec& p = plan.params[static_cast<size_t>(members.front())];
      const auto key = std::pair(p.dtype, p.gradient_dtype());
      Bucket& bucket = open[key];
      const int64_t bytes = size_of(key.second);
      int64_t numel = 0;
      for (const int64_t i : members) numel += plan.params[static_cast<size_t>(i)].numel;
      const int64_t cap = plan.buckets.empty()
                              ? std::min(options.first_bucket_bytes, options.bucket_bytes)
                              : options.bucket_bytes;
      const bool rows = exchanges_rows(p, options.world_size);
      if (!bucket.slots.empty() && (rows || (bucket.numel + numel) * bytes > cap)) close(bucket);
      bucket.dtype = key.first;
      bucket.grad_dtype = key.second;
      bucket.external = external;
      for (const int64_t i : members) {
        append(bucket.slots, bucket.numel, i, plan.params[static_cast<size_t>(i)].numel,
               i == members.front() ? bucket_alignment(bucket) : 1);
      }
      std::erase(order, key);
      if (rows) {
        close(bucket);
      } else {
        order.push_back(key);
      }
    }
    // The one whose last parameter is used first comes last.
    for (const auto& key : order) close(open[key]);
  };
  fill(/*external=*/false);
  fill(/*external=*/true);
  return plan;
}

std::vector<OwnedSlice> owned_slices(const BucketPlan& plan, int64_t rank) {
  std::vector<OwnedSlice> out;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    const int64_t part = bucket.numel / plan.options.world_size;
    const int64_t begin = rank * part, end = begin + part;
    for (const BucketSlot& slot : bucket.slots) {
      const int64_t from = std::max(begin, slot.offset), to = std::min(end, slot.end());
      if (from >= to) continue;
      out.push_back({slot.param, from - slot.offset, to - slot.offset, static_cast<int64_t>(b),
                     from - begin});
    }
  }
  return out;
}

std::vector<UnitShard> plan_units(const std::vector<ParamSpec>& params, int64_t shard_size) {
  LS_CHECK(shard_size >= 1, ConfigError, "parallel.shard: {} ranks", shard_size);
  check_params(params);
  std::vector<UnitShard> units;
  for (size_t i = 0; i < params.size(); ++i) {
    const ParamSpec& p = params[i];
    const bool trainable = p.source != GradSource::kNone;
    const bool external = p.source == GradSource::kExternal;
    auto found = std::find_if(units.begin(), units.end(), [&](const UnitShard& u) {
      return u.unit == p.unit && u.dtype == p.dtype && u.trainable == trainable &&
             u.external == external && u.grad_dtype == p.gradient_dtype();
    });
    if (found == units.end()) {
      found = units.insert(
          units.end(), UnitShard{p.unit, p.dtype, trainable, external, p.gradient_dtype(), {}, 0});
    }
    const bool behind = p.stack >= 0 && !found->slots.empty() &&
                        params[static_cast<size_t>(found->slots.back().param)].stack == p.stack;
    append(found->slots, found->numel, static_cast<int64_t>(i), p.numel,
           behind ? 1 : unit_alignment(*found));
  }
  for (UnitShard& unit : units) {
    unit.numel = round_up(unit.numel, unit_alignment(unit) * shard_size);
  }
  return units;
}

ShardPlan plan_shards(std::vector<ParamSpec> params, int64_t shard_size) {
  ShardPlan plan;
  plan.shard_size = shard_size;
  plan.spaces = plan_units(params, shard_size);
  plan.units.push_back({std::string(nn::kRootUnit), {}, true, 0});
  plan.unit_of.assign(params.size(), -1);
  plan.space_of.assign(params.size(), -1);
  for (size_t s = 0; s < plan.spaces.size(); ++s) {
    const UnitShard& space = plan.spaces[s];
    const bool unread = space.unit == nn::kUnreadUnit;
    auto found = std::find_if(plan.units.begin(), plan.units.end(),
                              [&](const ShardPlan::Unit& u) { return u.name == space.unit; });
    if (found == plan.units.end() && !unread) {
      const ParamSpec& first = params[static_cast<size_t>(space.slots.front().param)];
      found = plan.units.insert(plan.units.end(), {space.unit, {}, !first.forward_only, 0});
    }
    if (!unread) {
      found->spaces.push_back(static_cast<int64_t>(s));
      found->numel_bytes += space.numel * size_of(space.dtype);
    }
    for (const BucketSlot& slot : space.slots) {
      const size_t p = static_cast<size_t>(slot.param);
      plan.space_of[p] = static_cast<int64_t>(s);
      LS_CHECK(!unread || params[p].source == GradSource::kNone, ConfigError,
               "parallel plan: parameter '{}' has a gradient, but its unit '{}' runs in no pass",
               params[p].name, space.unit);
      if (unread) continue;
      plan.unit_of[p] = found - plan.units.begin();
      LS_CHECK(found->name == nn::kRootUnit || found->backward != params[p].forward_only,
               ConfigError,
               "parallel plan: unit '{}' takes part in the backward pass by some of its "
               "parameters only; '{}' differs from the first",
               found->name, params[p].name);
      LS_CHECK(found->backward || params[p].source == GradSource::kNone, ConfigError,
               "parallel plan: parameter '{}' has a gradient, but its unit '{}' takes no part in "
               "the backward pass",
               params[p].name, found->name);
    }
  }
  plan.params = std::move(params);
  return plan;
}

std::vector<int64_t> keep_stacks_together(std::vector<ParamSpec>& params,
                                          const std::vector<std::vector<std::string>>& stacks) {
  std::map<std::string, int64_t> index;
  for (size_t i = 0; i < params.size(); ++i) index[params[i].name] = static_cast<int64_t>(i);
  std::map<int64_t, std::vector<int64_t>> behind;  // first of a stack -> all of it
  std::set<int64_t> moved;
  int64_t number = 0;
  for (const std::vector<std::string>& stack : stacks) {
    std::map<std::pair<std::string, GradSource>, std::vector<int64_t>> alike;
    for (const std::string& name : stack) {
      const auto at = index.find(name);
      if (at == index.end()) continue;
      const ParamSpec& p = params[static_cast<size_t>(at->second)];
      alike[{p.unit, p.source}].push_back(at->second);
    }
    for (auto& [kind, members] : alike) {
      for (const int64_t i : members) params[static_cast<size_t>(i)].stack = number;
      ++number;
      moved.insert(members.begin(), members.end());
      behind[*std::min_element(members.begin(), members.end())] = std::move(members);
    }
  }
  std::vector<int64_t> order;
  for (int64_t i = 0; i < static_cast<int64_t>(params.size()); ++i) {
    if (const auto at = behind.find(i); at != behind.end()) {
      order.insert(order.end(), at->second.begin(), at->second.end());
    } else if (!moved.contains(i)) {
      order.push_back(i);
    }
  }
  std::vector<ParamSpec> sorted;
  for (const int64_t i : order) sorted.push_back(std::move(params[static_cast<size_t>(i)]));
  params = std::move(sorted);
  return order;
}

}  // namespace longship::dist
