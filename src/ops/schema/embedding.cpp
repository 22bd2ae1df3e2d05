// Schemas of the embedding operators.
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(longship, m) {
  m.def(
      "embedding_rows(Tensor weight, Tensor ids, float scale, int pad_id, Tensor? grad_rows,"
      " Tensor? row_flags) -> Tensor");
  m.def(
      "embedding_rows_backward(Tensor dy, Tensor ids, float scale, int pad_id,"
      " Tensor(a!) grad_rows, Tensor(b!) row_flags) -> ()");
}
