// Schemas of the operators that know positions: rotary embedding, order and number of rows.
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(longship, m) {
  m.def(
      "rope_qkv(Tensor qkv, Tensor cos, Tensor sin, Tensor positions, int num_heads,"
      " int num_kv_heads, int head_dim, Tensor? rows_valid) -> (Tensor q, Tensor k, Tensor v)");
  m.def(
      "rope_qkv_backward(Tensor? dq, Tensor? dk, Tensor? dv, Tensor cos, Tensor sin,"
      " Tensor positions, int num_heads, int num_kv_heads, int head_dim, Tensor? rows_valid)"
      " -> Tensor");
  m.def(
      "head_norm_rope(Tensor(a) qkv, Tensor q_weight, Tensor k_weight, Tensor cos, Tensor sin,"
      " int num_heads, int num_kv_heads, float eps) -> (Tensor q, Tensor k, Tensor(a) v)");
  m.def(
      "head_norm_rope_backward(Tensor? dq, Tensor? dk, Tensor? dv, Tensor qkv, Tensor q_weight,"
      " Tensor k_weight, Tensor cos, Tensor sin, int num_heads, int num_kv_heads, float eps)"
      " -> (Tensor d_qkv, Tensor dq_weight, Tensor dk_weight)");
  m.def("zero_tail_(Tensor(a!) x, Tensor rows_valid) -> ()");
  m.def("permute_rows(Tensor x, Tensor index, Tensor inverse) -> Tensor");
  m.def("permute_rows_backward(Tensor dy, Tensor inverse) -> Tensor");
}
