// Schemas of the normalisation operators; implementations register themselves at their dispatch
// keys. Every family of operators has its own schema file. Results that an optional argument brings
// along are [0] without it.
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(longship, m) {
  m.def(
      "rms_norm(Tensor x, Tensor scale, Tensor? shift, float eps, float offset)"
      " -> (Tensor y, Tensor rstd)");
  m.def(
      "rms_norm_backward(Tensor dy, Tensor x, Tensor scale, Tensor rstd, Tensor? shift,"
      " float offset) -> (Tensor dx, Tensor dscale, Tensor dshift)");
  m.def(
      "add_rms_norm(Tensor h, Tensor branch, Tensor? gate, Tensor scale, Tensor? shift, float eps,"
      " float offset) -> (Tensor h_out, Tensor y, Tensor rstd)");
  m.def(
      "add_rms_norm_backward(Tensor? dh_out, Tensor dy, Tensor h_out, Tensor rstd, Tensor? branch,"
      " Tensor? gate, Tensor scale, Tensor? shift, float offset)"
      " -> (Tensor dh, Tensor dbranch, Tensor dgate, Tensor dscale, Tensor dshift)");
  m.def("add_gate(Tensor h, Tensor branch, Tensor? gate) -> Tensor");
  m.def(
      "add_gate_backward(Tensor dout, Tensor branch, Tensor gate)"
      " -> (Tensor dbranch, Tensor dgate)");
  m.def(
      "layer_norm(Tensor x, Tensor weight, Tensor bias, float eps)"
      " -> (Tensor y, Tensor mean, Tensor rstd)");
  m.def(
      "layer_norm_backward(Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor weight,"
      " Tensor bias) -> (Tensor dx, Tensor dweight, Tensor dbias)");
  m.def(
      "add_layer_norm(Tensor h, Tensor branch, Tensor weight, Tensor bias, float eps)"
      " -> (Tensor h_out, Tensor y, Tensor mean, Tensor rstd)");
  m.def(
      "add_layer_norm_backward(Tensor? dh_out, Tensor dy, Tensor h_out, Tensor mean, Tensor rstd,"
      " Tensor weight, Tensor bias) -> (Tensor dh, Tensor dweight, Tensor dbias)");
  m.def(
      "stream_norm(Tensor(a) h, Tensor? scale, Tensor? shift, bool plus_one, float eps,"
      " ScalarType dtype) -> (Tensor(a) h_out, Tensor y, Tensor mean, Tensor rstd)");
  m.def(
      "stream_norm_backward(Tensor? dh_out, Tensor dy, Tensor h, Tensor mean, Tensor rstd,"
      " Tensor? scale, Tensor? shift, bool plus_one) -> (Tensor dh, Tensor dscale, Tensor dshift)");
  m.def(
      "add_stream_norm(Tensor h, Tensor branch, Tensor? bias, Tensor? keys, int[] sites, float p,"
      " Tensor? scale, Tensor? shift, bool plus_one, float eps)"
      " -> (Tensor h_out, Tensor y, Tensor mean, Tensor rstd)");
  m.def(
      "add_stream_norm_backward(Tensor? dh_out, Tensor dy, Tensor h_out, Tensor mean, Tensor rstd,"
      " Tensor? bias, Tensor? keys, int[] sites, float p, Tensor? scale, Tensor? shift,"
      " bool plus_one)"
      " -> (Tensor dh, Tensor dbranch, Tensor dbias, Tensor dscale, Tensor dshift)");
  m.def(
      "add_dropped(Tensor h, Tensor branch, Tensor? bias, Tensor? keys, int[] sites, float p)"
      " -> Tensor");
  m.def(
      "add_dropped_backward(Tensor dh_out, Tensor? bias, Tensor? keys, int[] sites, float p,"
      " ScalarType dtype) -> (Tensor dbranch, Tensor dbias)");
}
