#pragma once
// Where the packed prefix tokens of a batch lie: sample after sample, and within a sample pictures,
// then text. Built on the host once per batch; a captured step reads the tensors only.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace longship::models {

/// B samples, N packed rows (valid tokens, then padding up to a bucket), L tokens of the longest
/// sample, T suffix tokens per sample. Positions need no table of their own: a token's position is
/// its place within its sample, because masked tokens do not advance the reference's counter.
struct PrefixLayout {
  int64_t batch_size = 0;
  int64_t num_rows = 0;       // N
  int64_t num_valid = 0;      // rows that are tokens; the rest is padding and stays zero
  int64_t max_length = 0;     // L
  int64_t length_bound = 0;   // L of any batch of the same shape at most
  int64_t suffix_length = 0;  // T
  bool dense = false;         // every sample has L tokens and there is no padding

  at::Tensor gather;            // [N] int64, row of cat(image tokens, text rows) at every row
  at::Tensor gather_inverse;    // [N] int64
  at::Tensor positions;         // [N] int32, 0 for padding
  at::Tensor suffix_positions;  // [B*T] int32
  // Packed attention. Row counts are int32 running sums.
  at::Tensor cu_prefix;      // [B+1]
  at::Tensor cu_suffix;      // [B+1]
  at::Tensor cu_joint;       // [B+1] prefix and suffix rows
  at::Tensor joint_index;    // [N + B*T] int64, row of cat(prefix rows, suffix rows): sample by
                             // sample prefix then suffix, padding last
  at::Tensor joint_inverse;  // [N + B*T] int64
  // Plain attention, over rows padded to L per sample.
  at::Tensor pad_index;    // [B*L] int64 packed row at every padded place; row 0 where unused
  at::Tensor unpad_index;  // [num_valid] int64 padded place of every valid row
  at::Tensor unused;       // [B*L - num_valid] int64 unused padded places
  at::Tensor key_mask;     // [B,1,1,L] fp32 additive: 0 or nn::kMasked; undefined when all are L

  at::Tensor rows_valid() const { return cu_prefix.narrow(0, batch_size, 1); }
  /// Every defined tensor with its name.
  std::vector<std::pair<std::string, at::Tensor*>> tensors();
};

struct LayoutRequest {
  std::vector<int64_t> images_per_sample;
  std::vector<int64_t> tokens_per_sample;
  int64_t tokens_per_image = 0;
  int64_t text_rows = 0;  // rows of the token id tensor, padding included
  int64_t suffix_length = 0;
  int64_t length_bound = 0;  // see PrefixLayout
  bool packed = false;       // tables of the packed attention, or of the plain one
};

/// Host tensors.
PrefixLayout make_prefix_layout(const LayoutRequest& request);

}  // namespace longship::models
