#pragma once
// Weights of FSDP units: the rank's part of each, and the whole while a unit is gathered.
//
// Every flat space has a shard, [numel / shard_size], which stays, and a whole, [numel], whose
// memory comes and goes. The parameters are views of the whole. The whole's storage object is the
// same all the time; gathering gives it memory, releasing takes it away, without touching the
// parameters' version counters, so that tensors saved for the backward pass (they alias the
// parameters) stay valid: by the time they are read their unit is gathered again.
//
// Memory is allocated once: a buffer for the root, and either one for each unit or two that all
// units share, as large as the largest. Nothing goes back to the allocator, so streams that still
// use a buffer are no trouble: a gather begins after all work enqueued on the current stream, which
// read what the buffer held before.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/ddp.h"
#include "dist/plan.h"

namespace longship::dist {

class ShardedWeights {
 public:
  /// Fills the shards from the parameters (zeros where these have no memory) and makes the
  /// parameters views. `plan` must outlive this object. With a group of one the shard is the whole,
  /// everything is always gathered, and no call does anything.
  ShardedWeights(Communicator& shard_group, const ShardPlan& plan,
                 const std::vector<ReducedParam>& params, bool share_buffers);
  /// Waits for gathers under way.
  ~ShardedWeights();

  /// Whether begin_gather() has a buffer for it.
  bool can_gather(int64_t unit) const;
  /// Begins to gather a unit ("params") unless it is gathered or on the way. Throws InternalError
  /// naming the units that hold the buffers when there is none.
  void begin_gather(int64_t unit);
  /// The unit's parameters hold their values, on CUDA for work on the current stream.
  void wait(int64_t unit);
  void release(int64_t unit);
  /// The shards have new values: nothing is gathered any more.
  void forget();

  /// The rank's part of a space, 1-D.
  const at::Tensor& shard(int64_t space) const { return of(space).shard; }
  /// Every parameter whole, space by space ("params export"); the tensor lives during the call.
  /// Collective.
  void visit_whole(const std::function<void(int64_t param, const at::Tensor& whole)>& visit) const;

  int64_t shard_bytes() const;   // of all spaces
  int64_t buffer_bytes() const;  // for gathered weights

 private:
  struct Space {
    at::Tensor shard;
    at::Tensor whole;
    std::vector<std::vector<int64_t>> shapes;  // by slot
  };
  struct Unit {
    std::vector<Handle> gathers;
    bool gathered = false;  // or on the way
    int64_t buffer = -1;    // index; with buffers of its own always the same
  };
  struct Buffer {
    at::Tensor bytes;  // uint8
    int64_t holder = -1;
  };
  const Space& of(int64_t space) const { return spaces_[static_cast<size_t>(space)]; }
  void fill_shard(const UnitShard& plan, Space& space, const std::vector<ReducedParam>& params);
  void make_views(const UnitShard& plan, const Space& space,
                  const std::vector<ReducedParam>& params);
  void make_buffers(at::Device device);
  int64_t free_buffer() const;  // -1: none
  void attach(int64_t unit, int64_t buffer);
  void detach(int64_t unit);

  Communicator& group_;
  const ShardPlan& plan_;
  bool share_, alone_;
  std::vector<Space> spaces_;
  std::vector<Unit> units_;
  std::vector<Buffer> buffers_;  // the root's first
};

}  // namespace longship::dist
