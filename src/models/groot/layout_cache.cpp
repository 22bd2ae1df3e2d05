#include "models/groot/layout_cache.h"

namespace longship::models {
namespace {

int64_t bytes_of(GrootPictureTables& tables) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tables.picture_tensors()) {
    bytes += static_cast<int64_t>(tensor->nbytes());
  }
  return bytes;
}

}  // namespace

GrootGridCache::GrootGridCache(bool pin) : GrootGridCache(pin, Limits{}) {}

GrootGridCache::GrootGridCache(bool pin, Limits limits) : pin_(pin), limits_(limits) {}

GrootPictureTables GrootGridCache::get(const GrootGrids& grids,
                                       const std::function<GrootPictureTables()>& make) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = entries_.find(grids); it != entries_.end()) {
      ++counters_.hits;
      order_.splice(order_.begin(), order_, it->second.place);
      return it->second.tables;
    }
    ++counters_.misses;
  }
  GrootPictureTables tables = make();
  const int64_t bytes = bytes_of(tables);
  if (limits_.entries == 0 || bytes > limits_.bytes) return tables;
  if (pin_) {
    for (const auto& [name, tensor] : tables.picture_tensors()) *tensor = tensor->pin_memory();
  }
  const std::lock_guard lock(mutex_);
  const auto [it, is_new] = entries_.try_emplace(grids);
  if (!is_new) return it->second.tables;
  order_.push_front(&it->first);
  it->second = {tables, bytes, order_.begin()};
  counters_.bytes += bytes;
  make_room();
  return tables;
}

void GrootGridCache::make_room() {
  while (entries_.size() > limits_.entries || counters_.bytes > limits_.bytes) {
    const auto oldest = entries_.find(*order_.back());
    counters_.bytes -= oldest->second.bytes;
    order_.pop_back();
    entries_.erase(oldest);
  }
}

GrootGridCache::Counters GrootGridCache::counters() const {
  const std::lock_guard lock(mutex_);
  Counters out = counters_;
  out.entries = entries_.size();
  return out;
}

}  // namespace longship::models
