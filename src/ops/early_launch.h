#pragma once
// Whether our kernels may come onto the device while the kernel before them is still running
// (kernels/common/launch.cuh): the order of a stream is kept, values do not change.

namespace longship::ops {

/// For kernels launched, or captured, from now on in this process; on at the start. Does nothing in
/// a build without CUDA.
void set_early_launch(bool on);

}  // namespace longship::ops
