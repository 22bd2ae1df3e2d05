#pragma once
// FSDP and HSDP: every rank of a shard group keeps an even part of all weights, gradients, masters
// and moments; the weights of one unit of the model are gathered just before it runs.
//
//   std::vector<ParamSpec> specs = ...;             // in order of use, ParamInfo::unit in them
//   keep_stacks_together(specs, module.stacks());   // `params` in the same order
//   Fsdp fsdp({shard_group, replica_group}, specs, params, {.reshard = Reshard::kAfterForward});
//   policy.attach(fsdp.hooks());                    // the model runs its units through nn/unit.h
//   auto optimizer = make_my_optimizer(fsdp.slices(), fsdp.gradless_slices());
//   for each step:
//     fsdp.begin_step();
//     for each micro-batch m:
//       fsdp.begin_micro_batch(m + 1 == count);
//       (loss / count).backward();
//     fsdp.finish();                                // slices' gradients are means over the ranks
//     double norm = fsdp.grad_norm(*optimizer);     // the same bits on every rank
//     if (std::isfinite(norm)) fsdp.update(*optimizer, lr, norm);
//   policy.attach(nullptr);
//
// A model of which no rank can hold all is built with BuildOptions::allocate = false (on its real
// device, without memory); load() or fill() then set the shards tensor by tensor:
//   policy.load_weights(path, [&](const std::string& name, const at::Tensor& value) {
//     fsdp.fill(name, value, masters);
//   });
//
// Ownership. Fsdp owns all memory: shards, the buffers of gathered weights, gradients. The model's
// parameters stay the same tensor objects and become views of the gathered weights: outside of a
// pass they must not be read (visit_whole() gives them). The optimizer owns masters, moments and
// averages of the slices; with bf16 weights the shards are its fp32 masters, rounded. The hooks of
// autograd on the parameters are removed with Fsdp, which must outlive every pass begun under it.
//
// What is gathered when. The root (parameters read outside the units) from the first micro-batch of
// a step to its end. Any other unit around its forward pass and around its backward pass, the next
// one on the way meanwhile; Reshard says what is kept in between. The forward pass of a recomputed
// unit runs again inside its backward pass and needs no gather of its own. Units that run without
// gradients (sampling) are gathered when they are entered.
//
// Order. Collectives are those of the plan, in its order, on every rank: a unit that a rank's batch
// does not reach is gathered there too, and its gradients are zeros. Units must therefore run in
// the order of the plan, each at most once a forward pass, and backward in the reverse order;
// InternalError otherwise. Passes without gradients have no such order: all ranks must run the same
// units.
//
// External gradients (GradSource::kExternal, a token table's rows) stay whole on every rank, where
// the backward pass adds to them, and are averaged once a step; of a table that exchanges rows only
// these move. The optimizer sees a dense slice, in which untouched rows are zeros.
//
// One rank alone: no hooks (hooks() is null), no copies; the shards are the weights and gradients
// are views of flat tensors. Replicas (HSDP) hold the same shards; they average gradients once a
// step.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dist/communicator.h"
#include "dist/ddp.h"
#include "dist/plan.h"
#include "dist/shard_optimizer.h"
#include "dist/sharded_grads.h"
#include "dist/sharded_weights.h"
#include "nn/unit.h"

namespace longship::dist {

struct FsdpGroups {
  Communicator& shard;               // ranks that make one copy together
  Communicator* replicas = nullptr;  // HSDP: ranks with the same part of their copies; null or one
                                     // rank: there is one copy
};

struct FsdpOptions {
  Reshard reshard = Reshard::kAfterForward;
  at::ScalarType reduce_dtype = at::kFloat;  // of gradients on the wire: fp32 or bf16
  bool prefetch = true;                      // gather the next unit while one is at work
  bool single_pass = false;  // every step has one micro-batch: where the group widens, gradients
                             // are sent in their own dtype and added up in reduce_dtype
};

class Fsdp final : private nn::UnitHooks {
 public:
  /// `params` belong to `specs` one by one. Takes over their values; those of rank 0 of every group
  /// of replicas must be the same (broadcast_from_first() or load() make sure). Throws ConfigError
  /// like plan_shards() and for a shard group of one with replicas (that is ddp), InternalError
  /// naming the parameter when a tensor does not fit its spec.
  Fsdp(const FsdpGroups& groups, std::vector<ParamSpec> specs, std::vector<ReducedParam> params,
       const FsdpOptions& options);
  ~Fsdp() override;
  Fsdp(const Fsdp&) = delete;
  Fsdp& operator=(const Fsdp&) = delete;

  /// For the model; null when one rank is alone and has nothing to watch.
  nn::UnitHooks* hooks() { return alone_ ? nullptr : this; }

  /// Gradients of the step = 0.
  void begin_step();
  /// Before each forward pass that is followed by a backward pass.
  void begin_micro_batch(bool last);
  /// After the last backward pass. Throws InternalError naming units and parameters whose gradient
  /// never came, PeerError when a peer is lost.
  void finish();

  /// What this rank updates, in plan order.
  std::span<const ShardSlice> slices() const { return slices_; }
  /// The rank's parts of parameters without gradient; `grad` is undefined. A decay-only parameter
  /// is updated here.
  std::span<const ShardSlice> gradless_slices() const { return gradless_; }

  /// Norm of all gradients, by one all-reduce ("norm") in the shard group. After finish().
  double grad_norm(ShardOptimizer& optimizer);
  /// Updates this rank's part.
  void update(ShardOptimizer& optimizer, double lr, double norm);
  /// For callers that changed slices themselves: what is gathered is out of date.
  void weights_changed() { weights_.forget(); }

  /// The name of a parameter -> its values, whole, any float dtype, on any device.
  using WholeTensor = std::function<at::Tensor(const std::string& name)>;
  /// Gets every slice that was filled, with its values in fp32 before they were rounded, [end -
  /// begin] on the parameters' device: for the optimizer's masters.
  using SliceSink = std::function<void(const ShardSlice& slice, const at::Tensor& values)>;
  /// Fills the shards unit by unit. Asks only for parameters of which this rank has a part, one
  /// tensor at a time. Throws ShapeError naming the parameter.
  void load(const WholeTensor& whole, const SliceSink& sink = {});
  /// The same of one parameter, for sources that bring them one after another (Policy::initialise
  /// and Policy::load_weights through their sink). Keeps nothing where this rank has no part.
  void fill(const std::string& name, const at::Tensor& whole, const SliceSink& sink = {});

  /// Every parameter whole in the weights' dtype, one flat space at a time; the tensor lives during
  /// the call. Collective; not during a step.
  void visit_whole(const std::function<void(const ParamSpec&, const at::Tensor& whole)>& visit);

  const ShardPlan& plan() const { return plan_; }
  /// Whether gradients are sent as they are and added up in the wider type (single_pass).
  bool widens() const { return grads_.widens(); }
  /// Bytes held: shards; gathered weights; gradients; wire buffers.
  int64_t shard_bytes() const { return weights_.shard_bytes(); }
  int64_t gathered_bytes() const { return weights_.buffer_bytes(); }
  int64_t gradient_bytes() const { return grads_.gradient_bytes(); }
  int64_t buffer_bytes() const { return grads_.buffer_bytes(); }

 private:
  class Hook;
  /// Of a unit in this micro-batch.
  struct Pass {
    bool ran = false;          // forward, on this rank
    bool begun = false;        // backward
    bool inputs_done = false;  // no gradient of an input is still to come
    bool done = false;         // backward
  };

  void before_forward(std::string_view unit) override;
  void after_forward(std::string_view unit, bool needs_backward, bool inputs_need_grad) override;
  void before_backward(std::string_view unit) override;
  void after_backward(std::string_view unit) override;

  void make_slices();
  void fill_slice(const ShardSlice& slice, const at::Tensor& whole, const SliceSink& sink);
  int64_t find(std::string_view unit) const;
  const std::string& name(int64_t unit) const {
    return plan_.units[static_cast<size_t>(unit)].name;
  }
  bool in_backward(int64_t unit) const { return plan_.units[static_cast<size_t>(unit)].backward; }
  Pass& pass(int64_t unit) { return passes_[static_cast<size_t>(unit)]; }
  int64_t last_unit() const { return static_cast<int64_t>(plan_.units.size()) - 1; }

  void prefetch(int64_t unit);
  void enter_forward(int64_t unit);
  void leave_forward(int64_t unit);
  void finish_forward();
  void enter_backward(int64_t unit);
  void leave_backward(int64_t unit);
  void pass_backward(int64_t down_to);
  void gradient_ready(int64_t param);
  void end_if_complete(int64_t unit);
  void end_micro_batch();

  Communicator& shard_group_;
  FsdpOptions options_;
  ShardPlan plan_;
  std::vector<ReducedParam> params_;
  bool alone_;
  ShardedWeights weights_;
  ShardedGrads grads_;
  std::vector<ShardSlice> slices_, gradless_;

  // State of the micro-batch. Passes run one after another, on whichever thread.
  bool training_ = false;      // between begin_micro_batch() and its end
  bool last_ = false;          // micro-batch of the step
  int64_t forward_next_ = 1;   // first unit that has not run
  int64_t backward_next_ = 0;  // last unit whose backward pass is not over
  std::vector<Pass> passes_;
};

}  // namespace longship::dist
