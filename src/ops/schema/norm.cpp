// Schemas of the normalisation operators; implementations register themselves at their dispatch
// keys. Every family of operators has its own schema file.
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(longship, m) {
  m.def("rms_norm(Tensor x, Tensor scale, Tensor? shift, float eps) -> (Tensor y, Tensor rstd)");
  m.def(
      "rms_norm_backward(Tensor dy, Tensor x, Tensor scale, Tensor rstd, bool has_shift)"
      " -> (Tensor dx, Tensor dscale, Tensor dshift)");
}
