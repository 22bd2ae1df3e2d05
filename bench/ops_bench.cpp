#include "bench/ops_bench.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sum.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/strings.h"
#include "runtime/stream.h"

namespace longship::bench {
namespace {

constexpr int64_t kFlushBytes = int64_t{256} << 20;
constexpr int64_t kCopyBytes = int64_t{2} << 30;
constexpr int64_t kProductSize = 8192;

std::string first_line(const char* text) {
  return split(text, '\n').at(0).substr(0, 160);
}

std::optional<double> deviation_of(const OpBench& op) {
  if (!op.deviation) return std::nullopt;
  try {
    return op.deviation();
  } catch (const c10::Error&) {  // one side was refused, which its measurement will show
    return std::nullopt;
  }
}

}  // namespace

at::Tensor BenchContext::randn(std::vector<int64_t> sizes, at::ScalarType type, double std) const {
  // Drawn in fp32: not every type has a generator of its own.
  return at::randn(sizes, options(at::kFloat)).mul_(std).to(type);
}

std::function<void()> in_turn(std::vector<std::function<void()>> calls) {
  using Call = std::function<void()>;
  return rotate<Call>(std::move(calls), [](const Call& call) { call(); });
}

std::function<void()> deferred(std::function<std::function<void()>()> make) {
  return [make = std::move(make), call = std::function<void()>()]() mutable {
    if (!call) call = make();
    call();
  };
}

Timer::Timer(c10::Device device, TimerOptions options) : device_(device), options_(options) {
  if (device.is_cpu()) return;
  const auto bytes = at::TensorOptions().device(device).dtype(at::kFloat);
  write_ = at::ones({kFlushBytes / 4}, bytes);
  read_ = at::ones({kFlushBytes / 4}, bytes);
}

std::vector<double> Timer::measure_us(const std::function<void()>& run) {
  const c10::impl::VirtualGuardImpl device(device_.type());
  const c10::Stream stream = device.getStream(device_);
  for (int i = 0; i < options_.warm_up; ++i) run();
  std::vector<std::pair<c10::Event, c10::Event>> events;
  for (int i = 0; i < options_.repeats; ++i) {
    events.emplace_back(c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT),
                        c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT));
  }
  for (int i = 0; i < options_.repeats; ++i) {
    write_.fill_(i);
    read_.sum();
    events[static_cast<size_t>(i)].first.record(stream);
    run();
    events[static_cast<size_t>(i)].second.record(stream);
  }
  std::vector<double> us;
  for (const auto& [begin, end] : events) {
    end.synchronize();
    us.push_back(begin.elapsedTime(end) * 1e3);
  }
  return us;
}

MeasuredCeilings measure_ceilings(const BenchContext& context, Timer& timer) {
  const at::NoGradGuard no_grad;
  MeasuredCeilings ceilings;
  {
    const at::Tensor from = context.randn({kCopyBytes / 4}, at::kFloat);
    const at::Tensor to = at::empty_like(from);
    const double us = runtime::percentile(timer.measure_us([&] { to.copy_(from); }), 0.5);
    ceilings.copy_gb_s = 2.0 * kCopyBytes / us / 1e3;
  }
  const double flops = 2.0 * kProductSize * kProductSize * kProductSize;
  const at::Tensor a = context.randn({kProductSize, kProductSize});
  const at::Tensor b = context.randn({kProductSize, kProductSize});
  ceilings.bf16_tflops =
      flops / runtime::percentile(timer.measure_us([&] { at::mm(a, b.t()); }), 0.5) / 1e6;
  try {
    const at::Tensor one = at::ones({}, context.options(at::kFloat));
    const at::Tensor a8 = a.to(at::kFloat8_e4m3fn), b8 = b.to(at::kFloat8_e4m3fn);
    const auto product = [&] {
      at::_scaled_mm(a8, b8.t(), one, one, {}, {}, at::kBFloat16, /*use_fast_accum=*/true);
    };
    ceilings.fp8_tflops = flops / runtime::percentile(timer.measure_us(product), 0.5) / 1e6;
  } catch (const c10::Error&) {  // a device without FP8 units has no such ceiling
    ceilings.fp8_tflops = 0;
  }
  return ceilings;
}

void derive_figures(OpResult& result, bool fp8, const MeasuredCeilings& ceilings) {
  const double us = result.us.median;
  if (us <= 0) return;
  result.gb_s = result.bytes / us / 1e3;
  result.tflops = result.flops / us / 1e6;
  const double peak = fp8 ? ceilings.fp8_tflops : ceilings.bf16_tflops;
  const double memory = ceilings.copy_gb_s > 0 ? result.gb_s / ceilings.copy_gb_s : 0;
  const double compute = peak > 0 ? result.tflops / peak : 0;
  // The ceiling that binds is the one that comes nearer.
  result.bound = compute > memory ? "compute" : "memory";
  result.ceiling_percent = 100 * std::max(memory, compute);
  for (const LibraryResult& library : result.library) {
    if (!library.error.empty()) continue;
    const double ratio = library.us.median / us;
    result.library_ratio = std::min(ratio, result.library_ratio.value_or(ratio));
  }
}

OpResult measure_row(const OpRow& row, const BenchContext& context, Timer& timer,
                     const MeasuredCeilings& ceilings) {
  OpResult result;
  result.name = row.name;
  result.shape = row.shape;
  try {
    const OpBench op = row.make(context);
    result.bytes = op.bytes;
    result.flops = op.flops;
    result.deviation = deviation_of(op);
    LS_CHECK(result.deviation.value_or(0) <= op.max_deviation, InternalError,
             "the result deviates from the library's by {:.3g}", *result.deviation);
    result.us = runtime::percentiles(timer.measure_us(op.run));
    for (const auto& [name, call] : op.library) {
      LibraryResult& library = result.library.emplace_back();
      library.name = name;
      try {
        library.us = runtime::percentiles(timer.measure_us(call));
      } catch (const std::exception& e) {  // a library that refuses a shape is a result
        library.error = first_line(e.what());
      }
    }
    derive_figures(result, op.fp8, ceilings);
  } catch (const std::exception& e) {  // the other rows are still worth their time
    result.error = first_line(e.what());
  }
  runtime::release_cached_memory();
  return result;
}

std::string table_header() {
  return fmt::format("{:<26} {:<30} {:>10} {:>19} {:>8} {:>8} {:>6}  {}\n", "operator", "shape",
                     "us", "p10 .. p90", "GB/s", "TFLOP/s", "% max", "library us / ours");
}

std::string table_line(const OpResult& r) {
  if (!r.error.empty()) return fmt::format("{:<26} {:<30} FAILED: {}\n", r.name, r.shape, r.error);
  std::string line = fmt::format(
      "{:<26} {:<30} {:>10.1f} {:>8.1f} .. {:>7.1f} {:>8.0f} {:>8.1f} {:>6.1f} ", r.name, r.shape,
      r.us.median, r.us.p10, r.us.p90, r.gb_s, r.tflops, r.ceiling_percent);
  for (const LibraryResult& l : r.library) {
    line += l.error.empty()
                ? fmt::format(" {} {:.1f} ({:.2f})", l.name, l.us.median, l.us.median / r.us.median)
                : fmt::format(" {} refused: {}", l.name, l.error);
  }
  return line + "\n";
}

nlohmann::json ceilings_json(const MeasuredCeilings& c) {
  return {{"copy_gb_s", runtime::rounded(c.copy_gb_s)},
          {"bf16_tflops", runtime::rounded(c.bf16_tflops)},
          {"fp8_tflops", runtime::rounded(c.fp8_tflops)}};
}

nlohmann::json result_json(const OpResult& r) {
  nlohmann::json json = {{"name", r.name}, {"shape", r.shape}};
  if (!r.error.empty()) {
    json["error"] = r.error;
    return json;
  }
  nlohmann::json library = nlohmann::json::array();
  for (const LibraryResult& l : r.library) {
    if (l.error.empty()) {
      library.push_back({{"name", l.name},
                         {"us", percentiles_json(l.us)},
                         {"ratio", runtime::rounded(l.us.median / r.us.median)}});
    } else {
      library.push_back({{"name", l.name}, {"error", l.error}});
    }
  }
  json["bytes"] = r.bytes;
  json["flops"] = r.flops;
  json["us"] = percentiles_json(r.us);
  json["gb_s"] = runtime::rounded(r.gb_s);
  json["tflops"] = runtime::rounded(r.tflops);
  json["bound"] = r.bound;
  json["ceiling_percent"] = runtime::rounded(r.ceiling_percent);
  if (r.deviation.has_value()) json["deviation"] = runtime::rounded(*r.deviation);
  json["library"] = library;
  json["library_ratio"] =
      r.library_ratio.has_value() ? nlohmann::json(runtime::rounded(*r.library_ratio)) : nullptr;
  return json;
}

}  // namespace longship::bench
