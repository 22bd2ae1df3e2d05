#pragma once
// What a figure must be quoted with: the GPU, its driver and its clocks.

#include <c10/core/Device.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace longship::runtime {

/// Zero and "" where the driver does not tell.
struct GpuFacts {
  std::string name;
  std::string driver;  // e.g. "580.159.04"
  int sm_count = 0;
  int64_t memory_bytes = 0;
  int sm_clock_mhz = 0;  // now
  int max_sm_clock_mhz = 0;
  double power_limit_w = 0;
};

/// Reads only; `device` must be a CUDA device. Empty in a CPU build.
GpuFacts gpu_facts(c10::Device device);
nlohmann::json gpu_facts_json(const GpuFacts& facts);

}  // namespace longship::runtime
