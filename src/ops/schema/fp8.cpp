// Schemas of the FP8 operators. The quantising ones write into tensors of the caller, because
// weight copies and states keep their addresses.
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(longship, m) {
  m.def("fp8_amax(Tensor x) -> Tensor");
  m.def(
      "fp8_quantize(Tensor x, Tensor(a!)? states, int index, bool record, float margin,"
      " Tensor(b!)? q, Tensor(c!)? q_t, Tensor(d!) inv_scale, Tensor(e!)? column_sums) -> ()");
  m.def(
      "fp8_geglu_quantize(Tensor gate_up, Tensor(a!)? states, int index, bool record,"
      " float margin, Tensor(b!)? q, Tensor(c!)? q_t, Tensor(d!) inv_scale) -> ()");
  m.def(
      "fp8_geglu_backward_quantize(Tensor dy, Tensor gate_up, Tensor(a!)? states, int index,"
      " bool record, float margin, Tensor(b!)? q, Tensor(c!)? q_t, Tensor(d!) inv_scale) -> ()");
  m.def(
      "fp8_quantize_weights(Tensor[] weights, Tensor(a!)[] q, Tensor(b!)[] q_t,"
      " Tensor(c!)[] scales, float margin) -> ()");
  m.def("fp8_update_states(Tensor(a!) states) -> ()");
  m.def(
      "fp8_matmul(Tensor a, Tensor b, Tensor a_inv_scale, Tensor b_inv_scale, Tensor? bias,"
      " ScalarType dtype, bool fast_accumulation) -> Tensor");
}
