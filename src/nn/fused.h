#pragma once
// Which fused operators and stacked products a model uses. Every switch off gives the plain
// composition of library operators, which computes the same function.

#include <string>

namespace longship::nn {

struct Fused {
  bool norms = false;        // residual, gate and the following norm in one pass
  bool activations = false;  // GEGLU; GELU with its bias
  bool rope = false;         // rotation of queries and keys and the split of q, k, v in one pass
  bool embedding = false;    // token rows with a row-sparse gradient
  bool loss = false;         // flow-matching target, loss and its gradient
  bool stacked = false;      // one product over q, k, v and over gate, up
  bool attention = false;    // packed or dense flash attention, no padding and no mask in memory
};

}  // namespace longship::nn
