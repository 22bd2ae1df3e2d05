#include "models/groot/dropout.h"

#include "ops/dropout.h"

namespace longship::models {

GrootDropout groot_dropout(const GrootActionHead& head, const at::Tensor& keys) {
  return [&head, keys](int64_t site, at::IntArrayRef shape) {
    const double p = head.dropout_of(site);
    return p > 0 ? ops::dropout_mask(keys, site, shape, p, head.precision().gemm) : at::Tensor();
  };
}

}  // namespace longship::models
