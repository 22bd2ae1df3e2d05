#pragma once
// Collectives of GPUs of one host that read each other's memory. The copy engines move the bytes,
// so that the multiprocessors stay with the computation; one small kernel adds up.
//
// What takes this way: tensors of kPeerLeastBytes and more in memory that was shared
// (Transport::share), all_gather and broadcast of any type, sums and means of fp32, of bf16, and of
// bf16 into fp32 (Transport::widens). The rest - small sums, maxima, whole models at the start - is
// NCCL's. The choice follows from sizes, types and the order of share() calls, so it is the same on
// all ranks.
//
//   all_reduce       meet; every rank copies its part from all others and adds up in rank order,
//                    in fp32; meet; every rank copies the other parts; meet
//   reduce_scatter   meet; copy and add up; meet
//   all_gather       meet; copy; meet
//
// The meetings (ops/meet.h) are kernels on the streams: before the first the input is there, after
// the last nobody reads this rank's memory any more. All collectives of a transport, those of NCCL
// among them, follow each other on one stream, so that no two ranks run two of them in different
// orders. Everything can be captured, and a replay on one rank meets an eager step on another.
//
// Sums have the same bits on every rank and in every run; with kMean every input is divided by the
// number of ranks in fp32. bf16 sums are rounded once.

#include <cstdint>
#include <memory>
#include <string>

#include "dist/store.h"
#include "dist/transport.h"

namespace longship::dist {

constexpr int64_t kPeerLeastBytes = 256 << 10;

/// Wraps `nccl`, the transport of the same ranks. Where any rank cannot, `nccl` stays as it is, and
/// null comes back with the reason in `why_not`, the same on every rank. Collective.
std::unique_ptr<Transport> make_peer_transport(KeyStore& store, const BackendOptions& options,
                                               std::unique_ptr<Transport>& nccl,
                                               std::string& why_not);

/// The transport that options.transport names. Where kAuto has to fall back to NCCL, the first rank
/// of the group says so and why in one warning. Throws DeviceError with the reason where kPeer is
/// asked and cannot be, and in a build without CUDA. Collective.
std::unique_ptr<Transport> make_cuda_transport(KeyStore& store, const BackendOptions& options);

}  // namespace longship::dist
