#include "nn/mrope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>

#include <algorithm>

#include "base/error.h"
#include "nn/patch_grid.h"
#include "nn/tensor_math.h"

namespace longship::nn {
namespace {

/// Writes the positions of one picture, `count` tokens from `at` on; the count that follows.
int64_t place_picture(const std::array<int64_t, 2>& merged, int64_t start, int64_t at,
                      at::TensorAccessor<int64_t, 2> out) {
  const auto [rows, columns] = merged;
  for (int64_t i = 0; i < rows * columns; ++i) {
    out[0][at + i] = start;
    out[1][at + i] = start + i / columns;
    out[2][at + i] = start + i % columns;
  }
  return start + std::max(rows, columns);
}

}  // namespace

at::Tensor inverse_frequencies(int64_t dim, double theta, const at::TensorOptions& options) {
  const at::Tensor exponent = at::arange(0, dim, 2, options) / static_cast<double>(dim);
  return at::pow(at::Scalar(theta), exponent).reciprocal();
}

RopeTable mrope_table(const at::Tensor& positions, int64_t head_dim, double theta,
                      const std::array<int64_t, 3>& sections, at::ScalarType dtype) {
  LS_CHECK(positions.dim() == 2 && (positions.size(0) == 1 || positions.size(0) == 3), ShapeError,
           "rotary positions must be [1, N] or [3, N], got {} dimensions, {} planes",
           positions.dim(), positions.size(0));
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor inverse = inverse_frequencies(head_dim, theta, positions.options().dtype(wide));
  const at::Tensor places = positions.to(wide).unsqueeze(-1);  // [A, N, 1]
  at::Tensor angle;
  if (places.size(0) == 1) {
    angle = places[0] * inverse;
  } else {
    const at::Tensor k = at::arange(head_dim / 2, positions.options().dtype(at::kLong));
    const auto turned_by = [&](int64_t axis) {  // 1 or 0 per frequency
      const int64_t end = 3 * sections[static_cast<size_t>(axis)];
      return k.remainder(3).eq(axis).to(wide) * k.lt(end).to(wide);
    };
    const at::Tensor row = turned_by(1), column = turned_by(2), time = 1.0 - (row + column);
    // One term of the three is not zero, so nothing is rounded by the sum.
    angle =
        places[0] * (inverse * time) + places[1] * (inverse * row) + places[2] * (inverse * column);
  }
  angle = angle.unsqueeze(-2);
  return {at::cos(angle).to(dtype), at::sin(angle).to(dtype)};
}

at::Tensor mrope_positions(const at::Tensor& token_ids, std::span<const int64_t> lengths,
                           int64_t image_token, std::span<const std::array<int64_t, 2>> grids,
                           int64_t merge) {
  LS_CHECK(token_ids.is_cpu() && token_ids.dim() == 1 && token_ids.scalar_type() == at::kLong,
           ShapeError, "positions are made from token ids [N] int64 on the host");
  const at::Tensor positions = at::ones({3, token_ids.size(0)}, at::kLong);
  const auto ids = token_ids.accessor<int64_t, 1>();
  auto out = positions.accessor<int64_t, 2>();
  int64_t at = 0;
  size_t picture = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    const int64_t begin = at, end = at + lengths[b];
    LS_CHECK(lengths[b] >= 0 && end <= token_ids.size(0), ShapeError,
             "sample {} ends at token {}, but the batch has {}", b, end, token_ids.size(0));
    int64_t next = 0;
    while (at < end) {
      if (ids[at] != image_token) {
        for (int axis = 0; axis < 3; ++axis) out[axis][at] = next;
        ++next;
        ++at;
        continue;
      }
      LS_CHECK(picture < grids.size(), DataError,
               "sample {}: token {} stands for a picture, but the batch has only {} pictures", b,
               at - begin, grids.size());
      const std::array<int64_t, 2> merged = merged_grid(grids[picture], merge, picture);
      const int64_t count = merged[0] * merged[1];
      for (int64_t i = at; i < at + count; ++i) {
        LS_CHECK(i < end && ids[i] == image_token, DataError,
                 "sample {}: picture {} of {}x{} patches takes {} image tokens from token {} on, "
                 "found {}; the prompt was made for another picture size",
                 b, picture, grids[picture][0], grids[picture][1], count, at - begin, i - at);
      }
      next = place_picture(merged, next, at, out);
      at += count;
      ++picture;
    }
  }
  LS_CHECK(picture == grids.size(), DataError,
           "the batch has {} pictures, its texts have image tokens for {}", grids.size(), picture);
  return positions;
}

}  // namespace longship::nn
