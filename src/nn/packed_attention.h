#pragma once
// Attention through the library's flash kernels: no score matrix and no mask in memory. CUDA, bf16.
// Under deterministic algorithms (at::globalContext) only kernels whose backward repeats bit for
// bit are used.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace longship::nn {

/// Why these kernels cannot take heads of `head_dim` values in `dtype`; "" when they can.
std::string flash_refusal(int64_t head_dim, at::ScalarType dtype);
/// Whether queries q [..., E] go through them: they are on CUDA and nothing is refused.
bool flash_takes(const at::Tensor& q);

/// Every query sees every key of its sample. q [B, Tq, H, E], k, v [B, Tk, G, E], G divides H;
/// strided views are read in place. Returns [B, Tq, H*E]. Scale 1/sqrt(E).
at::Tensor dense_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// Samples of different lengths behind each other. q [N, H, E], k, v [M, G, E]; cu_q, cu_k [B+1]
/// int32: query rows cu_q[b] .. cu_q[b+1] see key rows cu_k[b] .. cu_k[b+1]; max_q, max_k: upper
/// bounds of one sample's rows. With `causal` row i of a sample sees its keys up to row i (as many
/// keys as queries). Returns [N, H*E]. Rows behind the last sample are zero, in the
/// result and in the gradients.
at::Tensor varlen_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& cu_q, const at::Tensor& cu_k, int64_t max_q,
                            int64_t max_k, bool causal = false);

}  // namespace longship::nn
