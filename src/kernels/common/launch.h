#pragma once
// The switch of early launches, see launch.cuh.

namespace longship::kernels {

/// On at the start; for kernels that are launched from now on in this process.
void set_early_launch(bool on);
bool early_launch();

}  // namespace longship::kernels
