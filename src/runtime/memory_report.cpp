#include "runtime/memory_report.h"

#include <fmt/core.h>

#ifdef LS_CUDA_ENABLED
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/strings.h"

namespace longship::runtime {
namespace {

/// Byte ranges of one device that were counted already. Ranges instead of storage objects, because
/// two storages may cover the same memory (slices of one flat buffer).
class CountedRanges {
 public:
  /// Marks [begin, end) and returns how many of its bytes are new.
  int64_t add(uintptr_t begin, uintptr_t end) {
    auto next = ranges_.upper_bound(begin);
    if (next != ranges_.begin() && std::prev(next)->second >= begin) --next;
    int64_t known = 0;
    uintptr_t merged_begin = begin, merged_end = end;
    while (next != ranges_.end() && next->first <= end) {
      const uintptr_t from = std::max(begin, next->first), to = std::min(end, next->second);
      if (to > from) known += static_cast<int64_t>(to - from);
      merged_begin = std::min(merged_begin, next->first);
      merged_end = std::max(merged_end, next->second);
      next = ranges_.erase(next);
    }
    ranges_[merged_begin] = merged_end;
    return static_cast<int64_t>(end - begin) - known;
  }

 private:
  std::map<uintptr_t, uintptr_t> ranges_;  // begin -> end, disjoint
};

class StorageCounter {
 public:
  int64_t new_bytes(const at::Tensor& tensor) {
    if (!tensor.has_storage()) return 0;
    const c10::Storage& storage = tensor.storage();
    const auto num_bytes = storage.nbytes();
    if (num_bytes == 0) return 0;
    const void* data = storage.data();
    if (data == nullptr) {  // meta tensors: only the object tells
      return fake_.insert(storage.unsafeGetStorageImpl()).second ? static_cast<int64_t>(num_bytes)
                                                                 : 0;
    }
    const auto begin = reinterpret_cast<uintptr_t>(data);
    return ranges_[tensor.device().str()].add(begin, begin + num_bytes);
  }

 private:
  std::map<std::string, CountedRanges> ranges_;
  std::set<const void*> fake_;
};

bool same_device(c10::Device a, c10::Device b) {
  return a.type() == b.type() && (!a.has_index() || !b.has_index() || a.index() == b.index());
}

std::string gib(int64_t bytes) {
  return fmt::format("{:.3f}", static_cast<double>(bytes) / (int64_t{1} << 30));
}

}  // namespace

#ifdef LS_CUDA_ENABLED
std::optional<AllocatorMemory> allocator_memory(c10::Device device) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  if (!device.is_cuda()) return std::nullopt;
  const c10::DeviceIndex index = device.has_index() ? device.index() : c10::DeviceIndex{0};
  AllocatorMemory memory;
  const auto stats = allocator::getDeviceStats(index);
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  memory.allocated = stats.allocated_bytes[all].current;
  memory.allocated_peak = stats.allocated_bytes[all].peak;
  memory.reserved = stats.reserved_bytes[all].current;
  memory.reserved_peak = stats.reserved_bytes[all].peak;
  memory.allocation_retries = stats.num_alloc_retries;
  memory.out_of_memory = stats.num_ooms;
  std::set<std::pair<uint64_t, uint64_t>> pools;
  for (const auto& segment : allocator::snapshot({0, 0}, false).segments) {
    const auto [pool_a, pool_b] = segment.owner_private_pool_id;
    if (segment.device != index || (pool_a == 0 && pool_b == 0)) continue;
    pools.insert({pool_a, pool_b});
    memory.graph_pool_reserved += static_cast<int64_t>(segment.total_size);
    memory.graph_pool_idle += static_cast<int64_t>(segment.total_size - segment.active_size);
  }
  memory.graph_pools = static_cast<int64_t>(pools.size());
  const auto [free_bytes, total_bytes] = allocator::get()->getMemoryInfo(index);
  memory.device_free = static_cast<int64_t>(free_bytes);
  memory.device_total = static_cast<int64_t>(total_bytes);
  return memory;
}

void reset_peak_memory(c10::Device device) {
  if (!device.is_cuda()) return;
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // the allocator has no device before
  c10::cuda::CUDACachingAllocator::resetPeakStats(device.has_index() ? device.index()
                                                                     : c10::DeviceIndex{0});
}
#else
std::optional<AllocatorMemory> allocator_memory(c10::Device) {
  return std::nullopt;
}

void reset_peak_memory(c10::Device) {}
#endif

MemoryReport memory_report(std::span<const TensorGroup> groups, c10::Device device) {
  MemoryReport report;
  StorageCounter counter;
  for (const TensorGroup& group : groups) {
    MemoryComponent component;
    component.name = group.name;
    for (const at::Tensor& tensor : group.tensors) {
      if (!tensor.defined()) continue;
      const int64_t bytes = counter.new_bytes(tensor);
      (same_device(tensor.device(), device) ? component.bytes : component.host_bytes) += bytes;
    }
    report.named_bytes += component.bytes;
    report.components.push_back(std::move(component));
  }
  report.allocator = allocator_memory(device);
  if (report.allocator.has_value()) {
    report.activations_peak =
        std::max<int64_t>(0, report.allocator->allocated_peak - report.named_bytes);
  }
  return report;
}

nlohmann::json memory_report_json(const MemoryReport& report) {
  nlohmann::json components = nlohmann::json::object(), host = nlohmann::json::object();
  for (const MemoryComponent& c : report.components) {
    components[c.name] = c.bytes;
    if (c.host_bytes > 0) host[c.name] = c.host_bytes;
  }
  nlohmann::json json = {{"unit", "bytes"},
                         {"components", components},
                         {"host", host},
                         {"named", report.named_bytes},
                         {"activations_peak", report.activations_peak},
                         {"allocator", nullptr}};
  if (report.allocator.has_value()) {
    const AllocatorMemory& a = *report.allocator;
    json["allocator"] = {{"allocated", a.allocated},
                         {"allocated_peak", a.allocated_peak},
                         {"reserved", a.reserved},
                         {"reserved_peak", a.reserved_peak},
                         {"graph_pool_reserved", a.graph_pool_reserved},
                         {"graph_pool_idle", a.graph_pool_idle},
                         {"device_total", a.device_total},
                         {"device_free", a.device_free}};
    json["graph_pools"] = a.graph_pools;
    json["allocation_retries"] = a.allocation_retries;
    json["out_of_memory"] = a.out_of_memory;
  }
  return json;
}

std::string memory_report_text(const MemoryReport& report) {
  std::string text = fmt::format("{:<24} {:>10}\n", "memory", "GiB");
  for (const MemoryComponent& c : report.components) {
    text += fmt::format("  {:<22} {:>10}", c.name, gib(c.bytes));
    if (c.host_bytes > 0)
      text += fmt::format("  (+ {} elsewhere)", human_bytes(static_cast<uint64_t>(c.host_bytes)));
    text += "\n";
  }
  const auto row = [&text](const char* name, int64_t bytes) {
    text += fmt::format("  {:<22} {:>10}\n", name, gib(bytes));
  };
  row("named, together", report.named_bytes);
  if (report.allocator.has_value()) {
    const AllocatorMemory& a = *report.allocator;
    row("activations, peak", report.activations_peak);
    row("allocated, peak", a.allocated_peak);
    row("reserved, peak", a.reserved_peak);
    row("graph pools, reserved", a.graph_pool_reserved);
    row("device, free", a.device_free);
    row("device, total", a.device_total);
  }
  return text;
}

}  // namespace longship::runtime
