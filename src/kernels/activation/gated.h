#pragma once
// Arguments of the gated activations y = f(gate) * up: geglu.h, swiglu.h. Plain pointers, no tensor
// library.

#include <cstdint>

#include "kernels/common/dtype.h"

namespace longship::kernels {

/// gate_up [num_rows, 2 width]: gate in the first `width` columns, up in the last; y [num_rows,
/// width]. Contiguous, one element type, on the device of the stream. width < 2^31.
struct GatedArgs {
  const void* gate_up = nullptr;
  void* y = nullptr;
  int64_t num_rows = 0;
  int64_t width = 0;
  ElementType element = ElementType::kFloat32;
};

/// dy [num_rows, width]; d_gate_up [num_rows, 2 width]; y [num_rows, width] is written again unless
/// null.
struct GatedBackwardArgs {
  const void* dy = nullptr;
  const void* gate_up = nullptr;
  void* d_gate_up = nullptr;
  void* y = nullptr;
  int64_t num_rows = 0;
  int64_t width = 0;
  ElementType element = ElementType::kFloat32;
};

}  // namespace longship::kernels
