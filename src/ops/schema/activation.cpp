// Schemas of the activation operators.
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(longship, m) {
  m.def("geglu(Tensor gate_up) -> Tensor");
  m.def("geglu_backward(Tensor dy, Tensor gate_up) -> Tensor");
  m.def("geglu_backward_recompute(Tensor dy, Tensor gate_up) -> (Tensor d_gate_up, Tensor y)");
  m.def("swiglu(Tensor gate_up) -> Tensor");
  m.def("swiglu_backward(Tensor dy, Tensor gate_up) -> Tensor");
  m.def("gelu_bias(Tensor x, Tensor bias) -> Tensor");
  m.def("gelu_bias_backward(Tensor dy, Tensor x, Tensor bias) -> (Tensor dx, Tensor dbias)");
  m.def("gelu_bias_dropout(Tensor x, Tensor bias, Tensor keys, int site, float p) -> Tensor");
  m.def(
      "gelu_bias_dropout_backward(Tensor dy, Tensor x, Tensor bias, Tensor keys, int site,"
      " float p) -> (Tensor dx, Tensor dbias)");
}
