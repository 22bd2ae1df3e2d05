// Schemas of the operators that draw at random.
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(longship, m) {
  m.def("dropout_mask(Tensor keys, int site, int[] shape, float p, ScalarType dtype) -> Tensor");
  m.def("dropout(Tensor x, Tensor keys, int site, float p) -> Tensor");
}
