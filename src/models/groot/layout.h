#pragma once
// Index tables of a GR00T batch: from packed rows of patches and tokens to what the towers and the
// action head read. Made on the host; equal signatures mean equal shapes and equal host numbers.
//
// The text rows of a batch are as many as in the padded table [B, S] that the reference makes: the
// tokens of all samples behind each other, then the padding. Padding rows see nothing and nobody
// sees them in the language layers, as in the reference, but N1.7's head reads them. Where the
// table is filled up to a multiple, columns that the reference does not have follow on its right;
// whoever reads the reference's padding does not read those.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/groot/config.h"
#include "models/groot/vl_rows.h"

namespace longship::models {

class GrootGridCache;

/// Rows and columns of patches of every picture.
using GrootGrids = std::vector<std::array<int64_t, 2>>;

/// Of P rows of V packed pictures. They follow from the grids of the pictures alone, so that
/// batches may share them (layout_cache.h): nobody writes into them.
struct GrootPictureTables {
  at::Tensor picture_cu;        // [V + 1] int32
  at::Tensor picture_segments;  // [P] int32, picture of a row + 1
  int64_t longest_picture = 0;
  int64_t uniform_pictures = 0;           // V where all pictures have one grid, else 0
  at::Tensor patch_rows, patch_columns;   // [P] int64: place of a patch in its picture
  at::Tensor position_index;              // [P, K] int64: entries of the position table
  at::Tensor position_weight;             // [P, K] fp32
  at::Tensor merge_index;                 // N1.6: [P] int64: patches in blocks of 2 x 2
  at::Tensor window_order, window_back;   // N1.6 with windows: [P] int64
  at::Tensor window_cu, window_segments;  // and the windows as samples
  int64_t longest_window = 0;

  /// Every defined tensor with its name, in a fixed order.
  std::vector<std::pair<std::string, at::Tensor*>> picture_tensors();
};

struct GrootLayout : GrootPictureTables {
  // Text: B * S rows.
  at::Tensor text_cu;        // [B + 1] int32
  at::Tensor text_segments;  // [B * S] int32: sample of a row + 1, 0 for padding
  int64_t longest_text = 0;  // S, or the columns of the reference's table filled up to a multiple
  at::Tensor tokens;         // [B * S] int64: padding rows have the padding token
  at::Tensor positions;      // N1.6: [1, B * S], N1.7: [3, B * S] int64 (time, row, column)
  at::Tensor image_rows;     // [P / 4] int64: rows that the pictures' features fill
  at::Tensor pad_index;      // [B * S] int64: row at each place of [B, S]; tokens end where the
                             // reference's columns do
  at::Tensor unpad_index;    // [B * S] int64: place of each row
  at::Tensor valid, image;   // [B, S] bool: a token; the placeholder of a picture's feature
  GrootReadRows read;        // of the places of [B, S]: what the head's cross-attention reads
  // N1.7, where the table has columns that the reference's has not: the places as samples whose
  // rows see each other, first the reference's columns of a sample, then its other ones. Undefined:
  // all places of a sample, which dense kernels take, as some batches need no filling up.
  at::Tensor vl_cu;        // [2 * B + 1] int32
  at::Tensor vl_segments;  // [B * S] int32, from 1

  bool ready() const { return text_cu.defined(); }
  /// Without what only the backbone's frozen part reads.
  void forget_pictures();
  /// Every defined tensor with its name, in a fixed order; those of the pictures first.
  std::vector<std::pair<std::string, at::Tensor*>> tensors();
  std::string signature() const;
};

/// What a layout is made from.
struct GrootLayoutRequest {
  GrootGrids grids;
  std::vector<int64_t> pictures;  // per sample
  std::vector<int64_t> lengths;   // tokens per sample
  /// [sum of lengths] int64: tokens, packed.
  at::Tensor token_ids;
  /// The columns of the table are filled up to a multiple of it.
  int64_t text_multiple = 1;
};

/// Throws ShapeError when counts, grids and placeholders do not fit each other: every sample must
/// have as many placeholders as its pictures have blocks of 2 x 2 patches.
/// Tables of the pictures come from `cache` where one is given.
GrootLayout make_groot_layout(const GrootLayoutRequest& request, const GrootSizes& sizes,
                              GrootGridCache* cache = nullptr);

}  // namespace longship::models
