#pragma once
// Where the memory of a device goes: bytes by named component, and what the caching allocator
// holds.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace longship::runtime {

/// A component of the report, e.g. {"exp_avg", ...}. Undefined tensors are left out.
struct TensorGroup {
  std::string name;
  std::vector<at::Tensor> tensors;
};

struct MemoryComponent {
  std::string name;
  int64_t bytes = 0;       // on the device of the report
  int64_t host_bytes = 0;  // on any other device, e.g. pinned staging buffers
};

/// State of the caching allocator. Peaks count from the last reset_peak_memory().
struct AllocatorMemory {
  int64_t allocated = 0, allocated_peak = 0;  // asked for by tensors
  int64_t reserved = 0, reserved_peak = 0;    // taken from the driver
  int64_t graph_pools = 0;                    // private pools of captured graphs
  int64_t graph_pool_reserved = 0;
  int64_t graph_pool_idle = 0;  // of it not held by a live tensor: what replays work in
  int64_t allocation_retries = 0, out_of_memory = 0;
  int64_t device_total = 0, device_free = 0;
};

struct MemoryReport {
  std::vector<MemoryComponent> components;
  int64_t named_bytes = 0;
  std::optional<AllocatorMemory> allocator;  // none on a CPU
  /// allocated_peak - named_bytes: activations, workspaces and whatever was not named. Memory of a
  /// graph is allocated only while it is captured, so the peak must not be reset after a capture.
  int64_t activations_peak = 0;
};

/// Bytes by group. Every byte counts once, for the first group that reaches it, however many views,
/// storages or groups share it; a view counts with its whole storage.
MemoryReport memory_report(std::span<const TensorGroup> groups, c10::Device device);

/// nullopt for a device without a caching allocator.
std::optional<AllocatorMemory> allocator_memory(c10::Device device);
/// Peaks start anew from what is allocated now. Nothing on a CPU.
void reset_peak_memory(c10::Device device);

/// {"unit": "bytes", "components": {name: n}, "host": {name: n}, "named", "activations_peak",
/// "allocator": {"allocated", "allocated_peak", "reserved", "reserved_peak", ...} or null}, and
/// counts beside it where there is an allocator.
nlohmann::json memory_report_json(const MemoryReport& report);
/// A table for a person.
std::string memory_report_text(const MemoryReport& report);

}  // namespace longship::runtime
