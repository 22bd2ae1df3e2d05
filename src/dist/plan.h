#pragma once
// Who holds what, and what moves: plans made from the list of parameters before anything is
// allocated. All are pure functions of their arguments, so every rank makes the same one.
//
// Flat spaces. The gradients (and for ZeRO-1 the weights) of a bucket lie in one 1-D tensor of the
// bucket's dtype. Every parameter, and of a stack its first, begins at a multiple of 16 bytes; the
// gaps hold zeros. The end is padded so that the bucket divides evenly by the number of ranks into
// parts that are multiples of 16 bytes too. All offsets and sizes here are in elements unless the
// name says bytes.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace longship::dist {

/// How a parameter comes by its gradient.
enum class GradSource {
  kBackward,  // the backward pass gives it, once per micro-batch
  kUnused,    // trainable, but no backward pass reaches it: its gradient is zero
  kExternal,  // the backward pass adds to a tensor of its own (row-sparse tables); it is complete
              // when the pass has ended
  kNone,      // frozen or decay-only: no gradient, nothing to reduce; the same on all ranks
};

/// One parameter, in order of use in the forward pass.
struct ParamSpec {
  std::string name;
  int64_t numel = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::string unit;  // part of the model that is gathered as one (FSDP), a name of nn/unit.h
  GradSource source = GradSource::kBackward;
  c10::ScalarType grad_dtype = c10::ScalarType::Undefined;  // Undefined: that of the parameter
  /// Parameters with the same number are multiplied as one (nn::Module::register_stack): their
  /// gradients, or flat weights, lie behind each other without gaps in the order of this list.
  /// -1: alone. keep_stacks_together() sets it.
  int64_t stack = -1;
  bool forward_only = false;  // no gradient passes through its unit, which is frozen
  /// kExternal: elements of a row of the table, and how many of its rows one rank touches in a step
  /// at most; 0: unknown.
  int64_t row_length = 0, touched_rows = 0;
  c10::ScalarType gradient_dtype() const {
    return grad_dtype == c10::ScalarType::Undefined ? dtype : grad_dtype;
  }
  bool operator==(const ParamSpec&) const = default;
};

struct PlanOptions {
  int64_t world_size = 1;
  int64_t bucket_bytes = 25 << 20;  // of gradients; a larger parameter has a bucket of its own
  int64_t first_bucket_bytes =
      1 << 20;  // the first to be sent: small, so that sending begins early
  c10::ScalarType reduce_dtype = c10::ScalarType::Float;  // Float or BFloat16, on the wire
};

struct BucketSlot {
  int64_t param = 0;  // index in the list of parameters
  int64_t offset = 0;
  int64_t numel = 0;
  int64_t end() const { return offset + numel; }
  bool operator==(const BucketSlot&) const = default;
};

struct Bucket {
  c10::ScalarType dtype = c10::ScalarType::Float;       // of the parameters
  c10::ScalarType grad_dtype = c10::ScalarType::Float;  // of the gradients
  std::vector<BucketSlot> slots;
  int64_t numel = 0;        // with gaps and padding, a multiple of world_size
  bool external = false;    // complete only when the backward pass has ended
  int64_t payload() const;  // elements of parameters
  bool operator==(const Bucket&) const = default;
};

/// Buckets in the order in which they are sent: reverse order of use, because the backward pass
/// finishes the last used parameters first; external ones at the end, tables that exchange rows
/// each in one of its own. One dtype a bucket. Frozen and decay-only parameters are in none.
struct BucketPlan {
  std::vector<ParamSpec> params;
  PlanOptions options;
  std::vector<Bucket> buckets;
  /// Bucket of a parameter, -1 for those in none.
  int64_t bucket_of(int64_t param) const { return bucket_index[static_cast<size_t>(param)]; }
  std::vector<int64_t> bucket_index;  // by parameter
  bool operator==(const BucketPlan&) const;
};

/// Whether the gradient of a table is exchanged as lists of the rows that each rank has touched
/// (row_exchange.h), and not whole: where the lists of all ranks have room for at most half of its
/// rows.
bool exchanges_rows(const ParamSpec& spec, int64_t world_size);
/// Bytes of one rank's list of such a table: its rows, and their numbers with their count.
struct RowListBytes {
  int64_t values = 0, numbers = 0;
};
RowListBytes row_list_bytes(const ParamSpec& spec);
/// Whether a bucket is one table that exchanges rows.
bool exchanges_rows(const BucketPlan& plan, const Bucket& bucket);
struct ShardPlan;
struct UnitShard;
/// Whether a flat space is one table that exchanges rows in its shard group.
bool exchanges_rows(const ShardPlan& plan, const UnitShard& space);

/// Throws ConfigError naming the parameter or option: an empty or negative size, a name given
/// twice, a bucket size below 1, a reduction dtype other than fp32 and bf16, or a gradient that is
/// neither fp32 nor bf16.
BucketPlan plan_buckets(std::vector<ParamSpec> params, const PlanOptions& options);

/// Whether the gradients of a bucket are narrower than the type in which they are added up, so that
/// a transport that widens can take them as they are.
bool sums_are_wider(const BucketPlan& plan, const Bucket& bucket);
/// The same of a flat space that is added up in `reduce_dtype`.
bool sums_are_wider(const UnitShard& space, c10::ScalarType reduce_dtype);

/// Part of one parameter that one rank owns under ZeRO-1.
struct OwnedSlice {
  int64_t param = 0;
  int64_t begin = 0, end = 0;  // elements of the parameter
  int64_t bucket = 0;
  int64_t shard_offset = 0;  // where the slice begins in the rank's part of the bucket
  bool operator==(const OwnedSlice&) const = default;
};
/// ZeRO-1: rank r owns elements [r, r + 1) * numel / world_size of every bucket; its slices in plan
/// order. The slices of all ranks cover every parameter of the buckets exactly once.
std::vector<OwnedSlice> owned_slices(const BucketPlan& plan, int64_t rank);

/// Parameters of one FSDP unit that are alike, in one flat space that divides evenly.
struct UnitShard {
  std::string unit;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool trainable = true;  // frozen and trainable parameters have separate spaces: only the latter
                          // are reduced and have optimizer state
  bool external = false;  // gradients come as in GradSource::kExternal: a space of their own too
  c10::ScalarType grad_dtype = c10::ScalarType::Float;
  std::vector<BucketSlot> slots;
  int64_t numel = 0;
  int64_t shard_numel(int64_t shard_size) const { return numel / shard_size; }
  bool operator==(const UnitShard&) const = default;
};
/// In order of first use, `shard_size` ranks to a flat space. Members of a stack that follow each
/// other in `params` (keep_stacks_together()) do so without gaps.
std::vector<UnitShard> plan_units(const std::vector<ParamSpec>& params, int64_t shard_size);

/// FSDP's units and their flat spaces.
struct ShardPlan {
  struct Unit {
    std::string name;
    std::vector<int64_t> spaces;  // indices
    bool backward = true;         // takes part in the backward pass
    int64_t numel_bytes = 0;      // of the gathered weights
  };
  std::vector<ParamSpec> params;
  int64_t shard_size = 1;
  std::vector<UnitShard> spaces;
  std::vector<Unit> units;  // the root (possibly empty), then the others in the order in which they
                            // run; those that nobody reads have spaces, but no unit
  std::vector<int64_t> unit_of;   // by parameter, -1: none
  std::vector<int64_t> space_of;  // by parameter
};
/// Throws ConfigError like plan_buckets(), for a parameter with a gradient in a unit that has none,
/// and for a unit that is partly forward_only.
ShardPlan plan_shards(std::vector<ParamSpec> params, int64_t shard_size);

/// Moves the parameters of each stack (nn::Module::stacks(), by name) behind its first one and
/// numbers the stacks. Members that differ in unit or source of gradients lie in different flat
/// tensors, so they are stacks of their own here. Names that are no parameter are ignored. Returns
/// the place of each new parameter in the old list.
std::vector<int64_t> keep_stacks_together(std::vector<ParamSpec>& params,
                                          const std::vector<std::vector<std::string>>& stacks);

// ---- What a plan costs. ----------------------------------------------------------------------

enum class Strategy { kNone, kDdp, kZero1, kFsdp, kHsdp };
/// none | ddp | zero1 | fsdp | hsdp; ConfigError otherwise.
Strategy parse_strategy(const std::string& name);

/// When an FSDP unit gives up its gathered weights.
enum class Reshard {
  kAfterForward,        // gathered again for the backward pass: 2 gathers a micro-batch, 1 for the
                        // last unit, whose backward pass comes next, and for forward_only ones
  kNever,               // kept until its backward pass is done: 1 gather a micro-batch
                        // The root is gathered once a step either way.
  kAfterOptimizerStep,  // kept over all micro-batches: 1 gather a step
};
/// after_forward | never | after_optimizer_step; ConfigError otherwise.
Reshard parse_reshard(const std::string& name);

struct CostOptions {
  Strategy strategy = Strategy::kDdp;
  int64_t micro_batches = 1;  // accumulated per optimizer step
  int64_t shard_size = 0;     // HSDP: ranks that share one copy; 0: all (FSDP)
  Reshard reshard = Reshard::kAfterForward;
  bool ema = false;             // moving average of the weights, fp32
  bool gradients_stay = false;  // ddp, zero1: GradientBuffers::kStay of ddp.h
  /// Over a transport that widens: GradientBuffers::kHandedOverOnce of ddp.h, or
  /// FsdpOptions::single_pass.
  bool widened = false;
};

/// Communication of one optimizer step of one rank, by the names of the counters (communicator.h):
/// "grad", "params", for HSDP "grad replicas" too, and "norm" where the norm needs a sum. Times are
/// left 0. Scalars the trainer adds (loss, faults) are not in it.
std::map<std::string, CollectiveCounter> predict_communication(const BucketPlan& plan,
                                                               const CostOptions& options);

/// Bytes on one rank, by component. Activations are not in it.
struct MemoryForecast {
  int64_t parameters = 0;      // as the forward pass uses them, with gaps and padding where flat
  int64_t gradients = 0;       // flat buckets where they are collected; FSDP: fp32 means of the
                               // rank's shards, and whole external gradients
  int64_t reduce_buffers = 0;  // what is sent, where that is another buffer; shards
  int64_t masters = 0;         // fp32 copies of what the rank updates, where that is not fp32
  int64_t moments = 0;         // two fp32 moments of what the rank updates
  int64_t ema = 0;
  int64_t gathered = 0;  // FSDP: buffers of gathered weights
  int64_t total() const {
    return parameters + gradients + reduce_buffers + masters + moments + ema + gathered;
  }
};
/// For the rank with the most. Decay-only parameters count as parameters only.
MemoryForecast predict_memory(const BucketPlan& plan, const CostOptions& options);

/// Elements that 16 bytes hold.
int64_t alignment_elements(c10::ScalarType dtype);

}  // namespace longship::dist
