#include "models/groot/dropout.h"

#include "ops/dropout.h"

namespace longship::models {

GrootDropout groot_dropout(const GrootActionHead& head, const at::Tensor& keys) {
  return [&head, keys](const at::Tensor& x, int64_t site) {
    return ops::dropout(x, keys, site, head.dropout_of(site));
  };
}

}  // namespace longship::models
