#pragma once
// Names of columns and of fields inside their structs. Only parquet*.cpp include this header.

#include <arrow/api.h>

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace longship::io {

/// A column, or a field inside the structs of a column.
struct FieldPlace {
  int column = 0;
  std::vector<int> path;  // fields to descend into, outermost first; empty for a column itself
  std::shared_ptr<arrow::DataType> type;
};

/// Looks `name` up: a column of that name, else a field by its dotted path ("obs.joints" is field
/// joints of column obs; names of columns and fields may hold dots themselves). Nothing when there
/// is none; `times` tells how many columns have the name, where they are several.
std::optional<FieldPlace> find_field(const arrow::Schema& schema, std::string_view name,
                                     int* times);

}  // namespace longship::io
