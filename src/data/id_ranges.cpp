#include "data/id_ranges.h"

#include <algorithm>

#include "base/error.h"

namespace longship::data {

IdRanges::IdRanges(const std::vector<int64_t>& ids) {
  for (const int64_t id : ids) append({id, id + 1});
}

void IdRanges::append(IdRange range) {
  if (range.size() <= 0) return;
  if (!ranges_.empty() && ranges_.back().end == range.begin) {
    ranges_.back().end = range.end;
  } else {
    first_.push_back(size_);
    ranges_.push_back(range);
  }
  size_ += range.size();
}

void IdRanges::append_all(const IdRanges& other, int64_t shift) {
  for (const IdRange& range : other.ranges_) append({range.begin + shift, range.end + shift});
}

int64_t IdRanges::operator[](int64_t i) const {
  LS_CHECK(i >= 0 && i < size_, InternalError, "element {} of {} sample ids", i, size_);
  if (ranges_.size() == 1) return ranges_.front().begin + i;
  const auto next = std::upper_bound(first_.begin(), first_.end(), i);
  const auto range = static_cast<size_t>(next - first_.begin() - 1);
  return ranges_[range].begin + i - first_[range];
}

void IdRanges::fill(int64_t first, std::span<int64_t> out) const {
  for (size_t k = 0; k < out.size(); ++k) out[k] = (*this)[first + static_cast<int64_t>(k)];
}

std::vector<int64_t> IdRanges::to_vector() const {
  std::vector<int64_t> out;
  out.reserve(size());
  for (const IdRange& range : ranges_) {
    for (int64_t id = range.begin; id < range.end; ++id) out.push_back(id);
  }
  return out;
}

IdRanges IdRanges::without(std::span<const int64_t> ids) const {
  IdRanges out;
  auto next = ids.begin();
  for (const IdRange& range : ranges_) {
    int64_t begin = range.begin;
    next = std::lower_bound(next, ids.end(), begin);
    for (; next != ids.end() && *next < range.end; ++next) {
      out.append({begin, *next});
      begin = *next + 1;
    }
    out.append({begin, range.end});
  }
  return out;
}

}  // namespace longship::data
