#pragma once
// Tables of pictures that batches share: a robot's cameras keep their sizes, so nearly all batches
// of a run have the same grids.

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>

#include "models/groot/layout.h"

namespace longship::models {

/// Of one model: its sizes belong to no key. Bounded; what was not asked for longest goes first.
/// Thread-safe.
class GrootGridCache {
 public:
  struct Limits {
    size_t entries = 32;
    int64_t bytes = int64_t{256} << 20;  // 32 batches of 64 samples of N1.6 have 100 MB
  };
  struct Counters {
    int64_t hits = 0, misses = 0;
    size_t entries = 0;
    int64_t bytes = 0;
  };

  /// `pin`: kept tensors are in pinned memory, so that pinning a batch leaves them as they are.
  explicit GrootGridCache(bool pin);
  GrootGridCache(bool pin, Limits limits);

  /// The tables of `grids`; what `make` returns where there are none. Their tensors are shared with
  /// whoever asked before, and must not be written into. Threads that miss at the same time all
  /// make them, and get those of the first.
  GrootPictureTables get(const GrootGrids& grids, const std::function<GrootPictureTables()>& make);
  Counters counters() const;

 private:
  struct Entry {
    GrootPictureTables tables;
    int64_t bytes = 0;
    std::list<const GrootGrids*>::iterator place;
  };
  void make_room();

  bool pin_;
  Limits limits_;
  mutable std::mutex mutex_;
  std::map<GrootGrids, Entry> entries_;
  std::list<const GrootGrids*> order_;  // keys of entries_, last used in front
  Counters counters_;
};

}  // namespace longship::models
