#pragma once
// What a device could do at best, what share of it was reached, and the statistics of repeated
// measurements.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longship::runtime {

/// Data-sheet rates, dense (no sparsity). Measured ceilings are lower: `longship bench ops` prints
/// them for the GPU at hand.
struct DeviceCeilings {
  std::string_view name;   // a part of the name that the driver gives
  double bf16_tflops = 0;  // 1e12 operations per second, a multiply-add counts 2
  double fp8_tflops = 0;   // 0: no such units
  double memory_tb_s = 0;  // 1e12 bytes per second
};

/// nullopt for devices that are not in the table.
std::optional<DeviceCeilings> device_ceilings(std::string_view device_name);

/// Share of the peak rate: flops_per_sample * samples_per_s / peak. 0 where the peak is unknown.
double flops_utilisation(double flops_per_sample, double samples_per_s, double peak_tflops);

/// Model FLOPs utilisation of a training run, against the bf16 peak (FP8 runs too, so that figures
/// compare).
struct Utilisation {
  double reference_mfu = 0;    // with the work that the reference implementation does per sample
  double hardware_mfu = 0;     // with the work that was executed
  double executed_tflops = 0;  // per second
};
Utilisation utilisation(double reference_flops_per_sample, double executed_flops_per_sample,
                        double samples_per_s, double peak_tflops);

/// Order statistics, with linear interpolation between neighbours (NumPy's default).
struct Percentiles {
  double median = 0, p10 = 0, p90 = 0, min = 0, max = 0, mean = 0;
  int64_t count = 0;
};
/// q in [0, 1]; values in any order, at least one. Throws InternalError for none.
double percentile(std::vector<double> values, double q);
/// All zero for no values.
Percentiles percentiles(std::vector<double> values);
/// {"median", "p10", "p90", "min", "max", "mean", "count"}, rounded to 6 significant digits.
nlohmann::json percentiles_json(const Percentiles& p);
/// `value` with six significant digits, for reports.
double rounded(double value);

}  // namespace longship::runtime
