#pragma once
// Typed reading of whole parquet columns. Files are untrusted: page checksums are verified, decoded
// arrays validated.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace longship::io {

/// A numeric column, one row of `width` numbers per row of the table.
struct NumericColumn {
  int64_t num_rows = 0;
  int64_t width = 1;  // numbers per row: product of inner_shape
  std::vector<int64_t>
      inner_shape;            // empty for a scalar column, e.g. [14], or [24, 32] for nested lists
  std::vector<float> values;  // [num_rows, width], row-major
};

/// A picture stored in a table: encoded bytes, or the path of a file (relative to the dataset), or
/// both.
struct StoredPicture {
  std::string bytes;
  std::string path;
  bool is_raw = false;  // bytes are the pixels themselves, in the order of the feature's shape
};

/// One parquet file. The footer is read by open(), a column when it is asked for. Not thread-safe.
/// Every method that reads a column throws DataError naming the file, the column and, where one is
/// at fault, the row (counted from 0 in the file): no such column, another type than asked for, a
/// null, a ragged row, damaged pages.
class ParquetTable {
 public:
  /// Throws DataError naming the path and the reason: missing, empty, cut (no footer), not parquet,
  /// damaged.
  static ParquetTable open(const std::filesystem::path& path);

  ParquetTable(ParquetTable&&) noexcept;
  ParquetTable& operator=(ParquetTable&&) noexcept;
  ~ParquetTable();

  const std::filesystem::path& path() const;
  int64_t num_rows() const;
  /// Top-level columns in the order of the file, an index column of pandas included.
  std::vector<std::string> column_names() const;
  bool has(std::string_view name) const;
  /// Type as Arrow writes it, e.g. "fixed_size_list<element: float>[6]".
  std::string type_name(std::string_view name) const;
  /// True for a bool, integer or floating column, or lists of them, nested to any depth.
  bool is_numeric(std::string_view name) const;
  /// True for string, large_string, and dictionaries of them.
  bool is_string(std::string_view name) const;
  /// True for columns that pictures() reads: binary, large_binary, struct{bytes, path}.
  bool is_picture(std::string_view name) const;
  std::vector<std::string> string_column_names() const;
  /// The JSON text that pandas and lerobot store under the schema key "pandas"; empty when there is
  /// none.
  std::string pandas_metadata() const;
  /// Any other value of the schema's key-value metadata (e.g. "huggingface"); empty when there is
  /// none.
  std::string schema_metadata(std::string_view key) const;

  /// Accepts scalar, list, large_list and fixed_size_list of float16/32/64, integers and bool,
  /// nested lists too, all rows of one shape; and a struct of those, whose fields in order are the
  /// numbers of a row. A name with dots that is no column is a field inside structs: "obs.joints"
  /// is field joints of column obs. Values are rounded to the nearest float; a finite
  /// double beyond float's range is an error. NaN and infinities pass (the dataset check reports
  /// them).
  NumericColumn numeric(std::string_view name) const;
  /// A scalar (or width-1 list) integer or bool column; floats are an error.
  std::vector<int64_t> int64(std::string_view name) const;
  /// A scalar (or width-1 list) column of any number type, exact except for integers beyond 2^53.
  std::vector<double> float64(std::string_view name) const;
  /// string, large_string, or a dictionary of them. UTF-8 is checked.
  std::vector<std::string> strings(std::string_view name) const;
  /// A list or large_list of strings per row.
  std::vector<std::vector<std::string>> string_lists(std::string_view name) const;
  /// binary, large_binary, struct{bytes, path} (either field may be null or absent, not both), or
  /// lists of uint8.
  std::vector<StoredPicture> pictures(std::string_view name) const;
  /// The same of one row group (0 .. number of groups - 1).
  std::vector<StoredPicture> pictures(std::string_view name, int64_t row_group) const;
  /// First row of every row group, and the number of rows.
  std::vector<int64_t> row_group_begin() const;

 private:
  struct Impl;
  explicit ParquetTable(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Version of the Arrow library this program runs with.
std::string arrow_version();

}  // namespace longship::io
