#pragma once
// A set of sample ids as ranges: a subset of a dataset costs memory by its ranges, never by its
// samples.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <vector>

namespace longship::data {

/// Sample ids begin .. end-1.
struct IdRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const IdRange&) const = default;
};

/// An ordered list of sample ids, kept as ranges (24 bytes each). Element i costs a binary search
/// over the ranges.
class IdRanges {
 public:
  /// Random access to the ids in order.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = int64_t;
    using difference_type = std::ptrdiff_t;
    using pointer = const int64_t*;
    using reference = int64_t;
    Iterator(const IdRanges* ids, int64_t i) : ids_(ids), i_(i) {}
    int64_t operator*() const { return (*ids_)[i_]; }
    Iterator& operator++() {
      ++i_;
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++i_;
      return before;
    }
    bool operator==(const Iterator&) const = default;

   private:
    const IdRanges* ids_;
    int64_t i_;
  };
  using value_type = int64_t;
  using const_iterator = Iterator;
  using iterator = Iterator;

  IdRanges() = default;
  /// Ids in the given order, neighbours joined. Implicit: a list of ids is a set of ids.
  IdRanges(const std::vector<int64_t>& ids);  // NOLINT(google-explicit-constructor)
  IdRanges(std::initializer_list<int64_t> ids) : IdRanges(std::vector<int64_t>(ids)) {}

  /// Adds ids at the end; joined with the last range where they follow it. An empty range is
  /// nothing.
  void append(IdRange range);
  void append_all(const IdRanges& other, int64_t shift = 0);

  int64_t operator[](int64_t i) const;
  /// Ids `first` .. `first + out.size() - 1` of the list.
  void fill(int64_t first, std::span<int64_t> out) const;
  size_t size() const { return static_cast<size_t>(size_); }
  bool empty() const { return size_ == 0; }
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size_}; }
  const std::vector<IdRange>& ranges() const { return ranges_; }
  std::vector<int64_t> to_vector() const;
  /// Without the given ids (ascending; ids that are not there do not matter). The ranges must
  /// ascend.
  IdRanges without(std::span<const int64_t> ids) const;
  bool operator==(const IdRanges& other) const { return ranges_ == other.ranges_; }

 private:
  std::vector<IdRange> ranges_;
  std::vector<int64_t> first_;  // position of each range's first id in the list
  int64_t size_ = 0;
};

}  // namespace longship::data
