#include "runtime/gpu_facts.h"

#include <dlfcn.h>

#ifdef LS_CUDA_ENABLED
#include <ATen/cuda/CUDAContext.h>
#endif

#include <nlohmann/json.hpp>

namespace longship::runtime {

#ifdef LS_CUDA_ENABLED
namespace {

/// The driver's management library, opened at run time because build machines do not have it.
class Nvml {
 public:
  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    const auto init = find<int()>("nvmlInit_v2");
    ready_ = init != nullptr && init() == 0;
  }
  ~Nvml() {
    if (const auto shutdown = find<int()>("nvmlShutdown"); ready_ && shutdown != nullptr)
      shutdown();
    if (library_ != nullptr) ::dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  void fill(GpuFacts& facts, const std::string& pci_bus_id) const {
    if (!ready_) return;
    char driver[96] = {};
    const auto get_driver = find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
    if (get_driver != nullptr && get_driver(driver, sizeof(driver)) == 0) facts.driver = driver;
    void* device = nullptr;
    const auto get_device = find<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    if (get_device == nullptr || get_device(pci_bus_id.c_str(), &device) != 0) return;
    constexpr int kSmClock = 1;
    unsigned value = 0;
    const auto clock = find<int(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
    if (clock != nullptr && clock(device, kSmClock, &value) == 0)
      facts.sm_clock_mhz = static_cast<int>(value);
    const auto max_clock = find<int(void*, int, unsigned*)>("nvmlDeviceGetMaxClockInfo");
    if (max_clock != nullptr && max_clock(device, kSmClock, &value) == 0)
      facts.max_sm_clock_mhz = static_cast<int>(value);
    const auto limit = find<int(void*, unsigned*)>("nvmlDeviceGetEnforcedPowerLimit");
    if (limit != nullptr && limit(device, &value) == 0) facts.power_limit_w = value / 1000.0;
  }

 private:
  template <class Function>
  Function* find(const char* name) const {
    return library_ == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(library_, name));
  }
  void* library_ = nullptr;
  bool ready_ = false;
};

}  // namespace

GpuFacts gpu_facts(c10::Device device) {
  GpuFacts facts;
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  facts.name = properties->name;
  facts.sm_count = properties->multiProcessorCount;
  facts.memory_bytes = static_cast<int64_t>(properties->totalGlobalMem);
  Nvml().fill(facts, fmt::format("{:08x}:{:02x}:{:02x}.0", properties->pciDomainID,
                                 properties->pciBusID, properties->pciDeviceID));
  return facts;
}
#else
GpuFacts gpu_facts(c10::Device) {
  return {};
}
#endif

nlohmann::json gpu_facts_json(const GpuFacts& facts) {
  return {{"name", facts.name},
          {"driver", facts.driver},
          {"sm_count", facts.sm_count},
          {"memory_bytes", facts.memory_bytes},
          {"sm_clock_mhz", facts.sm_clock_mhz},
          {"max_sm_clock_mhz", facts.max_sm_clock_mhz},
          {"power_limit_w", facts.power_limit_w}};
}

}  // namespace longship::runtime
