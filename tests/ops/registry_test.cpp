// Every operator of ours has every implementation that the contract asks for.
#include <ATen/core/dispatch/Dispatcher.h>

#include "ops/rms_norm.h"

namespace longship::ops {
namespace {

std::vector<c10::OperatorName> our_operators() {
  std::vector<c10::OperatorName> names;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.starts_with("longship::")) names.push_back(name);
  }
  return names;
}

TEST(OperatorRegistry, HasOperators) {
  EXPECT_GE(our_operators().size(), 2u);
}

TEST(OperatorRegistry, EveryOperatorHasCpuMetaAndForwardOnesAutograd) {
  for (const auto& name : our_operators()) {
    const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(),
                                                                       name.overload_name.c_str());
    EXPECT_TRUE(handle.hasKernelForDispatchKey(c10::DispatchKey::CPU)) << name.name;
    EXPECT_TRUE(handle.hasKernelForDispatchKey(c10::DispatchKey::Meta)) << name.name;
#ifdef LS_CUDA_ENABLED
    EXPECT_TRUE(handle.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) << name.name;
#endif
    if (!name.name.ends_with("_backward")) {
      EXPECT_TRUE(handle.hasKernelForDispatchKey(c10::DispatchKey::Autograd)) << name.name;
    }
  }
}

}  // namespace
}  // namespace longship::ops
