// Schemas of the operators on pictures.
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(longship, m) {
  m.def("augment_pictures(Tensor pictures, Tensor params, int height, int width) -> Tensor");
}
