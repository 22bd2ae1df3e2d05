#include "models/groot/layout.h"

#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "models/groot/layout_cache.h"
#include "nn/mrope.h"
#include "nn/patch_grid.h"
#include "nn/siglip2.h"

namespace longship::models {
namespace {

constexpr int64_t kMerge = GrootSizes::kMerge;

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, std::vector<int64_t> shape) {
  constexpr at::ScalarType dtype = std::is_same_v<T, float>     ? at::kFloat
                                   : std::is_same_v<T, int32_t> ? at::kInt
                                   : std::is_same_v<T, bool>    ? at::kBool
                                                                : at::kLong;
  at::Tensor out = at::empty(shape, at::TensorOptions().dtype(dtype));
  LS_CHECK(out.numel() == static_cast<int64_t>(values.size()), InternalError,
           "GR00T layout: {} values for {} places", values.size(), out.numel());
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<T>());
  return out;
}

/// Samples of given lengths behind each other.
struct Segments {
  at::Tensor cu, ids;
  int64_t longest = 0;
};
Segments segments_of(const std::vector<int64_t>& lengths, int64_t rows) {
  std::vector<int32_t> cu{0}, ids;
  int64_t longest = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    cu.push_back(cu.back() + static_cast<int32_t>(lengths[i]));
    ids.insert(ids.end(), static_cast<size_t>(lengths[i]), static_cast<int32_t>(i) + 1);
    longest = std::max(longest, lengths[i]);
  }
  ids.resize(static_cast<size_t>(rows), 0);
  return {tensor_of(cu, {static_cast<int64_t>(cu.size())}), tensor_of(ids, {rows}), longest};
}

void check_request(const GrootLayoutRequest& r, const GrootSizes& sizes) {
  const int64_t pictures = std::accumulate(r.pictures.begin(), r.pictures.end(), int64_t{0});
  LS_CHECK(!r.lengths.empty() && r.pictures.size() == r.lengths.size() &&
               pictures == static_cast<int64_t>(r.grids.size()),
           ShapeError, "GR00T batch: {} samples, {} picture counts that sum to {}, {} grids",
           r.lengths.size(), r.pictures.size(), pictures, r.grids.size());
  for (const auto& [rows, columns] : r.grids) {
    LS_CHECK(rows >= kMerge && columns >= kMerge && rows % kMerge == 0 && columns % kMerge == 0,
             ShapeError, "GR00T batch: a picture of {} x {} patches; sides must be multiples of {}",
             rows, columns, kMerge);
  }
  LS_CHECK(r.text_multiple >= 1, InternalError, "GR00T batch: text filled up to a multiple of {}",
           r.text_multiple);
  const int64_t tokens = std::accumulate(r.lengths.begin(), r.lengths.end(), int64_t{0});
  LS_CHECK(r.token_ids.defined() && r.token_ids.scalar_type() == at::kLong &&
               r.token_ids.dim() == 1 && r.token_ids.size(0) == tokens,
           ShapeError, "GR00T batch: {} token ids for lengths that sum to {}",
           r.token_ids.defined() ? r.token_ids.numel() : 0, tokens);
  const int64_t* id = r.token_ids.const_data_ptr<int64_t>();
  size_t picture = 0;
  for (size_t b = 0; b < r.lengths.size(); ++b) {
    LS_CHECK(r.lengths[b] >= 1, ShapeError, "GR00T batch: sample {} has no tokens", b);
    int64_t expected = 0;
    for (int64_t i = 0; i < r.pictures[b]; ++i, ++picture) {
      expected += r.grids[picture][0] * r.grids[picture][1] / (kMerge * kMerge);
    }
    const int64_t found = std::count(id, id + r.lengths[b], sizes.text.image_token);
    LS_CHECK(
        found == expected, ShapeError,
        "GR00T batch: sample {} has {} placeholders (token {}) for {} rows of picture features", b,
        found, sizes.text.image_token, expected);
    id += r.lengths[b];
  }
}

// N1.6: raster order, a table resized by the antialiased filter.
void raster_pictures(const GrootGrids& grids, const GrootSizes& sizes, GrootPictureTables& out) {
  std::vector<nn::TableMix> mixes;
  int64_t taps = 1;
  for (const auto& [rows, columns] : grids) {
    mixes.push_back(nn::mix_position_table(sizes.vision.table_side, rows, columns));
    taps = std::max(taps, mixes.back().taps);
  }
  std::vector<int64_t> index, y, x, merge, order;
  std::vector<float> weight;
  std::vector<int64_t> windows;
  for (size_t v = 0; v < grids.size(); ++v) {
    const auto [rows, columns] = grids[v];
    const int64_t base = static_cast<int64_t>(y.size());
    for (int64_t p = 0; p < rows * columns; ++p) {
      y.push_back(p / columns);
      x.push_back(p % columns);
      for (int64_t k = 0; k < taps; ++k) {
        const bool used = k < mixes[v].taps;
        const size_t at = static_cast<size_t>(p * mixes[v].taps + k);
        index.push_back(used ? mixes[v].index[at] : 0);
        weight.push_back(used ? mixes[v].weight[at] : 0.0F);
      }
    }
    for (int64_t block = 0; block < rows * columns / (kMerge * kMerge); ++block) {
      const int64_t top = block / (columns / kMerge) * kMerge;
      const int64_t left = block % (columns / kMerge) * kMerge;
      for (int64_t i = 0; i < kMerge * kMerge; ++i) {
        merge.push_back(base + (top + i / kMerge) * columns + left + i % kMerge);
      }
    }
    const int64_t side = sizes.vision.windows || sizes.vision.rope ? sizes.vision.window_size : 0;
    for (int64_t top = 0; side > 0 && top < rows; top += side) {
      for (int64_t left = 0; left < columns; left += side) {
        const int64_t bottom = std::min(top + side, rows), right = std::min(left + side, columns);
        windows.push_back((bottom - top) * (right - left));
        for (int64_t i = top; i < bottom; ++i) {
          for (int64_t j = left; j < right; ++j) order.push_back(base + i * columns + j);
        }
      }
    }
  }
  const int64_t count = static_cast<int64_t>(y.size());
  out.patch_rows = tensor_of(y, {count});
  out.patch_columns = tensor_of(x, {count});
  out.position_index = tensor_of(index, {count, taps});
  out.position_weight = tensor_of(weight, {count, taps});
  out.merge_index = tensor_of(merge, {count});
  if (!sizes.vision.windows) return;
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  out.window_order = tensor_of(order, {count});
  out.window_back = tensor_of(back, {count});
  const Segments segments = segments_of(windows, count);
  out.window_cu = segments.cu;
  out.window_segments = segments.ids;
  out.longest_window = segments.longest;
}

GrootPictureTables picture_tables(const GrootGrids& grids, const GrootSizes& sizes) {
  GrootPictureTables out;
  std::vector<int64_t> lengths;
  int64_t rows = 0;
  bool uniform = !grids.empty();
  for (const auto& grid : grids) {
    lengths.push_back(grid[0] * grid[1]);
    rows += lengths.back();
    uniform = uniform && grid == grids.front();
  }
  const Segments segments = segments_of(lengths, rows);
  out.picture_cu = segments.cu;
  out.picture_segments = segments.ids;
  out.longest_picture = segments.longest;
  out.uniform_pictures = uniform ? static_cast<int64_t>(grids.size()) : 0;
  if (sizes.version == GrootVersion::kN16) {
    raster_pictures(grids, sizes, out);
    return out;
  }
  nn::PatchTables tables = nn::patch_tables(grids, sizes.vision.table_side, kMerge);
  out.patch_rows = std::move(tables.rows);
  out.patch_columns = std::move(tables.columns);
  out.position_index = std::move(tables.position_index);
  out.position_weight = std::move(tables.position_weight);
  return out;
}

/// Text first, then padding, then pictures; equal rows of a kind keep their order.
GrootReadRows read_rows(const std::vector<bool>& valid, const std::vector<bool>& image,
                        int64_t batch) {
  const int64_t places = static_cast<int64_t>(valid.size()), longest = places / batch;
  std::vector<int64_t> order, padding, pictures, back(valid.size());
  std::vector<int64_t> text_rows(static_cast<size_t>(batch)), image_rows(text_rows.size());
  for (int64_t place = 0; place < places; ++place) {
    const size_t at = static_cast<size_t>(place), sample = static_cast<size_t>(place / longest);
    if (!valid[at]) {
      padding.push_back(place);
    } else if (image[at]) {
      pictures.push_back(place);
      ++image_rows[sample];
    } else {
      order.push_back(place);
      ++text_rows[sample];
    }
  }
  order.insert(order.end(), padding.begin(), padding.end());
  order.insert(order.end(), pictures.begin(), pictures.end());
  for (size_t i = 0; i < order.size(); ++i) {
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  GrootReadRows out;
  out.order = tensor_of(order, {places});
  out.back = tensor_of(back, {places});
  out.text_cu = segments_of(text_rows, 0).cu;
  out.image_cu = segments_of(image_rows, 0).cu;
  out.image_rows = static_cast<int64_t>(pictures.size());
  return out;
}

void text_layout(const GrootLayoutRequest& r, const GrootSizes& sizes, GrootLayout& out) {
  const int64_t batch = static_cast<int64_t>(r.lengths.size());
  const int64_t columns = *std::max_element(r.lengths.begin(), r.lengths.end());  // reference's
  const int64_t longest = (columns + r.text_multiple - 1) / r.text_multiple * r.text_multiple;
  const int64_t places = batch * longest;
  const Segments segments = segments_of(r.lengths, places);
  out.text_cu = segments.cu;
  out.text_segments = segments.ids;
  out.longest_text = longest;
  const int64_t* id = r.token_ids.const_data_ptr<int64_t>();
  std::vector<int64_t> image_rows, pad(static_cast<size_t>(places)), unpad(pad.size());
  std::vector<int64_t> positions;
  std::vector<bool> valid(pad.size(), false), image(pad.size(), false);
  int64_t row = 0, padding = r.token_ids.size(0);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t empty = columns - r.lengths[static_cast<size_t>(b)];
    for (int64_t s = 0; s < longest; ++s) {
      const size_t place = static_cast<size_t>(b * longest + s);
      const bool token = s >= empty && s < columns;
      const int64_t source = token ? row++ : padding++;
      pad[place] = source;
      unpad[static_cast<size_t>(source)] = static_cast<int64_t>(place);
      if (!token) continue;
      valid[place] = true;
      positions.push_back(s);
      image[place] = id[source] == sizes.text.image_token;
      if (image[place]) image_rows.push_back(source);
    }
  }
  std::vector<int64_t> tokens(id, id + r.token_ids.size(0));
  tokens.resize(pad.size(), sizes.text.pad_token);
  out.tokens = tensor_of(tokens, {places});
  out.image_rows = tensor_of(image_rows, {static_cast<int64_t>(image_rows.size())});
  out.pad_index = tensor_of(pad, {places});
  out.unpad_index = tensor_of(unpad, {places});
  out.valid = tensor_of(valid, {batch, longest});
  out.image = tensor_of(image, {batch, longest});
  out.read = read_rows(valid, image, batch);
  if (sizes.vl && longest > columns) {
    std::vector<int64_t> parts;
    for (int64_t b = 0; b < batch; ++b) parts.insert(parts.end(), {columns, longest - columns});
    const Segments own = segments_of(parts, places);
    out.vl_cu = own.cu;
    out.vl_segments = own.ids;
  }
  // Padding rows see nothing; the reference numbers them with 1.
  if (sizes.version == GrootVersion::kN16) {
    positions.resize(static_cast<size_t>(places), 1);
    out.positions = tensor_of(positions, {1, places});
  } else {
    out.positions =
        nn::mrope_positions(out.tokens, r.lengths, sizes.text.image_token, r.grids, kMerge);
  }
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor*>> GrootPictureTables::picture_tensors() {
  std::vector<std::pair<std::string, at::Tensor*>> out;
  const auto add = [&](const char* name, at::Tensor& tensor) {
    if (tensor.defined()) out.emplace_back(name, &tensor);
  };
  add("layout.picture_cu", picture_cu);
  add("layout.picture_segments", picture_segments);
  add("layout.patch_rows", patch_rows);
  add("layout.patch_columns", patch_columns);
  add("layout.position_index", position_index);
  add("layout.position_weight", position_weight);
  add("layout.merge_index", merge_index);
  add("layout.window_order", window_order);
  add("layout.window_back", window_back);
  add("layout.window_cu", window_cu);
  add("layout.window_segments", window_segments);
  return out;
}

std::vector<std::pair<std::string, at::Tensor*>> GrootLayout::tensors() {
  std::vector<std::pair<std::string, at::Tensor*>> out = picture_tensors();
  const auto add = [&](const char* name, at::Tensor& tensor) {
    if (tensor.defined()) out.emplace_back(name, &tensor);
  };
  add("layout.text_cu", text_cu);
  add("layout.text_segments", text_segments);
  add("layout.tokens", tokens);
  add("layout.positions", positions);
  add("layout.image_rows", image_rows);
  add("layout.pad_index", pad_index);
  add("layout.unpad_index", unpad_index);
  add("layout.valid", valid);
  add("layout.image", image);
  add("layout.read_order", read.order);
  add("layout.read_back", read.back);
  add("layout.read_text_cu", read.text_cu);
  add("layout.read_image_cu", read.image_cu);
  add("layout.vl_cu", vl_cu);
  add("layout.vl_segments", vl_segments);
  return out;
}

void GrootLayout::forget_pictures() {
  for (at::Tensor* table : {&picture_cu, &picture_segments, &patch_rows, &patch_columns,
                            &position_index, &position_weight, &merge_index, &window_order,
                            &window_back, &window_cu, &window_segments, &tokens, &image_rows}) {
    *table = at::Tensor();
  }
}

std::string GrootLayout::signature() const {
  const std::string text = fmt::format("S{}{}", longest_text, vl_cu.defined() ? " filled up" : "");
  if (!picture_cu.defined()) {
    return fmt::format("{} behind the frozen part, {} of pictures", text, read.image_rows);
  }
  std::string out =
      fmt::format("V{} P{} of at most {} taps {}, {}", picture_cu.size(0) - 1,
                  picture_segments.size(0), longest_picture, position_index.size(1), text);
  if (uniform_pictures > 0) out += " uniform";
  if (window_cu.defined()) {
    out += fmt::format(" windows {} of at most {}", window_cu.size(0) - 1, longest_window);
  }
  return out;
}

GrootLayout make_groot_layout(const GrootLayoutRequest& request, const GrootSizes& sizes,
                              GrootGridCache* cache) {
  check_request(request, sizes);
  GrootLayout out;
  const auto make = [&] { return picture_tables(request.grids, sizes); };
  static_cast<GrootPictureTables&>(out) =
      cache != nullptr ? cache->get(request.grids, make) : make();
  text_layout(request, sizes, out);
  return out;
}

}  // namespace longship::models
