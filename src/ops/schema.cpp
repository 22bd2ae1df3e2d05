// Schemas of every operator; implementations register themselves at their dispatch keys.
#include <torch/library.h>

TORCH_LIBRARY(longship, m) {
  m.def("rms_norm(Tensor x, Tensor scale, Tensor? shift, float eps) -> (Tensor y, Tensor rstd)");
  m.def(
      "rms_norm_backward(Tensor dy, Tensor x, Tensor scale, Tensor rstd, bool has_shift)"
      " -> (Tensor dx, Tensor dscale, Tensor dshift)");
}
