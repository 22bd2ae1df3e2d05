#pragma once
// What the CPU implementations of the normalisations share: parameters of groups of rows, and sums
// over rows that do not depend on the number of threads.

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "ops/cpu/float_types.h"
#include "ops/norm_check.h"

namespace longship::ops::cpu {

/// A parameter [D] or [G, D] in the accumulation type.
template <class Acc>
class GroupRows {
 public:
  explicit GroupRows(const std::optional<at::Tensor>& param) {
    if (!param.has_value()) return;
    values_ = param->to(acc_type<Acc>()).contiguous();
    data_ = values_.const_data_ptr<Acc>();
    stride_ = values_.dim() == 2 && values_.size(0) > 1 ? values_.size(1) : 0;
  }
  /// The group's row; null where there is no parameter.
  const Acc* row(int64_t group) const { return data_ ? data_ + group * stride_ : nullptr; }

 private:
  at::Tensor values_;
  const Acc* data_ = nullptr;
  int64_t stride_ = 0;
};

/// Rows in chunks that do not cross groups.
struct RowChunks {
  // A constant, so that results do not depend on the number of threads.
  static constexpr int64_t kRows = 64;

  explicit RowChunks(const GroupedRows& rows)
      : rows_per_group(rows.num_rows / rows.num_groups),
        chunks_per_group((rows_per_group + kRows - 1) / kRows),
        num_chunks(chunks_per_group * rows.num_groups) {}
  int64_t group(int64_t chunk) const { return chunk / chunks_per_group; }
  int64_t begin(int64_t chunk) const {
    return group(chunk) * rows_per_group + chunk % chunks_per_group * kRows;
  }
  int64_t end(int64_t chunk) const {
    return std::min(begin(chunk) + kRows, (group(chunk) + 1) * rows_per_group);
  }

  int64_t rows_per_group, chunks_per_group, num_chunks;
};

/// One row of sums for every chunk.
template <class Acc>
class ChunkSums {
 public:
  ChunkSums(const RowChunks& chunks, int64_t width, bool wanted = true)
      : chunks_(chunks), width_(width), wanted_(wanted) {
    if (wanted) sums_.resize(static_cast<size_t>(chunks.num_chunks * width), Acc(0));
  }
  /// Null where the sums are not wanted.
  Acc* row(int64_t chunk) { return wanted_ ? sums_.data() + chunk * width_ : nullptr; }

  /// Sums of the chunks of every row of `param`, in its shape and dtype; [0] of the dtype of
  /// `otherwise` without it.
  at::Tensor total(const std::optional<at::Tensor>& param, const at::Tensor& otherwise) const {
    if (!param.has_value()) return at::zeros({0}, otherwise.options());
    at::Tensor result = at::zeros(param->sizes(), param->options().dtype(acc_type<Acc>()));
    const bool grouped = param->dim() == 2 && param->size(0) > 1;
    Acc* data = result.mutable_data_ptr<Acc>();
    for (int64_t chunk = 0; chunk < chunks_.num_chunks; ++chunk) {
      Acc* out = data + (grouped ? chunks_.group(chunk) * width_ : 0);
      const Acc* in = sums_.data() + chunk * width_;
      for (int64_t i = 0; i < width_; ++i) out[i] += in[i];
    }
    return result.to(param->scalar_type());
  }

 private:
  RowChunks chunks_;
  int64_t width_;
  bool wanted_;
  std::vector<Acc> sums_;
};

}  // namespace longship::ops::cpu
