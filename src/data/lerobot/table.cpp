#include "data/lerobot/table.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "io/parquet.h"

namespace longship::data::lerobot {

namespace {

using io::ParquetTable;

void read_feature(const ParquetTable& file, const std::string& path, const Feature& feature,
                  ColumnData& column, Findings& findings) {
  const int64_t num_rows = file.num_rows();
  const auto num_values = static_cast<size_t>(num_rows * column.width);
  try {
    LS_CHECK(file.has(feature.name), DataError, "the table has no column {}, which info.json lists",
             feature.name);
    if (num_rows == 0) return;
    const io::NumericColumn read = file.numeric(feature.name);
    LS_CHECK(read.width == column.width, DataError,
             "{} is declared with {} numbers per row in info.json, the rows hold {}", feature.name,
             column.width, read.width);
    column.values.insert(column.values.end(), read.values.begin(), read.values.end());
  } catch (const Error& error) {
    findings.error("column", fmt::format("{} column {}", path, feature.name), error.what());
    column.sound = false;
    column.values.resize(column.values.size() + num_values);
  }
}

// A column that Longship itself needs. Its absence is told by an empty vector at the end.
template <class T>
void read_own(const ParquetTable& file, const std::string& path, const char* name,
              std::vector<T> (ParquetTable::*read)(std::string_view) const, std::vector<T>& out,
              Findings& findings) {
  if (!file.has(name) || file.num_rows() == 0) return;
  try {
    const std::vector<T> values = (file.*read)(name);
    out.insert(out.end(), values.begin(), values.end());
  } catch (const Error& error) {
    findings.error("column", fmt::format("{} column {}", path, name), error.what());
  }
}

void read_file_rows(const Layout& layout, size_t number, Table& table, Findings& findings) {
  const std::string& path = layout.data_files[number].path;
  std::optional<ParquetTable> file;
  try {
    file.emplace(ParquetTable::open(layout.root / path));
  } catch (const Error& error) {
    const auto lost = [&](const EpisodeRecord& e) {
      return e.data_file == static_cast<int64_t>(number);
    };
    findings.error("table-unreadable", path,
                   fmt::format("{}; lost with it: {}", error.what(), episodes_text(layout, lost)),
                   "a whole parquet file", "restore the file, or remove these episodes");
    table.file_sound[number] = false;
    table.sound = false;
    return;
  }
  for (const Feature& feature : layout.info.features) {
    if (feature.kind != FeatureKind::kNumeric) continue;
    read_feature(*file, path, feature, table.columns.find(feature.name)->second, findings);
  }
  read_own(*file, path, "timestamp", &ParquetTable::float64, table.timestamp, findings);
  read_own(*file, path, "task_index", &ParquetTable::int64, table.task_index, findings);
  read_own(*file, path, "frame_index", &ParquetTable::int64, table.frame_index, findings);
  read_own(*file, path, "episode_index", &ParquetTable::int64, table.episode_index, findings);
  read_own(*file, path, "index", &ParquetTable::int64, table.index, findings);
  table.num_rows += file->num_rows();
}

// Present in some files only, or unreadable somewhere (reported then): of no use.
template <class T>
void drop_partial(std::vector<T>& values, int64_t num_rows) {
  if (static_cast<int64_t>(values.size()) != num_rows) values.clear();
}

}  // namespace

Table read_table(Layout& layout, Findings& findings) {
  Table table;
  for (const Feature& feature : layout.info.features) {
    if (feature.kind == FeatureKind::kNumeric) table.columns[feature.name].width = feature.width();
  }
  const size_t num_files = layout.data_files.size();
  table.file_sound.assign(num_files, true);
  for (size_t i = 0; i < num_files; ++i) {
    table.file_begin.push_back(table.num_rows);
    if (layout.data_files[i].exists) {
      read_file_rows(layout, i, table, findings);
    } else {
      table.file_sound[i] = false;
      table.sound = false;
    }
  }
  table.file_begin.push_back(table.num_rows);
  drop_partial(table.timestamp, table.num_rows);
  drop_partial(table.task_index, table.num_rows);
  drop_partial(table.frame_index, table.num_rows);
  drop_partial(table.episode_index, table.num_rows);
  drop_partial(table.index, table.num_rows);
  if (!layout.is_v3()) {
    for (EpisodeRecord& episode : layout.episodes) {
      if (episode.data_file < 0) continue;
      const auto file = static_cast<size_t>(episode.data_file);
      episode.row_begin = table.file_begin[file];
      episode.row_end = table.file_begin[file + 1];
    }
  }
  return table;
}

}  // namespace longship::data::lerobot
