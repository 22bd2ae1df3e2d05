#pragma once
// The devices of this machine, and how many threads the tensor library uses.

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace longship::runtime {

/// True when this build has CUDA and a usable device is present.
bool cuda_available();

/// "auto" (CUDA when available, else CPU), "cpu", "cuda" or "cuda:N". Throws ConfigError for other
/// words and DeviceError when the asked device is not there.
c10::Device parse_device(const std::string& text);

/// CUDA devices that this process can use; 0 where cuda_available() is false.
int64_t num_cuda_devices();
/// Makes a CUDA device the one that this thread uses when none is named. Nothing for a CPU.
void set_current_device(c10::Device device);

/// A line for logs, e.g. "CPU, 2 threads" or "NVIDIA H200 (139.8 GiB)".
std::string describe(c10::Device device);

/// Blocks the host until everything enqueued on the device is done. Nothing for a CPU.
void synchronize(c10::Device device);

/// Threads for CPU kernels; 0 = all cores this process may use. Returns the number set.
int set_cpu_threads(int num_threads);

/// Versions of LibTorch and of CUDA (or "none") that this binary was built with.
std::string torch_version();
std::string cuda_version();

}  // namespace longship::runtime
