#include "kernels/common/launch.h"

#include <atomic>

namespace longship::kernels {
namespace {

std::atomic<bool> g_early_launch{true};

}  // namespace

void set_early_launch(bool on) {
  g_early_launch = on;
}

bool early_launch() {
  return g_early_launch;
}

}  // namespace longship::kernels
