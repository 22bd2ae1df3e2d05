#pragma once
// What updates the part of the weights that a rank owns under ZeRO-1 and FSDP.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>

namespace longship::dist {

/// A piece of one parameter that this rank updates. Tensors are 1-D of end - begin elements and
/// stay at their addresses.
struct ShardSlice {
  int64_t param = 0;           // index in the plan
  std::string name;            // of the parameter
  int64_t begin = 0, end = 0;  // elements of the parameter, flattened
  at::Tensor weights;          // the parameter's dtype; part of the flat weights
  at::Tensor grad;             // after finish(): mean over the ranks. ZeRO-1: in the wire's dtype;
                               // FSDP: fp32; one rank alone: the gradients' own
};

/// What updates the slices. train's optimizer is plugged in through this.
class ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;
  /// Sum of the squares of the slices' gradients, in a fixed order. NaN and infinity pass through.
  virtual double squared_norm() = 0;
  /// One update of all slices from their gradients, clipped by `norm`, that of all gradients on all
  /// ranks. Writes slice.weights.
  virtual void apply(double lr, double norm) = 0;
};

/// Sum of squares in fp64, slice by slice.
double squared_norm(std::span<const ShardSlice> slices);

}  // namespace longship::dist
