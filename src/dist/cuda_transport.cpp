// Which transport CUDA tensors take.
#include "base/error.h"
#include "base/log.h"
#include "dist/peer_transport.h"

namespace longship::dist {

#ifndef LS_CUDA_ENABLED
std::unique_ptr<Transport> make_peer_transport(KeyStore&, const BackendOptions&,
                                               std::unique_ptr<Transport>&, std::string& why_not) {
  why_not = "this build has no CUDA";
  return nullptr;
}
#endif

std::unique_ptr<Transport> make_cuda_transport(KeyStore& store, const BackendOptions& options) {
  std::unique_ptr<Transport> nccl = make_nccl_transport(store, options);
  if (options.transport == CudaTransport::kNccl) return nccl;
  std::string why_not;
  std::unique_ptr<Transport> peer = make_peer_transport(store, options, nccl, why_not);
  if (peer) {
    if (options.rank == 0) {
      log::info("group '{}': {} GPUs of one host read each other's memory (transport peer)",
                options.group, options.world_size);
    }
    return peer;
  }
  LS_CHECK(options.transport != CudaTransport::kPeer, DeviceError,
           "parallel.transport: peer cannot be had in group '{}': {}; use nccl or auto",
           options.group, why_not);
  if (options.rank == 0) {
    log::warn("group '{}': transport nccl, because peer cannot be had: {}", options.group, why_not);
  }
  return nccl;
}

}  // namespace longship::dist
