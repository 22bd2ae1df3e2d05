#include "runtime/speed_of_light.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"

namespace longship::runtime {
namespace {

// NVIDIA data sheets, dense rates. The first part that the device's name contains wins.
constexpr std::array<DeviceCeilings, 5> kCeilings = {{
    {"H200", 989.5, 1979.0, 4.8},
    {"GH200", 989.5, 1979.0, 4.0},
    {"H100 PCIe", 756.0, 1513.0, 2.0},
    {"H100", 989.5, 1979.0, 3.35},
    {"A100", 312.0, 0.0, 2.0},
}};

double interpolate(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

std::optional<DeviceCeilings> device_ceilings(std::string_view device_name) {
  // "GH200" contains "H200" but has its own row: the longest part that fits is the right one.
  const DeviceCeilings* best = nullptr;
  for (const DeviceCeilings& row : kCeilings) {
    const bool fits = device_name.find(row.name) != std::string_view::npos;
    if (fits && (best == nullptr || row.name.size() > best->name.size())) best = &row;
  }
  return best == nullptr ? std::nullopt : std::optional(*best);
}

double flops_utilisation(double flops_per_sample, double samples_per_s, double peak_tflops) {
  return peak_tflops > 0 ? flops_per_sample * samples_per_s / (peak_tflops * 1e12) : 0.0;
}

Utilisation utilisation(double reference_flops_per_sample, double executed_flops_per_sample,
                        double samples_per_s, double peak_tflops) {
  Utilisation u;
  u.reference_mfu = flops_utilisation(reference_flops_per_sample, samples_per_s, peak_tflops);
  u.hardware_mfu = flops_utilisation(executed_flops_per_sample, samples_per_s, peak_tflops);
  u.executed_tflops = executed_flops_per_sample * samples_per_s / 1e12;
  return u;
}

double percentile(std::vector<double> values, double q) {
  LS_CHECK(!values.empty() && q >= 0 && q <= 1, InternalError,
           "percentile {} of {} values does not exist", q, values.size());
  std::sort(values.begin(), values.end());
  return interpolate(values, q);
}

Percentiles percentiles(std::vector<double> values) {
  Percentiles p;
  if (values.empty()) return p;
  std::sort(values.begin(), values.end());
  p.count = static_cast<int64_t>(values.size());
  p.median = interpolate(values, 0.5);
  p.p10 = interpolate(values, 0.1);
  p.p90 = interpolate(values, 0.9);
  p.min = values.front();
  p.max = values.back();
  p.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(p.count);
  return p;
}

nlohmann::json percentiles_json(const Percentiles& p) {
  return {{"median", rounded(p.median)},
          {"p10", rounded(p.p10)},
          {"p90", rounded(p.p90)},
          {"min", rounded(p.min)},
          {"max", rounded(p.max)},
          {"mean", rounded(p.mean)},
          {"count", p.count}};
}

double rounded(double value) {
  return std::isfinite(value) ? std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr) : value;
}

}  // namespace longship::runtime
