#pragma once
// Gradients of FSDP units: collected in a flat buffer as they come, averaged over the ranks unit by
// unit while the backward pass goes on, added up in fp32 over the micro-batches.
//
// A gradient that autograd hands over goes into the unit's wire buffer, so whole gradients exist
// for one unit at a time; where the types are those of the weights, the products of a unit
// write there themselves (ops/gradient_place.h). The root has a wire buffer of its own, because it
// collects during the whole backward pass; the others take turns with two, so that one is sent
// while the next fills. Where a step has one pass and the group widens, narrow gradients are sent
// as they are and added up in the wider type. External gradients stay whole on every rank over all
// micro-batches and are averaged once a step; of a table that exchanges rows only these move
// (row_exchange.h). With one rank alone there is nothing to send: gradients are views of flat
// tensors, as in ddp.h.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/ddp.h"
#include "dist/plan.h"
#include "ops/gradient_place.h"

namespace longship::dist {

class ShardedGrads {
 public:
  /// `replicas` (HSDP): the ranks that hold the same shards, null: this one only. `plan` must
  /// outlive this object.
  ShardedGrads(Communicator& shard_group, Communicator* replicas, const ShardPlan& plan,
               std::vector<ReducedParam> params, at::ScalarType reduce_dtype, bool single_pass);
  ~ShardedGrads();

  void begin_step();
  void begin_micro_batch();
  /// Before the backward pass of a unit, whose weights are in place: offers their gradients', until
  /// those of the next unit or the end of the pass. Not the root's, whose products run between the
  /// units.
  void offer_places(int64_t unit);
  void withdraw_places() { offers_.withdraw(); }
  /// The gradient in param.grad is complete for this micro-batch. Throws InternalError for one that
  /// the plan excludes or that comes twice.
  void arrived(int64_t param);
  bool all_arrived(int64_t unit) const { return of(unit).missing == 0; }
  bool expects(int64_t unit) const { return of(unit).expected > 0; }
  /// Names of the gradients that a unit still waits for, for messages.
  std::string missing(int64_t unit) const;
  /// Averages what has arrived over the shard group ("grad"), zeros for what has not; in the last
  /// micro-batch of a step over the replicas too ("grad replicas").
  void reduce(int64_t unit, bool last);
  /// External gradients; once a step, after the last backward pass.
  void reduce_external();
  /// The means are complete (on CUDA: for work on the current stream).
  void finish();

  /// After finish(): the mean of the rank's part of a trainable space, 1-D; fp32, alone in the
  /// gradients' dtype.
  const at::Tensor& mean(int64_t space) const { return spaces_[static_cast<size_t>(space)].mean; }
  /// Whether narrow gradients are sent as they are.
  bool widens() const { return widens_; }
  int64_t gradient_bytes() const;
  int64_t buffer_bytes() const;

 private:
  struct Space {
    at::Tensor mean;                    // fp32, the rank's part; alone: whole, the gradients' dtype
    at::Tensor external;                // whole, the gradients' dtype
    at::Tensor wire;                    // external: what is sent
    std::unique_ptr<RowExchange> rows;  // moves lists of the table's rows in place of `wire`
    at::Tensor
        replicated;  // mean in the wire's dtype, where that is not fp32 and there are replicas
    at::ScalarType wire_type = at::kFloat;  // not external
    int64_t wire_offset = 0;                // bytes
    Handle scatter, replicate;
  };
  struct Unit {
    int64_t expected = 0, missing = 0;  // gradients of one backward pass
    int64_t wire_bytes = 0;
    // Gradients that lie elsewhere, and where they belong.
    std::vector<at::Tensor> apart, places;
    int64_t buffer = -1;        // while it collects or sends
    bool sending = false;       // reduce-scatters under way
    bool last = false;          // of them, in the last micro-batch
    int64_t micro_batches = 0;  // that are in the means
  };
  struct Buffer {
    at::Tensor flat;  // bytes
    int64_t holder = -1;
  };
  const Unit& of(int64_t unit) const { return units_[static_cast<size_t>(unit)]; }
  Unit& of(int64_t unit) { return units_[static_cast<size_t>(unit)]; }
  template <class Function>
  void for_each_reduced(int64_t unit, Function&& function);
  void make_space(const UnitShard& plan);
  void make_external(Space& space, const UnitShard& plan);
  void make_buffers();
  void share_buffers();
  void install_views();
  at::Tensor wire_of(int64_t unit, const Space& space, const UnitShard& plan) const;
  at::Tensor place_of(int64_t param) const;
  void take_buffer(int64_t unit);
  void finish_scatter(int64_t unit);
  void add_mean(Space& space, const at::Tensor& wire, bool first);
  void clear_rows(const Space& space) const;
  static void copy_apart(Unit& unit);
  void begin_replicate(Space& space, const std::string& detail);

  Communicator& group_;
  Communicator* replicas_;
  const ShardPlan& plan_;
  std::vector<ReducedParam> params_;
  at::ScalarType wire_dtype_;
  bool alone_, widens_;
  int64_t num_passes_ = 0;  // begun in this step
  std::vector<Space> spaces_;
  std::vector<Unit> units_;
  std::vector<Buffer> buffers_;  // the root's, then those that take turns
  ops::GradientPlaces offers_;
  int64_t turn_ = 0;
  std::vector<char> ready_;         // by parameter, in this micro-batch
  std::vector<int64_t> offset_of_;  // by parameter, in its space
};

}  // namespace longship::dist
