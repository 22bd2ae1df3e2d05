#pragma once
// Where the time of a training step goes on the device: pure functions over device events.

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device_event.h"
#include "runtime/speed_of_light.h"

namespace longship::runtime {

enum class KernelCategory {
  kGemm,
  kAttention,
  kElementwise,
  kNorm,
  kOptimizer,
  kFp8Quantize,
  kCopy,
  kMemset,
  kReduction,
  kCommunication,
  kOther,
};
inline constexpr int kNumKernelCategories = 11;

/// "gemm", "attention", "elementwise", "norm", "optimizer", "fp8_quantize", "copy", "memset",
/// "reduction", "communication", "other".
std::string_view category_name(KernelCategory category);
/// By the words in a demangled kernel name; the first rule of the table that fits decides. Fills
/// count as memset and casts as copy, whoever wrote the kernel.
KernelCategory categorise_kernel(std::string_view name);
/// Copies and fills by their kind (copies between devices are communication), kernels by their
/// name.
KernelCategory categorise(const DeviceEvent& event);
/// A name for tables: no return type, no argument list, at most `max_length` characters.
std::string short_kernel_name(std::string_view name, size_t max_length = 140);

struct TraceSummaryOptions {
  double min_gap_us = 10;
  double short_launch_us = 20;
  int num_top_kernels = 20;
  int num_largest_gaps = 5;
};

/// The device had nothing to do from `at_ms` (since the first boundary) for `us`.
struct IdleGap {
  double us = 0;
  double at_ms = 0;
  std::string before;  // the kernel that ended last; "(begin)" at the first boundary
  std::string after;   // the kernel that came next; "(end)" at the last boundary
};

struct CategoryTime {
  double ms_per_step = 0;  // sum of durations: overlapping kernels count each
  double share = 0;        // of the sum over all categories
  double count_per_step = 0;
};

struct KernelTime {
  std::string name;
  KernelCategory category = KernelCategory::kOther;
  double count_per_step = 0;
  double ms_per_step = 0;
  double mean_us = 0;
};

/// All figures are per step unless the name says otherwise. An event belongs to the step in which
/// it begins; time that reaches over a boundary counts as busy where it is spent.
struct TraceSummary {
  int64_t num_steps = 0;
  Percentiles step_ms;  // boundary to boundary
  Percentiles busy_step_ms;
  double window_ms = 0;         // mean of a step
  double busy_ms = 0;           // union over all streams: work side by side counts once
  double busy_fraction = 0;     // busy_ms / window_ms
  double idle_us = 0;           // all of it, short gaps too
  double communication_ms = 0;  // union of communication kernels
  double exposed_ms = 0;        // of it, nothing else ran meanwhile
  double gap_count = 0;         // gaps of at least min_gap_us
  double gap_us = 0;
  std::vector<IdleGap> largest_gaps;  // over all steps
  double kernels = 0, memcpys = 0, memsets = 0;
  double host_launches = 0;   // launch calls on the host: a graph replay is one
  double graph_events = 0;    // kernels, copies and fills that came out of graph replays
  double short_launches = 0;  // events shorter than short_launch_us
  double short_launch_ms = 0;
  std::vector<CategoryTime> categories;  // in the order of KernelCategory
  std::vector<KernelTime> top_kernels;
  int64_t events_outside = 0;  // total that begin before the first or after the last boundary
  TraceSummaryOptions options;
};

/// Where each step begins on the device, from host times between the launches of two steps
/// (`host_marks_ns`, N + 1 of them): step i begins with the first kernel that was launched between
/// marks i and i + 1, and the last step ends with its last event. Copies do not open a step,
/// because a copy stream runs ahead. A step without kernels begins at its mark. Without marks: one
/// step from the first to the last event.
std::vector<int64_t> device_step_boundaries(std::span<const DeviceEvent> events,
                                            std::span<const int64_t> host_marks_ns);

/// `boundaries_ns`: N + 1 ascending times for N steps. Throws InternalError otherwise.
TraceSummary summarise_trace(std::span<const DeviceEvent> events,
                             std::span<const int64_t> boundaries_ns,
                             const TraceSummaryOptions& options = {});

nlohmann::json trace_summary_json(const TraceSummary& summary);
/// The same as a few lines for a person.
std::string trace_summary_text(const TraceSummary& summary);

}  // namespace longship::runtime
