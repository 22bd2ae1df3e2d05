#pragma once
// The vision-language rows that cross-attention reads: padded rows with masks, or packed rows
// without. Letters: B samples, S padded rows a sample, N packed rows, D width.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace longship::models {

/// Rows that cross-attention reads.
struct GrootRows {
  at::Tensor rows;       // [B, S, D], or packed [N, D]
  at::Tensor mask = {};  // additive, [B, 1, 1, S] in the gemm dtype; undefined: every row is read
  /// [B, 1, 1]: 0 where a sample has no row at all, else 1; undefined where every sample has one.
  /// Without rows the attention gives zeros.
  at::Tensor present = {};
  /// Packed rows: sample b reads rows cu[b] to cu[b + 1], maybe none; what lies behind the last
  /// sample nobody reads. [B + 1] int32; undefined: the rows are padded.
  at::Tensor cu = {};
  at::Tensor query_cu = {};  // [B + 1] int32: queries of the samples, all of equal number
  int64_t longest = 0;       // rows of one sample, or an upper bound
};

/// What the action head reads of a sample's pictures and text.
struct GrootVlContext {
  GrootRows text, image;  // alternating cross-attention
  GrootRows all;          // cross-attention that does not tell them apart, padding included
};

/// How the rows of both kinds are taken out of [B, S]: tables of a prepared batch (layout.h).
struct GrootReadRows {
  /// [B * S] int64: places of text rows, sample after sample, then of padding, then of picture
  /// rows, sample after sample; and where each place stands in that list.
  at::Tensor order, back;
  at::Tensor text_cu, image_cu;  // [B + 1] int32, counted from the first row of each kind
  int64_t image_rows = 0;        // of all samples
  bool defined() const { return order.defined(); }
};

/// Text and picture rows of features [B, S, D], packed, for `queries` queries a sample. The rows
/// behind the last of the text are the padding, so that shapes follow from B, S and the pictures.
GrootVlContext pack_vl_rows(const at::Tensor& features, const GrootReadRows& tables,
                            int64_t queries);

/// `rows` in `dtype` for `count` readers, from one cast. The readers' gradients are added in the
/// order of the result and in the dtype of `rows`, whatever the order in which they come, and all
/// at once: they are kept until the last is there.
std::vector<at::Tensor> fan_out(const at::Tensor& rows, at::ScalarType dtype, int64_t count);

/// q [B, T, H, E]; keys, values [N, H, E], packed as `source` says -> [B, T, H * E]. Samples
/// without rows get zeros. CUDA bf16 with E a multiple of 8: the library's varlen kernels;
/// on the CPU sample by sample.
at::Tensor read_packed_rows(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                            const GrootRows& source);

}  // namespace longship::models
