#include "dist/peer_transport.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <array>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "dist/peer_memory.h"
#include "dist/peer_plan.h"
#include "ops/sum_parts.h"
#include "runtime/stream.h"

namespace longship::dist {
namespace {

// Room for what the peers send, in both slots together. 32 MiB are 0.1 ms of copying at W = 2: a
// larger piece does not go faster, and what follows the last copy is shorter with smaller ones.
constexpr int64_t kStagingBytes = 64 << 20;
// All 132 multiprocessors of an H200, twice, for a moment each time. A product of the backward pass
// takes all of them with all registers, so one that a sum holds delays the whole product until the
// sum ends: better all for 15 us than some for 120. Pi0.5 with ddp on two GPUs, ms per step: 8
// blocks 524.8, 24 blocks 521.9, 132 515.7, 528 515.6.
constexpr int64_t kSumBlocks = 264;
// How long the end of a transport waits for its last work.
constexpr auto kLastWork = std::chrono::seconds(10);

using Pointers = std::vector<char*>;

class PeerPending : public Pending {
 public:
  PeerPending(const PeerMemory& memory, bool captured) : memory_(memory), captured_(captured) {}
  void record(const runtime::Stream& stream) { event_.record(stream); }
  bool done() override { return memory_.stopped() || (!captured_ && event_.done()); }
  void wait() override {
    LS_CHECK(memory_.lost_rank() < 0, PeerError, "rank {} of the group did not come in time",
             memory_.lost_rank());
    LS_CHECK(!memory_.stopped(), PeerError, "the transport was aborted");
    event_.block(runtime::Stream::current(memory_.device()));
  }

 private:
  const PeerMemory& memory_;
  bool captured_;
  runtime::Event event_;
};

class PeerTransport : public Transport {
 public:
  PeerTransport(std::unique_ptr<PeerMemory> memory, std::unique_ptr<Transport> nccl)
      : memory_(std::move(memory)),
        nccl_(std::move(nccl)),
        device_(memory_->device()),
        rank_(nccl_->rank()),
        world_size_(nccl_->world_size()),
        staging_{world_size_, kStagingBytes},
        staging_memory_(at::empty({kStagingBytes}, at::TensorOptions(at::kByte).device(device_))),
        order_(runtime::Stream::make(device_, /*high_priority=*/true)),
        adding_(runtime::Stream::make(device_, /*high_priority=*/true)) {}
  ~PeerTransport() override;

  std::string name() const override { return "peer"; }
  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return world_size_; }

  std::unique_ptr<Pending> all_reduce(at::Tensor tensor, ReduceOp op) override;
  bool widens() const override { return true; }
  bool moves_narrow(const at::Tensor& input) const override { return !shared(input).empty(); }
  std::unique_ptr<Pending> all_reduce_into(at::Tensor output, at::Tensor input,
                                           ReduceOp op) override;
  std::unique_ptr<Pending> reduce_scatter(at::Tensor output, at::Tensor input,
                                          ReduceOp op) override;
  std::unique_ptr<Pending> all_gather(at::Tensor output, at::Tensor input) override;
  std::unique_ptr<Pending> broadcast(at::Tensor tensor, int64_t root) override;
  std::unique_ptr<Pending> barrier() override {
    return over_nccl([&] { return nccl_->barrier(); });
  }
  void share(const std::vector<at::Tensor>& tensors) override;
  void abort() override {
    memory_->stop();
    nccl_->abort();
  }

 private:
  template <class Work>
  std::unique_ptr<Pending> run(Work&& work);
  template <class Start>
  std::unique_ptr<Pending> over_nccl(Start&& start);
  Pointers shared(const at::Tensor& tensor) const;
  Pointers to_add(const at::Tensor& tensor, ReduceOp op) const;
  void reduce_and_gather(const at::Tensor& output, const Pointers& outputs, const at::Tensor& input,
                         const Pointers& inputs, ReduceOp op) const;
  void copy(void* target, const void* source, int64_t bytes) const;
  void add_up(const at::Tensor& out, const at::Tensor& own, const Pointers& at, ElementRange part,
              ReduceOp op) const;
  void copy_piece(const PeerPiece& piece, const Pointers& at, int64_t element) const;
  at::Tensor staged(const PeerPiece& piece, int64_t peer, at::ScalarType type) const;

  std::unique_ptr<PeerMemory> memory_;
  std::unique_ptr<Transport> nccl_;
  at::Device device_;
  int64_t rank_, world_size_;
  Staging staging_;
  at::Tensor staging_memory_;
  // All collectives, one after the other, and what is added up beside the copies of one of them.
  runtime::Stream order_, adding_;
  std::mutex mutex_;  // launches come from autograd's threads too
};

PeerTransport::~PeerTransport() {
  // Peers may still read and meet. Where one is dead, nothing here ends by itself.
  try {
    runtime::Event last;
    last.record(order_);
    const auto until = std::chrono::steady_clock::now() + kLastWork;
    while (!memory_->stopped() && !last.done() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const std::exception&) {
    // The device is lost, which has been told.
  }
  memory_->stop();
}

// `work` enqueues a collective on the stream of all of them, behind what is on the caller's now.
template <class Work>
std::unique_ptr<Pending> PeerTransport::run(Work&& work) {
  const std::lock_guard lock(mutex_);
  LS_CHECK(!memory_->stopped(), PeerError, "the transport was aborted");
  LS_CHECK(memory_->lost_rank() < 0, PeerError, "rank {} of the group did not come in time",
           memory_->lost_rank());
  const at::NoGradGuard no_grad;
  runtime::Event ready;
  ready.record(runtime::Stream::current(device_));
  ready.block(order_);
  const runtime::StreamScope scope(order_);
  const bool captured =
      c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  work();
  auto pending = std::make_unique<PeerPending>(*memory_, captured);
  pending->record(order_);
  return pending;
}

template <class Start>
std::unique_ptr<Pending> PeerTransport::over_nccl(Start&& start) {
  return run([&] { start()->wait(); });
}

Pointers PeerTransport::shared(const at::Tensor& tensor) const {
  if (static_cast<int64_t>(tensor.nbytes()) < kPeerLeastBytes) return {};
  return memory_->find(tensor);
}

Pointers PeerTransport::to_add(const at::Tensor& tensor, ReduceOp op) const {
  const at::ScalarType type = tensor.scalar_type();
  if (op == ReduceOp::kMax || (type != at::kFloat && type != at::kBFloat16)) return {};
  return shared(tensor);
}

void PeerTransport::copy(void* target, const void* source, int64_t bytes) const {
  if (bytes == 0 || target == source) return;
  const cudaError_t status =
      cudaMemcpyAsync(target, source, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                      c10::cuda::getCurrentCUDAStream(device_.index()));
  LS_CHECK(status == cudaSuccess, DeviceError, "cudaMemcpyAsync of {} bytes between GPUs: {}",
           bytes, cudaGetErrorString(status));
}

void PeerTransport::copy_piece(const PeerPiece& piece, const Pointers& at, int64_t element) const {
  char* staging = static_cast<char*>(staging_memory_.mutable_data_ptr());
  for (const int64_t peer : peer_order(world_size_, rank_)) {
    copy(staging + staging_.offset(piece.slot, rank_, peer),
         at[static_cast<size_t>(peer)] + piece.range.begin * element,
         piece.range.count() * element);
  }
}

at::Tensor PeerTransport::staged(const PeerPiece& piece, int64_t peer, at::ScalarType type) const {
  const auto bytes = piece.range.count() * static_cast<int64_t>(c10::elementSize(type));
  return staging_memory_.narrow(0, staging_.offset(piece.slot, rank_, peer), bytes).view(type);
}

// out [part] = the sum over all ranks of their tensors' `part`; `at`: these tensors. The copies are
// on the stream of all collectives, the sums beside them, one piece behind.
void PeerTransport::add_up(const at::Tensor& out, const at::Tensor& own, const Pointers& at,
                           ElementRange part, ReduceOp op) const {
  const auto element = static_cast<int64_t>(own.element_size());
  const std::vector<PeerPiece> pieces = plan_pieces(part, element, staging_);
  const double divisor = op == ReduceOp::kMean ? static_cast<double>(world_size_) : 1.0;
  const auto sum = [&](const PeerPiece& piece) {
    std::vector<at::Tensor> parts;
    for (int64_t r = 0; r < world_size_; ++r) {
      parts.push_back(r == rank_ ? own.narrow(0, piece.range.begin, piece.range.count())
                                 : staged(piece, r, own.scalar_type()));
    }
    ops::sum_parts(out.narrow(0, piece.range.begin - part.begin, piece.range.count()), parts,
                   divisor, kSumBlocks);
  };
  if (pieces.size() == 1) {
    copy_piece(pieces.front(), at, element);
    sum(pieces.front());
    return;
  }
  std::array<runtime::Event, 2> added;
  for (size_t i = 0; i < pieces.size(); ++i) {
    runtime::Event& free = added[static_cast<size_t>(pieces[i].slot)];
    if (i >= added.size()) free.block(order_);
    copy_piece(pieces[i], at, element);
    runtime::Event copied;
    copied.record(order_);
    copied.block(adding_);
    const runtime::StreamScope scope(adding_);
    sum(pieces[i]);
    free.record(adding_);
  }
  if (!pieces.empty()) added[static_cast<size_t>(pieces.back().slot)].block(order_);
}

std::unique_ptr<Pending> PeerTransport::all_reduce(at::Tensor tensor, ReduceOp op) {
  const Pointers at = to_add(tensor, op);
  if (at.empty()) return over_nccl([&] { return nccl_->all_reduce(tensor, op); });
  return run([&] { reduce_and_gather(tensor, at, tensor, at, op); });
}

std::unique_ptr<Pending> PeerTransport::all_reduce_into(at::Tensor output, at::Tensor input,
                                                        ReduceOp op) {
  const Pointers inputs = to_add(input, op), outputs = shared(output);
  if (inputs.empty() || outputs.empty()) {
    return run([&] {
      output.copy_(input);
      nccl_->all_reduce(output, op)->wait();
    });
  }
  return run([&] { reduce_and_gather(output, outputs, input, inputs, op); });
}

// `inputs`, `outputs`: where `input` and `output`, which may be one tensor, are on each rank.
void PeerTransport::reduce_and_gather(const at::Tensor& output, const Pointers& outputs,
                                      const at::Tensor& input, const Pointers& inputs,
                                      ReduceOp op) const {
  const auto element = static_cast<int64_t>(output.element_size());
  const ElementRange own = all_reduce_part(input.numel(), world_size_, rank_);
  ops::meet(memory_->place(), device_);
  // Nobody reads this rank's part of its own tensor before the next meeting.
  add_up(output.narrow(0, own.begin, own.count()), input, inputs, own, op);
  ops::meet(memory_->place(), device_);
  for (const int64_t peer : peer_order(world_size_, rank_)) {
    const ElementRange part = all_reduce_part(output.numel(), world_size_, peer);
    copy(outputs[static_cast<size_t>(rank_)] + part.begin * element,
         outputs[static_cast<size_t>(peer)] + part.begin * element, part.count() * element);
  }
  ops::meet(memory_->place(), device_);
}

std::unique_ptr<Pending> PeerTransport::reduce_scatter(at::Tensor output, at::Tensor input,
                                                       ReduceOp op) {
  const Pointers at = to_add(input, op);
  if (at.empty()) {
    return run([&] {
      // What NCCL adds up has one type.
      const at::Tensor same = input.to(output.scalar_type());
      nccl_->reduce_scatter(output, same, op)->wait();
    });
  }
  return run([&] {
    ops::meet(memory_->place(), device_);
    add_up(output, input, at, even_part(input.numel(), world_size_, rank_), op);
    ops::meet(memory_->place(), device_);
  });
}

std::unique_ptr<Pending> PeerTransport::all_gather(at::Tensor output, at::Tensor input) {
  const auto bytes = static_cast<int64_t>(input.nbytes());
  char* target = static_cast<char*>(output.mutable_data_ptr());
  // The own part of a shared output, or a shared tensor apart; how, is the same on all ranks.
  Pointers at;
  if (static_cast<int64_t>(output.nbytes()) >= kPeerLeastBytes) {
    const bool in_place = input.const_data_ptr() == target + rank_ * bytes;
    at = memory_->find(in_place ? output : input);
    for (size_t r = 0; in_place && r < at.size(); ++r) at[r] += static_cast<int64_t>(r) * bytes;
  }
  if (at.empty()) return over_nccl([&] { return nccl_->all_gather(output, input); });
  return run([&] {
    ops::meet(memory_->place(), device_);
    for (const int64_t peer : peer_order(world_size_, rank_)) {
      copy(target + peer * bytes, at[static_cast<size_t>(peer)], bytes);
    }
    copy(target + rank_ * bytes, input.const_data_ptr(), bytes);
    ops::meet(memory_->place(), device_);
  });
}

std::unique_ptr<Pending> PeerTransport::broadcast(at::Tensor tensor, int64_t root) {
  const Pointers at = shared(tensor);
  if (at.empty()) return over_nccl([&] { return nccl_->broadcast(tensor, root); });
  return run([&] {
    ops::meet(memory_->place(), device_);
    copy(at[static_cast<size_t>(rank_)], at[static_cast<size_t>(root)],
         static_cast<int64_t>(tensor.nbytes()));
    ops::meet(memory_->place(), device_);
  });
}

void PeerTransport::share(const std::vector<at::Tensor>& tensors) {
  const std::string why_not = memory_->share(tensors);
  if (why_not.empty() || rank_ != 0) return;
  log::warn("transport peer: {} tensors go over NCCL, because their memory cannot be shared: {}",
            tensors.size(), why_not);
}

}  // namespace

std::unique_ptr<Transport> make_peer_transport(KeyStore& store, const BackendOptions& options,
                                               std::unique_ptr<Transport>& nccl,
                                               std::string& why_not) {
  std::unique_ptr<PeerMemory> memory = PeerMemory::open(store, options, why_not);
  if (!memory) return nullptr;
  return std::make_unique<PeerTransport>(std::move(memory), std::move(nccl));
}

}  // namespace longship::dist
