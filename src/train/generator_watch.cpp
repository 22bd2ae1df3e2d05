#include "train/generator_watch.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/equal.h>
#include <fmt/core.h>

#include <mutex>

namespace longship::train {

at::Tensor GeneratorWatch::state_of(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);  // a handle
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();  // seed and position, on the host
}

GeneratorWatch::GeneratorWatch(c10::Device device) {
  before_.push_back({c10::Device(at::kCPU), state_of(at::kCPU)});
  if (!device.is_cpu()) before_.push_back({device, state_of(device)});
}

std::string GeneratorWatch::moved() const {
  for (const State& state : before_) {
    if (state_of(state.device).equal(state.bytes)) continue;
    return fmt::format("it draws from the library's default generator of '{}'", state.device.str());
  }
  return {};
}

}  // namespace longship::train
