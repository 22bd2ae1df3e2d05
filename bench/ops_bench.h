#pragma once
// Speed of single operators on the shapes of real models, against the best library call.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/speed_of_light.h"

namespace longship::bench {

/// One measurement: what must be moved and computed at least, ours, and what a library offers for
/// the same result. The functions only enqueue work on the current stream.
struct OpBench {
  double bytes = 0;  // every input read once, every output written once
  double flops = 0;  // multiply-add counts 2; 0 = bound by memory
  bool fp8 = false;  // the ceiling is the FP8 product
  std::function<void()> run;
  std::vector<std::pair<std::string, std::function<void()>>> library;
  /// Relative difference between our result and the library's; may be empty. Speed of a wrong
  /// result is worth nothing, so it is looked at before the clock starts.
  std::function<double()> deviation;
  double max_deviation = 0.03;
};

/// Where rows are made. The divisors shrink every row for a trial on a small machine: rows (tokens,
/// samples, parameters) and widths, which stay multiples of 16.
struct BenchContext {
  c10::Device device;
  int64_t row_divisor = 1;
  int64_t width_divisor = 1;

  int64_t rows(int64_t full) const { return full / row_divisor > 0 ? full / row_divisor : 1; }
  int64_t width(int64_t full) const {
    return width_divisor == 1 ? full : (full / width_divisor + 15) / 16 * 16;
  }
  /// Random normal values (not zeros: products run faster on zeros).
  at::Tensor randn(std::vector<int64_t> sizes, at::ScalarType type = at::kBFloat16,
                   double std = 1.0) const;
  at::TensorOptions options(at::ScalarType type) const {
    return at::TensorOptions().dtype(type).device(device);
  }
};

/// A row of the table. Its tensors exist only between make() and the end of its measurement.
struct OpRow {
  std::string name;
  std::string shape;
  std::function<OpBench(const BenchContext&)> make;
  bool gpu_only = false;  // uses library calls that a CPU does not have
};

/// The one list. Filled by a plain function per family.
std::vector<OpRow> all_op_rows();
/// Rows whose "name shape" contains every word of `filter`; all for "".
std::vector<OpRow> select_op_rows(const std::vector<OpRow>& rows, std::string_view filter);

/// A function that takes one of several input sets after the other, so that no call finds the
/// inputs of the one before in a cache.
template <class Set>
std::function<void()> rotate(std::vector<Set> sets, std::function<void(const Set&)> call) {
  return [sets = std::move(sets), call = std::move(call), next = size_t{0}]() mutable {
    call(sets[next]);
    next = (next + 1) % sets.size();
  };
}

/// The same for calls that hold their inputs themselves.
std::function<void()> in_turn(std::vector<std::function<void()>> calls);

/// A call that is made when it is used first (in the warm-up), so that what a library refuses
/// spoils only its own figure.
std::function<void()> deferred(std::function<std::function<void()>()> make);

struct TimerOptions {
  int warm_up = 10;
  int repeats = 50;
};

/// Microseconds of device time per call, each with a cold L2 cache. Before every call a buffer of
/// 256 MiB is written and another one read (so that the cache holds nothing of ours and nothing
/// that would have to be written back); that also gives the host time to enqueue the call.
class Timer {
 public:
  Timer(c10::Device device, TimerOptions options);
  std::vector<double> measure_us(const std::function<void()>& run);

 private:
  c10::Device device_;
  TimerOptions options_;
  at::Tensor write_, read_;
};

/// What this device reaches with the simplest work of each kind, measured in the same run.
struct MeasuredCeilings {
  double copy_gb_s = 0;    // copy of 2 GB on the device, bytes read + written
  double bf16_tflops = 0;  // 8192^3 product
  double fp8_tflops = 0;   // the same in FP8, one scale per tensor; 0 where refused
};
MeasuredCeilings measure_ceilings(const BenchContext& context, Timer& timer);

struct LibraryResult {
  std::string name;
  runtime::Percentiles us;
  std::string error;  // of a call that the library refused
};

struct OpResult {
  std::string name, shape;
  double bytes = 0, flops = 0;
  runtime::Percentiles us;
  double gb_s = 0, tflops = 0;
  double ceiling_percent = 0;       // of the ceiling that binds
  std::string bound;                // "memory" or "compute"
  std::optional<double> deviation;  // from the library's result
  std::vector<LibraryResult> library;
  std::optional<double> library_ratio;  // best library time / ours: above 1 we are faster
  std::string error;
};

OpResult measure_row(const OpRow& row, const BenchContext& context, Timer& timer,
                     const MeasuredCeilings& ceilings);
/// The derived figures of `result` from its times; apart so that it can be tested.
void derive_figures(OpResult& result, bool fp8, const MeasuredCeilings& ceilings);

std::string table_header();
std::string table_line(const OpResult& result);
nlohmann::json ceilings_json(const MeasuredCeilings& ceilings);
nlohmann::json result_json(const OpResult& result);

}  // namespace longship::bench
