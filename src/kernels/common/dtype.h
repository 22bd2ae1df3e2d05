#pragma once
// Element types that kernels accept. The ops layer maps tensor dtypes to these.

namespace longship::kernels {

enum class ElementType { kFloat32, kBFloat16 };

}  // namespace longship::kernels
