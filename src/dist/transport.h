#pragma once
// What moves bytes between ranks: the thin interface between our bookkeeping (communicator.h) and
// a backend. c10d stands behind it in c10d_backend.cpp only.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace longship::dist {

enum class ReduceOp {
  kSum,
  kMean,  // every rank divides its input by the number of ranks, then the sum is taken
  kMax,
};

/// A collective under way. Inputs and outputs must live and stay unchanged until wait() returned.
class Pending {
 public:
  virtual ~Pending() = default;
  /// Whether wait() would return at once. A failed collective is done.
  virtual bool done() = 0;
  /// On CPU tensors: until the result is there. On CUDA tensors: makes the current stream wait for
  /// it, the host does not. Throws whatever the backend throws; the caller gives it a name.
  virtual void wait() = 0;
};

/// Collectives of a fixed group of ranks over contiguous 1-D tensors, asynchronous, in the order
/// of the calls, which must be the same on every rank.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;  // "gloo", "nccl", "peer", "local"
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  /// In place.
  virtual std::unique_ptr<Pending> all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  /// Whether sums and means of bf16 may be had in fp32, added up in fp32 and never rounded: by
  /// all_reduce_into(), and by reduce_scatter() with an fp32 output and a bf16 input.
  virtual bool widens() const { return false; }
  /// Whether such a sum moves the input as it is; otherwise in fp32, where the transport has to ask
  /// another.
  virtual bool moves_narrow(const at::Tensor& /*input*/) const { return widens(); }
  /// output [n] fp32 gets the reduced input [n] bf16, which stays as it is. kSum and kMean, and
  /// only where widens().
  virtual std::unique_ptr<Pending> all_reduce_into(at::Tensor output, at::Tensor input,
                                                   ReduceOp op);
  /// output [n], input [world_size * n]: rank r gets the reduced r-th part. With kMean the input
  /// may be overwritten. The output may be that part of the input.
  virtual std::unique_ptr<Pending> reduce_scatter(at::Tensor output, at::Tensor input,
                                                  ReduceOp op) = 0;
  /// output [world_size * n], input [n], which may be the rank's own part of the output.
  virtual std::unique_ptr<Pending> all_gather(at::Tensor output, at::Tensor input) = 0;
  virtual std::unique_ptr<Pending> broadcast(at::Tensor tensor, int64_t root) = 0;
  virtual std::unique_ptr<Pending> barrier() = 0;
  /// These tensors will be exchanged again and again, and stay where they are while they live: a
  /// transport may prepare for that. The same sizes in the same order on every rank; not while a
  /// graph is captured. Collective.
  virtual void share(const std::vector<at::Tensor>&) {}
  /// Ends what is under way with an error, as far as the backend can. Thread-safe.
  virtual void abort() = 0;
};

/// One rank: nothing moves.
std::unique_ptr<Transport> make_local_transport();

}  // namespace longship::dist
