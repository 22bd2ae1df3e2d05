#pragma once
// Memory of the GPUs of one host that every rank of a group can read: how it is agreed on, opened
// and found again. CUDA builds only.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dist/store.h"
#include "ops/meet.h"

namespace longship::dist {

class PeerMemory {
 public:
  /// Opens a page of memory between the ranks and tries it: every rank reads what the others wrote,
  /// and they meet on the device (ops/meet.h). Null, with the reason in `why_not`, the same on
  /// every rank, where any rank cannot: more ranks than GPUs can meet, several hosts, no peer
  /// access, a CUDA call that failed. Throws what the store throws. Collective.
  static std::unique_ptr<PeerMemory> open(KeyStore& store, const BackendOptions& options,
                                          std::string& why_not);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// Lets all ranks read these tensors, while they live: contiguous, in the allocator's memory, of
  /// the same sizes in the same order on every rank. All or none of them: "" or the reason why not,
  /// the same on every rank. Forgets what has died. Throws InternalError while a graph is captured.
  /// Collective.
  std::string share(std::vector<at::Tensor> tensors);

  /// Where the bytes of a contiguous tensor that lies in a shared one are on every rank, by rank;
  /// empty where it lies in none. Symmetric as long as the ranks run the same program.
  std::vector<char*> find(const at::Tensor& tensor) const;

  const ops::MeetingPlace& place() const { return place_; }
  at::Device device() const { return device_; }
  /// Ends meetings under way and all later ones. Thread-safe.
  void stop() noexcept;
  bool stopped() const;
  /// The rank that a meeting has waited for in vain; -1: none.
  int64_t lost_rank() const;

 private:
  PeerMemory(KeyStore& store, const BackendOptions& options);
  std::vector<std::string> exchange(const std::string& what, const std::string& text);
  std::string agree(const std::string& what, const std::string& fault);
  void make_page();
  std::string own_facts();
  std::string open_pages(const std::vector<std::string>& facts);
  void write_pattern() const;
  void try_page();
  std::string describe(const std::vector<at::Tensor>& tensors) const;

  struct Shared {
    size_t bytes = 0;
    c10::weak_intrusive_ptr<c10::StorageImpl> owner;
    std::vector<std::shared_ptr<void>> segments;  // by rank, mapped; null for this rank
    std::vector<char*> at;                        // by rank
  };
  std::map<uintptr_t, Shared> open_shared(const std::vector<at::Tensor>& tensors,
                                          const std::vector<std::string>& texts) const;

  KeyStore& store_;
  BackendOptions options_;
  at::Device device_;
  int64_t num_shares_ = 0;
  std::map<uintptr_t, Shared> shared_;  // by own address
  char* page_ = nullptr;
  std::vector<char*> pages_;   // by rank
  uint64_t* words_ = nullptr;  // of the host: stop, failed
  ops::MeetingPlace place_;
};

}  // namespace longship::dist
