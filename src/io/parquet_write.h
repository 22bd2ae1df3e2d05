#pragma once
// Writing parquet: small tables of typed columns, and rows copied from other files column by column
// without knowing what they hold.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace longship::io {

/// One list of numbers per row. With depth > 1 every number stands in depth - 1 further lists of
/// length 1, as LeRobot stores statistics of pictures: [[[0.1]], [[0.2]], [[0.3]]] has depth 3.
struct DoubleLists {
  std::vector<std::vector<double>> rows;
  int depth = 1;
};

/// A column of a table to be written. `Int64Lists` are lists of whole numbers.
using Int64Lists = std::vector<std::vector<int64_t>>;
using StringLists = std::vector<std::vector<std::string>>;
struct WriteColumn {
  std::string name;
  std::variant<std::vector<int64_t>, std::vector<double>, std::vector<std::string>, DoubleLists,
               Int64Lists, StringLists>
      values;
};

/// Writes a table in one row group. All columns have one length. `metadata` becomes key-value
/// metadata of the schema. Throws DataError naming the path.
void write_parquet(const std::filesystem::path& path, std::span<const WriteColumn> columns,
                   const std::map<std::string, std::string>& metadata = {});

/// Writes a table row group by row group from rows of other files. The first appended file decides
/// the type of every column; columns of later ones are converted to it where nothing is lost.
class ParquetRowCopier {
 public:
  /// Numbers that take the place of a column's own, one per copied row. A column that the source
  /// lacks is added.
  struct Replacement {
    std::string name;
    std::variant<std::vector<int64_t>, std::vector<float>> values;
  };

  /// `columns`: names in the order of the new file. Nothing is written before the first append().
  ParquetRowCopier(std::filesystem::path path, std::vector<std::string> columns);
  ~ParquetRowCopier();
  ParquetRowCopier(const ParquetRowCopier&) = delete;
  ParquetRowCopier& operator=(const ParquetRowCopier&) = delete;

  /// Appends one row group: the rows of `source` at these positions, in this order. Only the row
  /// groups of `source` that hold them are read. Throws DataError naming both files, the column and
  /// the reason: no such column, damaged pages, values that do not fit the column's type.
  void append(const std::filesystem::path& source, std::span<const int64_t> rows,
              std::span<const Replacement> replaced);
  /// Bytes in the file so far.
  uint64_t bytes_written() const;
  /// Writes the footer. Throws DataError.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longship::io
