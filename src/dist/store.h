#pragma once
// A small key-value store that every rank reaches, and the backends that meet through it. The only
// implementation is c10d's TCPStore, in c10d_backend.cpp.

#include <cstdint>
#include <memory>
#include <string>

#include "dist/transport.h"

namespace longship::dist {

/// Texts under keys. Every call may throw std::exception with the library's text when the store is
/// gone. Thread-safe.
/// Every call throws std::exception when the store does not answer, after 10 s (get(): after its
/// timeout besides).
class KeyStore {
 public:
  virtual ~KeyStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Whether somebody has set the key.
  virtual bool has(const std::string& key) = 0;
  /// Value of a key that is set; waits for it up to the store's timeout.
  virtual std::string get(const std::string& key) = 0;
  /// Adds to a counter that begins at 0; returns the new value.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
};

struct StoreAddress {
  std::string host;
  uint16_t port = 0;
  bool serve = false;     // this process listens there
  std::string prefix;     // put before every key
  double timeout_s = 60;  // to connect, and of get()
};

/// Connects, and serves when asked to. Throws std::exception with the library's text.
std::unique_ptr<KeyStore> open_store(const StoreAddress& address);
/// Whether anybody takes a connection there, within a second.
bool accepts_connections(const std::string& host, uint16_t port);

/// What moves bytes between CUDA devices.
enum class CudaTransport {
  kAuto,  // kPeer where it can, kNccl where not
  kNccl,
  kPeer,  // peer_transport.h: GPUs of one host that read each other's memory
};

struct BackendOptions {
  std::string group;  // unique in the store
  int64_t rank = 0, world_size = 1;
  std::string master_host;  // Gloo listens on the address from which this host is reached
  uint16_t master_port = 0;
  int64_t device_index = 0;  // CUDA
  CudaTransport transport = CudaTransport::kNccl;
  double setup_timeout_s = 60;  // until all ranks are connected
  double timeout_s = 600;       // of one collective
};

/// Collectives over CPU tensors through TCP. GLOO_SOCKET_IFNAME picks a network interface;
/// otherwise the one that leads to the master host is taken.
std::unique_ptr<Transport> make_gloo_transport(KeyStore& store, const BackendOptions& options);
/// Collectives over CUDA tensors. Throws DeviceError in a build without CUDA.
std::unique_ptr<Transport> make_nccl_transport(KeyStore& store, const BackendOptions& options);

}  // namespace longship::dist
