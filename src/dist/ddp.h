#pragma once
// Gradients that are averaged over the ranks while the backward pass still runs.
//
//   GradReducer reducer(world, plan_buckets(specs, options), params, ReduceMode::kAllReduce);
//   for each step:
//     reducer.begin_step();                          // no gradients yet
//     for each micro-batch m:
//       reducer.begin_micro_batch(m + 1 == count);   // the last one communicates
//       (loss / count).backward();
//     reducer.finish();                              // gradients are the means over the ranks
//
// Ownership. The reducer owns one flat tensor a bucket, in the dtype in which gradients are sent,
// and another for their means where these are wider. Gradients are collected there (GradientBuffers
// says how); after finish() the gradient of every parameter in it (ParamSpec::source kBackward,
// kUnused) is a view of the means in the parameter's shape, whose dtype may be another than the
// parameter's. An external gradient keeps its dtype; its tensor
// is made to point into a bucket of that dtype. Of a table that exchanges rows (exchanges_rows() of
// plan.h) only the lists of its rows move (row_exchange.h). The model owns the parameters. An
// optimizer reads .grad as always and may change or drop gradients between finish() and
// begin_step(). Hooks on the parameters report when a gradient is complete; they are removed with
// the reducer, which must outlive every backward pass that was begun under it.
//
// Order. A bucket is sent when it and all buckets before it in the plan are complete, so the order
// of collectives is the plan's on every rank, whatever the order in which gradients come.
//
// The reducer allocates in its constructor only; buckets stay where they are from step to step, so
// a step can be captured in a CUDA graph where the backend can.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/plan.h"
#include "dist/row_exchange.h"
#include "ops/gradient_place.h"

namespace longship::dist {

/// The tensors behind a ParamSpec.
struct ReducedParam {
  at::Tensor param;           // contiguous; requires_grad with kBackward and kUnused
  at::Tensor external_grad;   // with kExternal only: contiguous, the parameter's number of elements
  at::Tensor row_flags = {};  // of a table that exchanges rows: uint8 [rows]; rows with flag 0 hold
                              // zeros
};

enum class ReduceMode {
  kAllReduce,      // every rank gets the mean of the whole bucket
  kReduceScatter,  // rank r gets the mean of the r-th part (ZeRO-1); the bucket itself is scratch
};

/// What finish() does about parameters whose gradient never came in the step.
enum class MissingGradients {
  kError,  // InternalError naming them
  kZeros,  // their gradients are zeros here; missing() lists them. For models in which it depends
           // on the batch what is used (no picture in it, no vision tower)
};

/// How the gradients of the backward passes come into the buckets.
enum class GradientBuffers {
  kStay,  // during a pass they are views of a bucket of their own dtype: no address changes, so
          // that one captured pass can serve every micro-batch. Sums over the passes are those of
          // kHandedOver, bit for bit
  kHandedOver,      // autograd's own buffers are added to a bucket of the dtype that is sent, or of
                    // their own where that is wider, and dropped: less memory and traffic
  kHandedOverOnce,  // the same for steps of one pass: where the communicator widens, buckets keep
                    // the gradients' own dtype, and what is sent is added up in the wider one.
                    // Weights whose gradients keep their dtype have their places in the buckets
                    // offered (ops/gradient_place.h): what a product has written there is not
                    // copied. The rest of a bucket is copied when that is complete, at once where
                    // it keeps its dtype
};

class GradReducer {
 public:
  /// `params` belong to plan.params one by one. Throws InternalError naming the parameter when
  /// shape, dtype, layout or requires_grad do not fit, or the plan is for another number of ranks.
  /// Collective.
  GradReducer(Communicator& communicator, BucketPlan plan, std::vector<ReducedParam> params,
              ReduceMode mode, MissingGradients missing = MissingGradients::kError,
              GradientBuffers buffers = GradientBuffers::kStay);
  ~GradReducer();
  GradReducer(const GradReducer&) = delete;
  GradReducer& operator=(const GradReducer&) = delete;

  /// kStay and external ones: fills all gradients with zeros, of a table that exchanges rows those
  /// that the step before has written, and makes them views again. Else drops them.
  void begin_step();
  /// Before each backward pass. Only during the last one are buckets sent.
  void begin_micro_batch(bool last);
  /// After a last backward pass that was replayed from a captured graph, in which no hook runs:
  /// takes every gradient as complete and sends all buckets.
  void all_gradients_ready();
  /// After the last backward pass: sends what is left, waits, and (kAllReduce) makes the means the
  /// gradients. On CUDA the current stream waits, the host does not. Throws InternalError naming
  /// the parameters whose gradient never came (kError), PeerError when a peer is lost.
  void finish();
  /// Names of the parameters that no backward pass of the step has given a gradient (kZeros).
  const std::vector<std::string>& missing() const { return missing_names_; }

  const BucketPlan& plan() const { return plan_; }
  /// Whether gradients are sent as they are and added up in the wider type (kHandedOverOnce).
  bool widens() const {
    return collect_ == GradientBuffers::kHandedOverOnce && communicator_.widens() &&
           plan_.options.reduce_dtype == at::kFloat;
  }
  Communicator& communicator() const { return communicator_; }
  /// kReduceScatter, after finish(): the mean of this rank's part, [bucket.numel / world_size], in
  /// the wire's dtype. With one rank it is the bucket itself, in the gradients' dtype.
  const at::Tensor& shard(int64_t index) const { return state(index).shard; }
  /// Bytes of the tensors that the reducer holds: where gradients are collected; what is there
  /// besides to send them, and shards.
  int64_t gradient_bytes() const;
  int64_t buffer_bytes() const;

 private:
  class Hook;
  struct BucketState {
    at::Tensor wire;        // what is sent
    at::Tensor flat;        // where gradients are collected; mostly `wire` itself
    at::Tensor mean;        // kAllReduce: what comes back; mostly `wire` itself
    bool stays = false;     // gradients are views of `flat` during the passes
    bool one_pass = false;  // `flat` has the gradients of one pass only: `wire` is wider
    std::unique_ptr<RowExchange> rows;  // moves lists of the table's rows in place of `wire`
    // kHandedOverOnce: gradients that lie elsewhere, and where they belong.
    std::vector<at::Tensor> apart, places;
    at::Tensor shard;      // kReduceScatter
    int64_t expected = 0;  // gradients that the backward pass gives
    int64_t missing = 0;   // of them, not there yet in this micro-batch
    Handle handle;
  };
  const BucketState& state(int64_t index) const { return buckets_[static_cast<size_t>(index)]; }
  void check(size_t param) const;
  BucketState make_bucket(const Bucket& bucket);
  void make_views(const Bucket& bucket, const BucketState& state);
  void share_buckets();
  void install_view(const BucketSlot& slot);
  void gradient_ready(int64_t param);
  void send_complete(bool include_external);
  void send(int64_t index);
  void take_over(size_t param);
  void offer_places();
  void keep_apart(size_t param);
  static void copy_apart(BucketState& bucket);
  void add_pass(BucketState& bucket) const;
  void point_at_means();
  struct RowPart {
    at::Tensor out;
    int64_t begin = 0;
  };
  RowPart means_of_rows(const BucketState& bucket) const;
  void add_up_rows();
  void find_missing();
  void fill_unseen();

  Communicator& communicator_;
  BucketPlan plan_;
  std::vector<ReducedParam> params_;
  ReduceMode mode_;
  MissingGradients missing_;
  GradientBuffers collect_;
  std::vector<std::string> missing_names_;
  std::vector<BucketState> buckets_;
  std::vector<at::Tensor> views_;       // by parameter, of `flat`; undefined for kNone
  std::vector<at::Tensor> mean_views_;  // the same of `mean`
  ops::GradientPlaces offers_;

  std::mutex mutex_;  // guards everything below: hooks run on autograd's threads
  bool sending_ = false;
  int64_t num_passes_ = 0;   // begun in this step
  int64_t next_ = 0;         // first bucket that was not sent
  std::vector<char> ready_;  // by parameter, in this micro-batch
  std::vector<char> seen_;   // by parameter, in this step
};

/// Gives every rank rank 0's values, for the start of a run: all tensors one by one, counted as
/// "params initial".
void broadcast_from_first(Communicator& communicator, const std::vector<at::Tensor>& tensors);

}  // namespace longship::dist
