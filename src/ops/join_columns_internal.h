#pragma once
// The CUDA half of ops/join_columns.h.

#include <optional>

#include "ops/join_columns.h"

namespace longship::ops {

/// Nothing where the kernel does not fit the parts.
std::optional<JoinedColumns> join_columns_device(at::TensorList parts, bool with_sums);

}  // namespace longship::ops
