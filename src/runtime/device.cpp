#include "runtime/device.h"

#include <ATen/Parallel.h>
#include <sched.h>
#include <torch/headeronly/version.h>

#ifdef LS_CUDA_ENABLED
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include <algorithm>

#include "base/error.h"

namespace longship::runtime {

#ifdef LS_CUDA_ENABLED
bool cuda_available() {
  return c10::cuda::device_count() > 0;
}

std::string cuda_version() {
  return fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}
void synchronize(c10::Device device) {
  if (!device.is_cuda()) return;
  const c10::cuda::CUDAGuard guard(device);
  c10::cuda::device_synchronize();
}
#else
bool cuda_available() {
  return false;
}

void synchronize(c10::Device) {}

std::string cuda_version() {
  return "none (CPU build)";
}
#endif

std::string torch_version() {
  return TORCH_VERSION;
}

c10::Device parse_device(const std::string& text) {
  if (text == "auto") return cuda_available() ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  if (text == "cpu") return c10::Device(c10::kCPU);
  const bool indexed = text.starts_with("cuda:") && text.size() > 5 && text.size() <= 8 &&
                       std::all_of(text.begin() + 5, text.end(),
                                   [](unsigned char c) { return std::isdigit(c) != 0; });
  LS_CHECK(text == "cuda" || indexed, ConfigError,
           "device '{}' is unknown; use auto, cpu, cuda or cuda:N", text);
  LS_CHECK(
      cuda_available(), DeviceError,
      "device '{}' was asked for, but {}; use device cpu, or build with nvcc on a machine with an "
      "NVIDIA GPU",
      text,
      cuda_version().starts_with("none") ? "this is a CPU build" : "no CUDA device is present");
#ifdef LS_CUDA_ENABLED
  const int index = indexed ? std::stoi(text.substr(5)) : 0;
  LS_CHECK(index < c10::cuda::device_count(), DeviceError,
           "device '{}' was asked for, but there are only {} CUDA devices", text,
           static_cast<int>(c10::cuda::device_count()));
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
#else
  throw InternalError("a CPU build reached the CUDA branch of parse_device");
#endif
}

int64_t num_cuda_devices() {
#ifdef LS_CUDA_ENABLED
  if (cuda_available()) return c10::cuda::device_count();
#endif
  return 0;
}

void set_current_device([[maybe_unused]] c10::Device device) {
#ifdef LS_CUDA_ENABLED
  if (device.is_cuda()) c10::cuda::set_device(device.index());
#endif
}

std::string describe(c10::Device device) {
  if (device.is_cpu()) return fmt::format("CPU, {} threads", at::get_num_threads());
#ifdef LS_CUDA_ENABLED
  if (device.is_cuda()) {
    const auto* properties = at::cuda::getDeviceProperties(device.index());
    return fmt::format("{} ({:.1f} GiB)", properties->name,
                       static_cast<double>(properties->totalGlobalMem) / (1 << 30));
  }
#endif
  return device.str();
}

int set_cpu_threads(int num_threads) {
  if (num_threads <= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    num_threads = sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
  }
  at::set_num_threads(num_threads);
  return num_threads;
}

}  // namespace longship::runtime
