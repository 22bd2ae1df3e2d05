#pragma once
// What the CPU and CUDA implementations of the fused optimizer share. No CUDA headers.

#include <cstdint>

namespace longship::kernels {

/// Fields of a step's report, fp64 each.
enum AdamWReportField : int {
  kAdamWNorm,        // of all gradients, before clipping
  kAdamWClip,        // factor of the gradients
  kAdamWFinite,      // 1 when the norm is finite
  kAdamWUpdated,     // 1 when this step changed the weights
  kAdamWNumUpdates,  // updates so far, this one included
  kAdamWFault,       // the fault flag after this step
  kAdamWReportSize
};

/// Bits of the sticky fault flag that the optimizer sets. Others may set further bits.
enum AdamWFaultBit : int32_t {
  kAdamWFaultNonFinite = 1,  // the norm was not finite
  kAdamWFaultScalars = 2,    // neither row of scalars was for the update that came next
};

/// Factors of one group for one update t, computed in double on the host and rounded once.
struct AdamWGroupScalars {
  float decay = 1.0f;             // 1 - lr * weight_decay
  float step_size = 0.0f;         // lr / (1 - beta1^t)
  float sqrt_correction2 = 1.0f;  // sqrt(1 - beta2^t)
  float unused = 0.0f;            // makes the struct 16 bytes
};

/// Constants of a run.
struct AdamWConstants {
  float one_minus_beta1 = 0.0f;
  float beta2 = 0.0f;
  float one_minus_beta2 = 0.0f;
  float eps = 0.0f;
  float ema_keep = 0.0f;   // d
  float ema_take = 0.0f;   // 1 - d
  double max_norm = -1.0;  // negative: no clipping
};

}  // namespace longship::kernels
