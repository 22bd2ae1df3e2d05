#pragma once
// How long a training step of many GPUs would take, from a plan, the measured step of one GPU and a
// few constants. Pure functions; nothing here opens a connection or needs a GPU.
//
//   step = compute + conversion + update + slowdown + exposed
//
// compute     the step of one GPU that exchanges nothing. Measured, not predicted.
// conversion  gradients are rounded into the type that is sent: bytes read and written over
//             convert_tb_s.
// update      what clipping and AdamW take more than on one GPU (negative where their work is
//             divided): bytes over update_tb_s.
// slowdown    communication beside the computation takes SMs and memory from it. Measured with two
//             numbers of NCCL blocks (two bandwidths), the loss per byte was the same, not the loss
//             per time: slowdown_ms_per_gb for every GB that is sent beside the computation. For a
//             given bandwidth that is s * time, s = slowdown_ms_per_gb * bandwidth / 1000. Copy
//             engines have constants of their own: one for the bytes, one for each collective.
// exposed     communication with nothing beside it (Exchange::hidden false), and what is longer
//             than the passes that it could hide behind.
//
// Assumptions. Collectives of one step run one after another. The forward pass is forward_share of
// the compute, the backward pass the rest; inside a pass work and bytes are spread evenly, so a
// unit that computes little and weighs much stalls more than this says. All GPUs are equally fast
// and always ready. Nobody else uses the network, and no link of it is shared (full bisection).

#include <cstdint>
#include <string>
#include <vector>

#include "dist/plan.h"

namespace longship::dist {

/// GB: 1e9 bytes. Those of NVLink and of conversions are fitted to steps of two H200
/// (docs/scaling.md).
struct ScalingConstants {
  /// Groups of one node exchange over copy engines (parallel.transport peer, or auto), not by NCCL.
  bool peer = false;
  double peer_gb_s = 283;                         // in place of the next two
  double peer_slowdown_ms_per_gb = 0.9;           // of the computation beside them
  double peer_slowdown_ms_per_collective = 0.09;  // and for each of them, whatever its bytes
  double nvlink_gb_s = 215;  // that a ring inside a node reaches, sent by each GPU, while the
                             // model computes; NVLink multicast off
  double slowdown_ms_per_gb = 2.4;  // of the computation
  double convert_tb_s = 2.2;        // memory traffic of conversions
  double update_tb_s = 3.7;      // of AdamW; measured on one GPU (docs/performance.md), not fitted
  double network_gb_s = 50;      // of the one adapter that each GPU has: 400 Gb/s
  double network_reached = 0.9;  // share of it that NCCL reaches; an assumption
  double forward_share = 1.0 / 3;  // of the compute: the backward pass is twice the forward one
};

/// Ranks of a collective, as many on every node.
struct RankGroup {
  int64_t ranks = 1;
  int64_t per_node = 1;  // of this group
  int64_t nodes() const { return ranks / per_node; }
  bool operator==(const RankGroup&) const = default;
};
/// All ranks. Throws ConfigError where they fill no whole number of nodes.
RankGroup whole_group(int64_t world_size, int64_t node_size);

/// Time of one collective of `num_bytes` (whole tensor, as in ring_bytes()), ms: the least of
/// NCCL's ways,
///   latency + ring_bytes / (bandwidth * efficiency)
/// where the bandwidth of one node is nvlink_gb_s, and of several the least of nvlink_gb_s (left
/// out with one rank a node) and per_node * network_gb_s * network_reached: NCCL makes a ring for
/// every adapter of a node, each crosses to the next node once, so all adapters carry a share of
/// the bytes. Latencies are those of NCCL's own cost model (src/graph/tuning.cc of release 2.20;
/// us): ring with the protocol Simple 8.4 + 3.4 for a step inside a node, 14 for one between nodes;
/// ring with LL128 14 + 1.9, 4.0 (efficiency 0.92); all-reduce as a tree with LL128 14 + 2 * (1.25
/// a rank of a node, 8.5 for each doubling of the nodes) (efficiency 0.73). A ring makes ranks - 1
/// steps, nodes - 1 of them between nodes, an all-reduce twice as many. Left out: NVLink multicast,
/// SHARP, PAT, which NCCL uses where they are there. With `peer`, groups of one node:
///   latency + ring_bytes / peer_gb_s
/// with the latencies of `longship bench collectives` on two H200 (55 us for an all-reduce, 35 for
/// a reduce-scatter, 22 for a gather); that more ranks of a node take no longer is an assumption.
/// One rank: 0.
double collective_ms(CollectiveKind kind, int64_t num_bytes, const RankGroup& group,
                     const ScalingConstants& constants);

enum class Pass { kForward, kBackward };

/// A collective that a step makes `times` times.
struct Exchange {
  std::string name;  // of its counter: "grad", "params", "grad replicas", "norm"
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int64_t num_bytes = 0;  // of the whole tensor
  RankGroup group;
  int64_t times = 1;
  Pass pass = Pass::kBackward;  // beside which it runs
  bool hidden = true;           // behind the pass; false: nothing to compute meanwhile
  int64_t sent = -1;            // by each rank, where that is not ring_bytes() of the above
  int64_t wire_bytes() const { return sent >= 0 ? sent : ring_bytes(kind, group.ranks, num_bytes); }
};

/// All of one step, those of predict_communication(). Not hidden are
///   the norm; external gradients, sent when the backward pass has ended;
///   ddp, zero1: the last bucket; with gradients_stay all, sent behind the last pass;
///   zero1: all gathers: a captured step runs them before anything else (traced on two GPUs);
///   fsdp, hsdp: gathers of the root and the first unit, and the reductions of the unit whose
///          backward pass is last, and of the root.
/// With accumulation ddp and zero1 exchange in the last (gradients) and first (weights) pass only.
/// Throws ConfigError like whole_group() and predict_communication().
std::vector<Exchange> exchanges(const BucketPlan& plan, const CostOptions& options,
                                int64_t node_size);

/// Bytes that copies and conversions of gradients read and write in a step beyond those of one GPU,
/// which adds up micro-batches too. Autograd's gradients are copied into what is sent, also where
/// the type stays, but for those that are widened on the way: products write them there. Lists of
/// rows count nothing. One rank: 0.
int64_t conversion_bytes(const BucketPlan& plan, const CostOptions& options);

/// Bytes that norm, clipping and AdamW read and write in a step: per element gradient (twice),
/// moments 16, masters 8 and weights where these are not fp32. An external gradient counts only
/// where it is divided (then as a dense one): otherwise the rows that a step touches are few.
int64_t update_bytes(const BucketPlan& plan, const CostOptions& options);

/// Milliseconds of one step.
struct StepForecast {
  double compute_ms = 0, conversion_ms = 0, update_ms = 0, slowdown_ms = 0, exposed_ms = 0;
  double communication_ms = 0;  // all of it, exposed or not; not a summand
  double step_ms() const {
    return compute_ms + conversion_ms + update_ms + slowdown_ms + exposed_ms;
  }
  /// Of weak scaling: as many samples a GPU as one GPU has.
  double efficiency() const { return compute_ms / step_ms(); }
};

/// What forecast() needs besides the exchanges.
struct StepWork {
  double compute_ms = 0;
  int64_t micro_batches = 1;  // of them, exchanges of ddp and zero1 run beside one
  bool every_pass = false;    // fsdp, hsdp: exchanges run beside every micro-batch
  int64_t conversion_bytes = 0;
  int64_t update_bytes = 0;  // more than one GPU's, or fewer
};
StepForecast forecast(const StepWork& work, const std::vector<Exchange>& all,
                      const ScalingConstants& constants);

/// The same for a plan: `node_size` GPUs a node, `compute_ms` the step of one GPU with the same
/// samples. The plan of one rank: compute_ms. Throws ConfigError as above, and for a time or
/// constant that is not positive.
StepForecast predict_step(const BucketPlan& plan, const CostOptions& options, int64_t node_size,
                          double compute_ms, const ScalingConstants& constants);

}  // namespace longship::dist
