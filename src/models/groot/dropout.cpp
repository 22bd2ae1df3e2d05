#include "models/groot/dropout.h"

#include "models/groot/action_head.h"
#include "ops/dropout.h"

namespace longship::models {

at::Tensor GrootDropout::operator()(const at::Tensor& x, int64_t site) const {
  return has_keys() ? ops::dropout(x, keys_, site, probability_(site)) : function_(x, site);
}

GrootDropout groot_dropout(const GrootActionHead& head, const at::Tensor& keys) {
  return {keys, [&head](int64_t site) { return head.dropout_of(site); }};
}

}  // namespace longship::models
