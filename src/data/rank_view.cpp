#include "data/rank_view.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"

namespace longship::data {

RankView::RankView(const ShuffledStream& stream, int64_t rank, int64_t world, SampleCost cost)
    : stream_(stream), rank_(rank), world_(world), cost_(std::move(cost)) {
  LS_CHECK(world >= 1 && rank >= 0 && rank < world, ConfigError, "rank {} of {} ranks", rank,
           world);
  LS_CHECK(stream.global_batch() >= world, ConfigError,
           "train.global_batch is {}, fewer than the {} ranks: some would have nothing to do",
           stream.global_batch(), world);
  LS_CHECK(!cost_ || stream.global_batch() % world == 0, ConfigError,
           "train.global_batch {} must be a multiple of the {} ranks to balance their cost",
           stream.global_batch(), world);
}

std::vector<int64_t> RankView::places(int64_t step) const {
  const int64_t global = stream_.global_batch();
  if (!cost_) {
    const int64_t begin = rank_ * global / world_, end = (rank_ + 1) * global / world_;
    std::vector<int64_t> out(static_cast<size_t>(end - begin));
    std::iota(out.begin(), out.end(), begin);
    return out;
  }
  const std::vector<int64_t> ids = stream_.batch(step);
  std::vector<double> costs;
  for (const int64_t id : ids) costs.push_back(cost_(id));
  return balanced_assignment(costs, world_)[static_cast<size_t>(rank_)];
}

std::vector<int64_t> RankView::batch(int64_t step) const {
  const std::vector<int64_t> ids = stream_.batch(step);
  std::vector<int64_t> out = places(step);
  for (int64_t& place : out) place = ids[static_cast<size_t>(place)];
  return out;
}

std::vector<std::vector<int64_t>> balanced_assignment(std::span<const double> costs,
                                                      int64_t world) {
  LS_CHECK(world >= 1 && costs.size() % static_cast<size_t>(world) == 0, ConfigError,
           "{} samples cannot be shared equally by {} ranks", costs.size(), world);
  const size_t share = costs.size() / static_cast<size_t>(world);
  std::vector<int64_t> by_cost(costs.size());
  std::iota(by_cost.begin(), by_cost.end(), int64_t{0});
  std::stable_sort(by_cost.begin(), by_cost.end(), [&](int64_t a, int64_t b) {
    return costs[static_cast<size_t>(a)] > costs[static_cast<size_t>(b)];
  });
  std::vector<std::vector<int64_t>> out(static_cast<size_t>(world));
  std::vector<double> load(out.size());
  for (const int64_t place : by_cost) {
    size_t best = out.size();
    for (size_t rank = 0; rank < out.size(); ++rank) {
      if (out[rank].size() >= share) continue;
      if (best == out.size() ||
          std::pair(load[rank], out[rank].size()) < std::pair(load[best], out[best].size())) {
        best = rank;
      }
    }
    out[best].push_back(place);
    load[best] += costs[static_cast<size_t>(place)];
  }
  for (std::vector<int64_t>& places : out) std::sort(places.begin(), places.end());
  return out;
}

std::vector<std::vector<int64_t>> balanced_epoch(std::span<const int64_t> order,
                                                 const SampleCost& cost, int64_t world,
                                                 int64_t group) {
  LS_CHECK(!order.empty() && world >= 1 && group >= 1, ConfigError,
           "a balanced epoch of {} samples for {} ranks in groups of {}", order.size(), world,
           group);
  const auto block = static_cast<size_t>(world * group);
  std::vector<std::vector<int64_t>> out(static_cast<size_t>(world));
  for (size_t begin = 0; begin < order.size(); begin += block) {
    std::vector<double> costs;
    for (size_t k = begin; k < begin + block; ++k) costs.push_back(cost(order[k % order.size()]));
    const auto assigned = balanced_assignment(costs, world);
    for (size_t rank = 0; rank < out.size(); ++rank) {
      for (const int64_t place : assigned[rank]) {
        out[rank].push_back(order[(begin + static_cast<size_t>(place)) % order.size()]);
      }
    }
  }
  return out;
}

std::string balanced_sha256(const std::vector<std::vector<int64_t>>& per_rank, int64_t group,
                            int64_t seed, int64_t epoch, int64_t num_samples) {
  const std::string head =
      fmt::format("{}|{}|{}|{}|{}|", per_rank.size(), group, seed, epoch, num_samples);
  Sha256 hash;
  hash.update(head.data(), head.size());
  for (const std::vector<int64_t>& ids : per_rank) {
    hash.update(ids.data(), ids.size() * sizeof(int64_t));
  }
  return hash.hex();
}

}  // namespace longship::data
