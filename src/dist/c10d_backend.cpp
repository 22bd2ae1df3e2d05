// The one file that sees c10d: TCPStore, ProcessGroupGloo, ProcessGroupNCCL.
// Gloo's headers come from the distribution (libgloo-dev), its code is inside libtorch_cpu; only
// opaque pointers to its objects pass through here, because the two releases differ.
#define USE_C10D_GLOO
#ifdef LS_CUDA_ENABLED
#define USE_C10D_NCCL
#endif

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef LS_CUDA_ENABLED
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "base/error.h"
#include "dist/store.h"

namespace longship::dist {
namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

// A request that is not answered for so long never will be: the store answers in milliseconds.
constexpr double kAnswer = 10;

// The library waits for an answer without a limit, so a host that cannot be reached any more would
// hold its caller. Requests are made on a thread of their own, which is left behind with its
// connection when no answer comes.
class TcpKeyStore : public KeyStore {
 public:
  TcpKeyStore(c10::intrusive_ptr<c10d::Store> store, double timeout_s)
      : store_(store), timeout_s_(timeout_s), line_(std::make_shared<Line>()) {
    thread_ = std::thread([line = line_, own = std::move(store)] { serve(*line, *own); });
  }
  ~TcpKeyStore() override {
    {
      const std::lock_guard lock(line_->mutex);
      line_->stop = true;
    }
    line_->wake.notify_all();
    if (lost_) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }

  void set(const std::string& key, const std::string& value) override {
    ask<int>(kAnswer, [key, value](c10d::Store& store) {
      store.set(key, std::vector<uint8_t>(value.begin(), value.end()));
      return 0;
    });
  }
  bool has(const std::string& key) override {
    return ask<bool>(kAnswer, [key](c10d::Store& store) { return store.check({key}); });
  }
  std::string get(const std::string& key) override {
    return ask<std::string>(timeout_s_ + kAnswer, [key](c10d::Store& store) {
      const std::vector<uint8_t> bytes = store.get(key);
      return std::string(bytes.begin(), bytes.end());
    });
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return ask<int64_t>(kAnswer,
                        [key, amount](c10d::Store& store) { return store.add(key, amount); });
  }

  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }

 private:
  struct Line {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<std::function<void(c10d::Store&)>> requests;
    bool stop = false;
  };

  static void serve(Line& line, c10d::Store& store) {
    std::unique_lock lock(line.mutex);
    while (true) {
      line.wake.wait(lock, [&] { return line.stop || !line.requests.empty(); });
      if (line.requests.empty()) return;
      const std::function<void(c10d::Store&)> request = std::move(line.requests.front());
      line.requests.pop_front();
      lock.unlock();
      request(store);
      lock.lock();
    }
  }

  template <class Result, class Request>
  Result ask(double limit_s, Request request) {
    if (lost_) throw std::runtime_error("the store does not answer");
    auto task = std::make_shared<std::packaged_task<Result(c10d::Store&)>>(std::move(request));
    std::future<Result> answer = task->get_future();
    {
      const std::lock_guard lock(line_->mutex);
      line_->requests.emplace_back([task](c10d::Store& store) { (*task)(store); });
    }
    line_->wake.notify_all();
    if (answer.wait_for(std::chrono::duration<double>(limit_s)) != std::future_status::ready) {
      lost_ = true;
      throw std::runtime_error("the store does not answer");
    }
    return answer.get();
  }

  c10::intrusive_ptr<c10d::Store> store_;
  double timeout_s_;
  std::shared_ptr<Line> line_;
  std::thread thread_;
  std::atomic<bool> lost_ = false;
};

class C10dPending : public Pending {
 public:
  explicit C10dPending(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  bool done() override { return work_->isCompleted(); }
  void wait() override { work_->wait(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class C10dTransport : public Transport {
 public:
  // `mean`: the backend divides by itself (NCCL). Gloo only adds. The time limit goes with every
  // call: Gloo's own is that of the set-up.
  C10dTransport(std::string name, c10::intrusive_ptr<c10d::Backend> backend, bool mean,
                double timeout_s)
      : name_(std::move(name)),
        backend_(std::move(backend)),
        mean_(mean),
        timeout_(milliseconds(timeout_s)) {}

  std::string name() const override { return name_; }
  int64_t rank() const override { return backend_->getRank(); }
  int64_t world_size() const override { return backend_->getSize(); }

  std::unique_ptr<Pending> all_reduce(at::Tensor tensor, ReduceOp op) override {
    c10d::AllreduceOptions options;
    options.reduceOp = prepare(tensor, op);
    options.timeout = timeout_;
    std::vector<at::Tensor> tensors = {tensor};
    return pending(backend_->allreduce(tensors, options));
  }
  std::unique_ptr<Pending> reduce_scatter(at::Tensor output, at::Tensor input,
                                          ReduceOp op) override {
    c10d::ReduceScatterOptions options;
    options.reduceOp = prepare(input, op);
    options.timeout = timeout_;
    return pending(backend_->_reduce_scatter_base(output, input, options));
  }
  std::unique_ptr<Pending> all_gather(at::Tensor output, at::Tensor input) override {
    c10d::AllgatherOptions options;
    options.timeout = timeout_;
    return pending(backend_->_allgather_base(output, input, options));
  }
  std::unique_ptr<Pending> broadcast(at::Tensor tensor, int64_t root) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout_;
    std::vector<at::Tensor> tensors = {tensor};
    return pending(backend_->broadcast(tensors, options));
  }
  std::unique_ptr<Pending> barrier() override {
    c10d::BarrierOptions options;
    options.timeout = timeout_;
    return pending(backend_->barrier(options));
  }
  void abort() override { backend_->abort(); }

 private:
  static std::unique_ptr<Pending> pending(c10::intrusive_ptr<c10d::Work> work) {
    return std::make_unique<C10dPending>(std::move(work));
  }
  c10d::ReduceOp prepare(at::Tensor& input, ReduceOp op) const {
    if (op == ReduceOp::kMax) return c10d::ReduceOp::MAX;
    if (op == ReduceOp::kSum) return c10d::ReduceOp::SUM;
    if (mean_) return c10d::ReduceOp::AVG;
    input.div_(static_cast<double>(world_size()));
    return c10d::ReduceOp::SUM;
  }

  std::string name_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  bool mean_;
  std::chrono::milliseconds timeout_;
};

c10::intrusive_ptr<c10d::Store> group_store(KeyStore& store, const BackendOptions& options) {
  auto* tcp = dynamic_cast<TcpKeyStore*>(&store);
  LS_CHECK(tcp != nullptr, InternalError, "group '{}': the store is not open_store()'s",
           options.group);
  return c10::make_intrusive<c10d::PrefixStore>("group/" + options.group, tcp->store());
}

// This host's address on the way to the master: what the peers reach us by. Names of hosts would
// have to resolve the same way everywhere, and they do not in containers and name spaces.
std::string address_towards(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), fmt::format("{}", port).c_str(), &hints, &found);
      error != 0) {
    throw PeerError(fmt::format("MASTER_ADDR={}: {}", host, gai_strerror(error)));
  }
  std::string address;
  for (const addrinfo* at = found; at != nullptr && address.empty(); at = at->ai_next) {
    const int fd = socket(at->ai_family, at->ai_socktype, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    char text[NI_MAXHOST];
    // Connecting a datagram socket sends nothing; it only asks for the route.
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      address = text;
    }
    close(fd);
  }
  freeaddrinfo(found);
  LS_CHECK(!address.empty(), PeerError, "MASTER_ADDR={}: no route to that host", host);
  return address;
}

}  // namespace

std::unique_ptr<KeyStore> open_store(const StoreAddress& address) {
  // What fails here comes back as an exception and reaches the user as one message; the library
  // would print its frames besides. Whoever wants them asks with the library's own variable.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  c10d::TCPStoreOptions options;
  options.port = address.port;
  options.isServer = address.serve;
  options.waitWorkers = false;  // our own handshake tells who is missing
  options.timeout = milliseconds(address.timeout_s);
  auto tcp = c10::make_intrusive<c10d::TCPStore>(address.host, options);
  return std::make_unique<TcpKeyStore>(
      c10::make_intrusive<c10d::PrefixStore>(address.prefix, std::move(tcp)), address.timeout_s);
}

bool accepts_connections(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), fmt::format("{}", port).c_str(), &hints, &found) != 0) return false;
  bool accepted = false;
  for (const addrinfo* at = found; at != nullptr && !accepted; at = at->ai_next) {
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    accepted = connect(fd, at->ai_addr, at->ai_addrlen) == 0;
    pollfd waiting{fd, POLLOUT, 0};
    if (!accepted && errno == EINPROGRESS && poll(&waiting, 1, 1000) == 1) {
      int error = 0;
      socklen_t size = sizeof(error);
      accepted = getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
    }
    close(fd);
  }
  freeaddrinfo(found);
  return accepted;
}

std::unique_ptr<Transport> make_gloo_transport(KeyStore& store, const BackendOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(milliseconds(options.setup_timeout_s));
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  gloo->devices.push_back(interface != nullptr && *interface != '\0'
                              ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                              : c10d::ProcessGroupGloo::createDeviceForHostname(
                                    address_towards(options.master_host, options.master_port)));
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
      group_store(store, options), static_cast<int>(options.rank),
      static_cast<int>(options.world_size), gloo);
  return std::make_unique<C10dTransport>("gloo", std::move(backend), /*mean=*/false,
                                         options.timeout_s);
}

#ifdef LS_CUDA_ENABLED
std::unique_ptr<Transport> make_nccl_transport(KeyStore& store, const BackendOptions& options) {
  auto nccl = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  // Whoever waits for the device gives up after timeout_s with a message; the library's own
  // watchdog, which ends the process without one, is the last resort.
  nccl->timeout = milliseconds(options.timeout_s + 60);
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      group_store(store, options), static_cast<int>(options.rank),
      static_cast<int>(options.world_size), nccl);
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(options.device_index));
  backend->setBoundDeviceId(device);
  backend->eagerConnectSingleDevice(device);
  return std::make_unique<C10dTransport>("nccl", std::move(backend), /*mean=*/true,
                                         options.timeout_s);
}
#else
std::unique_ptr<Transport> make_nccl_transport(KeyStore&, const BackendOptions&) {
  throw DeviceError(
      "this build has no CUDA, so several CUDA devices cannot work together; build with nvcc, or "
      "set train.device=cpu");
}
#endif

}  // namespace longship::dist
