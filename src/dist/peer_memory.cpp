#include "dist/peer_memory.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/strings.h"

namespace longship::dist {
namespace {

// The page: places of the meetings, then a pattern that the peers read, then room to read into. One
// granule of the driver, so that nothing of others is shared with it.
constexpr size_t kPageBytes = 2 << 20;
constexpr size_t kCountAt = 1024, kPatternAt = 4096, kPatternBytes = 64 << 10, kReadAt = 512 << 10;
constexpr double kTryTimeout = 10;

// Parts of a rank's facts.
enum Fact : size_t { kHost, kHostName, kBus, kHandle, kFault, kNumFacts };

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it is told here, not by the next call
  throw DeviceError(fmt::format("{}: {}", call, cudaGetErrorString(status)));
}

std::string hex_of(const void* data, size_t size) {
  std::string out;
  for (size_t i = 0; i < size; ++i) {
    out += fmt::format("{:02x}", static_cast<const unsigned char*>(data)[i]);
  }
  return out;
}

std::string bytes_of(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

// The kernel's number of this boot: equal in all containers of a host, and only there.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::string one_line(const char* text) {
  const std::string all = text;
  return all.substr(0, all.find('\n'));
}

std::string pattern_of(int64_t rank) {
  std::string out(kPatternBytes, '\0');
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<char>((i * 131 + static_cast<size_t>(rank) * 29 + 7) % 251);
  }
  return out;
}

// "" or what `work` threw: a rank that cannot go on still has to say so to the others.
template <class Work>
std::string fault_of(Work&& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return one_line(error.what());
  }
  return "";
}

}  // namespace

PeerMemory::PeerMemory(KeyStore& store, const BackendOptions& options)
    : store_(store),
      options_(options),
      device_(at::kCUDA, static_cast<c10::DeviceIndex>(options.device_index)) {
  pages_.resize(static_cast<size_t>(options.world_size), nullptr);
}

PeerMemory::~PeerMemory() {
  stop();
  const c10::cuda::CUDAGuard guard(device_);
  // Whoever still runs on the device ends now; errors of a device that is lost have been told.
  cudaDeviceSynchronize();
  shared_.clear();
  for (char* page : pages_) {
    if (page != nullptr && page != page_) cudaIpcCloseMemHandle(page);
  }
  if (page_ != nullptr) cudaFree(page_);
  if (words_ != nullptr) cudaFreeHost(words_);
  cudaGetLastError();
}

// The texts of all ranks, by rank.
std::vector<std::string> PeerMemory::exchange(const std::string& what, const std::string& text) {
  const auto key = [&](int64_t rank) {
    return fmt::format("peer/{}/{}/{}", options_.group, what, rank);
  };
  store_.set(key(options_.rank), text);
  std::vector<std::string> out;
  for (int64_t r = 0; r < options_.world_size; ++r) {
    out.push_back(r == options_.rank ? text : store_.get(key(r)));
  }
  return out;
}

// "" where no rank has a fault.
std::string PeerMemory::agree(const std::string& what, const std::string& fault) {
  const std::vector<std::string> faults = exchange(what, fault);
  for (size_t r = 0; r < faults.size(); ++r) {
    if (!faults[r].empty()) return fmt::format("rank {} of the group: {}", r, faults[r]);
  }
  return "";
}

void PeerMemory::make_page() {
  void* page = nullptr;
  check(cudaMalloc(&page, kPageBytes), "cudaMalloc");
  page_ = static_cast<char*>(page);
  check(cudaMemset(page_, 0, kPageBytes), "cudaMemset");
  void* words = nullptr;
  check(cudaHostAlloc(&words, 2 * sizeof(uint64_t), cudaHostAllocMapped | cudaHostAllocPortable),
        "cudaHostAlloc");
  words_ = static_cast<uint64_t*>(words);
  words_[0] = words_[1] = 0;
  void *stop_word = nullptr, *failed_word = nullptr;
  check(cudaHostGetDevicePointer(&stop_word, words_, 0), "cudaHostGetDevicePointer");
  check(cudaHostGetDevicePointer(&failed_word, words_ + 1, 0), "cudaHostGetDevicePointer");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  place_.rank = options_.rank;
  place_.world_size = options_.world_size;
  place_.arrived = reinterpret_cast<uint64_t*>(page_);
  place_.count = reinterpret_cast<uint64_t*>(page_ + kCountAt);
  place_.stop = static_cast<uint32_t*>(stop_word);
  place_.failed = static_cast<uint64_t*>(failed_word);
}

std::string PeerMemory::own_facts() {
  std::array<std::string, kNumFacts> facts;
  facts[kHost] = boot_id();
  facts[kHostName] = host_name();
  facts[kFault] = fault_of([&] {
    char bus[32] = {};
    check(cudaDeviceGetPCIBusId(bus, sizeof(bus), static_cast<int>(options_.device_index)),
          "cudaDeviceGetPCIBusId");
    facts[kBus] = bus;
    make_page();
    cudaIpcMemHandle_t handle{};
    check(cudaIpcGetMemHandle(&handle, page_), "cudaIpcGetMemHandle");
    facts[kHandle] = hex_of(&handle, sizeof(handle));
  });
  return join({facts.begin(), facts.end()}, "\n");
}

// "" or why the ranks cannot share memory, from facts that all have alike.
std::string not_one_host(const std::vector<std::vector<std::string>>& facts) {
  std::set<std::string> hosts, devices;
  for (size_t r = 0; r < facts.size(); ++r) {
    if (!facts[r][kFault].empty()) {
      return fmt::format("rank {} of the group: {}", r, facts[r][kFault]);
    }
    hosts.insert(facts[r][kHost]);
    if (!devices.insert(facts[r][kBus]).second) {
      return fmt::format("rank {} of the group has the GPU {} of another", r, facts[r][kBus]);
    }
  }
  if (hosts.size() == 1) return "";
  return fmt::format("the ranks are on {} hosts ({} and others)", hosts.size(),
                     facts.front()[kHostName]);
}

std::string PeerMemory::open_pages(const std::vector<std::string>& all) {
  std::vector<std::vector<std::string>> facts;
  for (const std::string& text : all) {
    facts.push_back(split(text, '\n'));
    facts.back().resize(kNumFacts);
  }
  if (const std::string reason = not_one_host(facts); !reason.empty()) return reason;
  return agree(
      "open", fault_of([&] {
        for (int64_t r = 0; r < options_.world_size; ++r) {
          const std::vector<std::string>& peer = facts[static_cast<size_t>(r)];
          char*& page = pages_[static_cast<size_t>(r)];
          if (r == options_.rank) {
            page = page_;
            continue;
          }
          int index = -1, can = 0;
          check(cudaDeviceGetByPCIBusId(&index, peer[kBus].c_str()),
                fmt::format("cudaDeviceGetByPCIBusId({}, the GPU of rank {})", peer[kBus], r)
                    .c_str());
          check(cudaDeviceCanAccessPeer(&can, static_cast<int>(options_.device_index), index),
                "cudaDeviceCanAccessPeer");
          LS_CHECK(can != 0, DeviceError, "no peer access from its GPU to {} of rank {}",
                   peer[kBus], r);
          const std::string bytes = bytes_of(peer[kHandle]);
          cudaIpcMemHandle_t handle{};
          std::memcpy(&handle, bytes.data(), std::min(bytes.size(), sizeof(handle)));
          void* opened = nullptr;
          check(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess),
                fmt::format("cudaIpcOpenMemHandle(rank {})", r).c_str());
          page = static_cast<char*>(opened);
          place_.others[static_cast<size_t>(r)] = reinterpret_cast<uint64_t*>(page);
        }
      }));
}

void PeerMemory::write_pattern() const {
  const std::string own = pattern_of(options_.rank);
  check(cudaMemcpy(page_ + kPatternAt, own.data(), own.size(), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

// Reads what the peers wrote and meets them: peer access that is refused somewhere below the driver
// shows as wrong bytes, or as words that never come.
void PeerMemory::try_page() {
  for (int64_t r = 0; r < options_.world_size; ++r) {
    if (r == options_.rank) continue;
    std::string read(kPatternBytes, '\0');
    check(cudaMemcpy(page_ + kReadAt, pages_[static_cast<size_t>(r)] + kPatternAt, kPatternBytes,
                     cudaMemcpyDeviceToDevice),
          "cudaMemcpy between GPUs");
    check(cudaMemcpy(read.data(), page_ + kReadAt, kPatternBytes, cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    LS_CHECK(read == pattern_of(r), DeviceError,
             "the memory of rank {} reads wrong: peer access does not work on this host", r);
  }
  ops::MeetingPlace trial = place_;
  trial.timeout_s = kTryTimeout;
  trial.trap = false;
  ops::meet(trial, device_);
  ops::meet(trial, device_);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize after a meeting");
  LS_CHECK(lost_rank() < 0, DeviceError, "the word of rank {} did not come within {:g} s",
           lost_rank(), kTryTimeout);
}

std::unique_ptr<PeerMemory> PeerMemory::open(KeyStore& store, const BackendOptions& options,
                                             std::string& why_not) {
  if (options.world_size > ops::MeetingPlace::kMaxRanks) {
    why_not =
        fmt::format("{} ranks, at most {} meet", options.world_size, ops::MeetingPlace::kMaxRanks);
    return nullptr;
  }
  std::unique_ptr<PeerMemory> memory(new PeerMemory(store, options));
  const c10::cuda::CUDAGuard guard(memory->device_);
  memory->place_.timeout_s = options.timeout_s + 60;
  why_not = memory->open_pages(memory->exchange("facts", memory->own_facts()));
  if (why_not.empty()) why_not = memory->agree("write", fault_of([&] { memory->write_pattern(); }));
  if (why_not.empty()) why_not = memory->agree("try", fault_of([&] { memory->try_page(); }));
  if (!why_not.empty()) {
    // Nobody frees a page that others are still closing.
    memory->exchange("close", "");
    return nullptr;
  }
  return memory;
}

// A tensor a line: bytes, offset in the segment, the segment's handle.
std::string PeerMemory::describe(const std::vector<at::Tensor>& tensors) const {
  std::string out;
  for (const at::Tensor& tensor : tensors) {
    LS_CHECK(tensor.device() == device_ && tensor.is_contiguous(), InternalError,
             "a tensor of {} elements on {} is to be shared by {}", tensor.numel(),
             tensor.device().str(), device_.str());
    char* storage = static_cast<char*>(tensor.storage().mutable_data());
    const auto handle = c10::cuda::CUDACachingAllocator::shareIpcHandle(storage);
    const int64_t offset =
        handle.offset + (static_cast<const char*>(tensor.const_data_ptr()) - storage);
    out += fmt::format("{} {} {}\n", tensor.nbytes(), offset,
                       hex_of(handle.handle.data(), handle.handle.size()));
  }
  return out;
}

std::map<uintptr_t, PeerMemory::Shared> PeerMemory::open_shared(
    const std::vector<at::Tensor>& tensors, const std::vector<std::string>& texts) const {
  std::vector<std::vector<std::string>> lines;
  for (const std::string& text : texts) {
    lines.push_back(split(text, '\n'));
    LS_CHECK(lines.back().size() == tensors.size() + 1, InternalError,
             "rank {} shares {} tensors, rank {} of the group {}", options_.rank, tensors.size(),
             lines.size() - 1, lines.back().size() - 1);
  }
  std::map<uintptr_t, Shared> out;
  for (size_t i = 0; i < tensors.size(); ++i) {
    char* own = static_cast<char*>(tensors[i].data_ptr());
    Shared entry{tensors[i].nbytes(), tensors[i].storage().getWeakStorageImpl(), {}, {}};
    for (size_t r = 0; r < lines.size(); ++r) {
      if (static_cast<int64_t>(r) == options_.rank) {
        entry.at.push_back(own);
        continue;
      }
      const std::vector<std::string> parts = split(lines[r][i], ' ');
      LS_CHECK(parts.size() == 3 && parts[0] == std::to_string(entry.bytes), InternalError,
               "tensor {} to share has {} bytes on rank {} and {} on rank {} of the group", i,
               entry.bytes, options_.rank, parts[0], r);
      entry.segments.push_back(c10::cuda::CUDACachingAllocator::getIpcDevPtr(bytes_of(parts[2])));
      entry.at.push_back(static_cast<char*>(entry.segments.back().get()) + std::stoll(parts[1]));
    }
    out.emplace(reinterpret_cast<uintptr_t>(own), std::move(entry));
  }
  return out;
}

std::string PeerMemory::share(std::vector<at::Tensor> tensors) {
  const c10::cuda::CUDAGuard guard(device_);
  LS_CHECK(c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None,
           InternalError,
           "{} tensors are to be shared between GPUs while a graph is captured; share them before",
           tensors.size());
  std::erase_if(tensors, [](const at::Tensor& tensor) { return tensor.numel() == 0; });
  std::erase_if(shared_, [](const auto& entry) { return entry.second.owner.expired(); });
  const std::string name = fmt::format("share{}", num_shares_++);
  std::string own;
  const std::string fault = fault_of([&] { own = describe(tensors); });
  const std::vector<std::string> texts = exchange(name, own);
  if (std::string reason = agree(name + "/own", fault); !reason.empty()) return reason;
  std::map<uintptr_t, Shared> opened;
  std::string reason =
      agree(name + "/open", fault_of([&] { opened = open_shared(tensors, texts); }));
  if (reason.empty()) shared_.merge(opened);
  return reason;
}

std::vector<char*> PeerMemory::find(const at::Tensor& tensor) const {
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  auto found = shared_.upper_bound(address);
  if (found == shared_.begin()) return {};
  --found;
  const Shared& entry = found->second;
  const size_t offset = address - found->first;
  if (offset + tensor.nbytes() > entry.bytes || entry.owner.expired()) return {};
  std::vector<char*> out = entry.at;
  for (char*& at : out) at += offset;
  return out;
}

void PeerMemory::stop() noexcept {
  if (words_ != nullptr) __atomic_store_n(words_, uint64_t{1}, __ATOMIC_SEQ_CST);
}

bool PeerMemory::stopped() const {
  return words_ != nullptr && __atomic_load_n(words_, __ATOMIC_SEQ_CST) != 0;
}

int64_t PeerMemory::lost_rank() const {
  return static_cast<int64_t>(__atomic_load_n(words_ + 1, __ATOMIC_SEQ_CST)) - 1;
}

}  // namespace longship::dist
