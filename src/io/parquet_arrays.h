#pragma once
// Arrow arrays and types as the parquet reader sees them. Only parquet*.cpp include this header.

#include <arrow/api.h>
#include <arrow/util/float16.h>
#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace longship::io {

using ArrayPtr = std::shared_ptr<arrow::Array>;
using TypePtr = std::shared_ptr<arrow::DataType>;

inline bool is_number(arrow::Type::type id) {
  return arrow::is_integer(id) || arrow::is_floating(id) || id == arrow::Type::BOOL;
}

inline bool is_list_type(arrow::Type::type id) {
  return id == arrow::Type::LIST || id == arrow::Type::LARGE_LIST ||
         id == arrow::Type::FIXED_SIZE_LIST;
}

inline bool is_text(arrow::Type::type id) {
  return id == arrow::Type::STRING || id == arrow::Type::LARGE_STRING;
}
inline bool is_bytes(arrow::Type::type id) {
  return id == arrow::Type::BINARY || id == arrow::Type::LARGE_BINARY;
}

inline bool is_text_type(const arrow::DataType& type) {
  if (type.id() != arrow::Type::DICTIONARY) return is_text(type.id());
  return is_text(static_cast<const arrow::DictionaryType&>(type).value_type()->id());
}

inline bool is_picture_type(const arrow::DataType& type) {
  if (type.id() != arrow::Type::STRUCT) return is_bytes(type.id());
  const auto& fields = static_cast<const arrow::StructType&>(type);
  const std::shared_ptr<arrow::Field> bytes = fields.GetFieldByName("bytes"),
                                      file = fields.GetFieldByName("path");
  return (bytes != nullptr && is_bytes(bytes->type()->id())) ||
         (file != nullptr && is_text(file->type()->id()));
}

/// Calls `visit` with the array as its own class. False for types that are no numbers.
template <class Visit>
inline bool visit_numbers(const arrow::Array& array, Visit&& visit) {
  switch (array.type_id()) {
    case arrow::Type::BOOL:
      visit(static_cast<const arrow::BooleanArray&>(array));
      return true;
    case arrow::Type::INT8:
      visit(static_cast<const arrow::Int8Array&>(array));
      return true;
    case arrow::Type::UINT8:
      visit(static_cast<const arrow::UInt8Array&>(array));
      return true;
    case arrow::Type::INT16:
      visit(static_cast<const arrow::Int16Array&>(array));
      return true;
    case arrow::Type::UINT16:
      visit(static_cast<const arrow::UInt16Array&>(array));
      return true;
    case arrow::Type::INT32:
      visit(static_cast<const arrow::Int32Array&>(array));
      return true;
    case arrow::Type::UINT32:
      visit(static_cast<const arrow::UInt32Array&>(array));
      return true;
    case arrow::Type::INT64:
      visit(static_cast<const arrow::Int64Array&>(array));
      return true;
    case arrow::Type::UINT64:
      visit(static_cast<const arrow::UInt64Array&>(array));
      return true;
    case arrow::Type::HALF_FLOAT:
      visit(static_cast<const arrow::HalfFloatArray&>(array));
      return true;
    case arrow::Type::FLOAT:
      visit(static_cast<const arrow::FloatArray&>(array));
      return true;
    case arrow::Type::DOUBLE:
      visit(static_cast<const arrow::DoubleArray&>(array));
      return true;
    default:
      return false;
  }
}

/// The value as bool, integer, float or double; HalfFloatArray holds its bits as an integer.
template <class ArrayT>
inline auto value_of(const ArrayT& array, int64_t i) {
  if constexpr (std::is_same_v<ArrayT, arrow::HalfFloatArray>) {
    return arrow::util::Float16::FromBits(array.Value(i)).ToFloat();
  } else {
    return array.Value(i);
  }
}

/// The text of row i of an array of strings or of a dictionary of strings.
inline std::string_view text_at(const arrow::Array& array, int64_t i) {
  if (array.type_id() == arrow::Type::DICTIONARY) {
    const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
    return text_at(*coded.dictionary(), coded.GetValueIndex(i));
  }
  if (array.type_id() == arrow::Type::STRING)
    return static_cast<const arrow::StringArray&>(array).GetView(i);
  return static_cast<const arrow::LargeStringArray&>(array).GetView(i);
}

inline std::string_view bytes_at(const arrow::Array& array, int64_t i) {
  if (is_text(array.type_id())) return text_at(array, i);
  if (array.type_id() == arrow::Type::BINARY)
    return static_cast<const arrow::BinaryArray&>(array).GetView(i);
  return static_cast<const arrow::LargeBinaryArray&>(array).GetView(i);
}

/// The items of a list array as one array, and how many each row has.
struct Items {
  ArrayPtr values;
  std::vector<int64_t> lengths;
};

template <class ListT>
inline Items variable_items(const ListT& list) {
  Items items;
  items.lengths.reserve(static_cast<size_t>(list.length()));
  for (int64_t i = 0; i < list.length(); ++i) items.lengths.push_back(list.value_length(i));
  items.values = list.values()->Slice(list.value_offset(0),
                                      list.value_offset(list.length()) - list.value_offset(0));
  return items;
}

inline Items items_of(const arrow::Array& array) {
  if (array.type_id() == arrow::Type::LIST)
    return variable_items(static_cast<const arrow::ListArray&>(array));
  if (array.type_id() == arrow::Type::LARGE_LIST) {
    return variable_items(static_cast<const arrow::LargeListArray&>(array));
  }
  const auto& list = static_cast<const arrow::FixedSizeListArray&>(array);
  const int64_t width = list.list_type()->list_size();
  return {list.values()->Slice(list.value_offset(0), list.length() * width),
          std::vector<int64_t>(static_cast<size_t>(list.length()), width)};
}

inline std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t dim : shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", dim);
  return fmt::format("[{}]", text);
}

}  // namespace longship::io
