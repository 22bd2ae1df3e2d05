#pragma once
// The numeric rows of a dataset in memory.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data/checks.h"
#include "data/lerobot/layout.h"

namespace longship::data::lerobot {

struct ColumnData {
  int64_t width = 1;
  std::vector<float> values;  // [num_rows, width]
  bool sound = true;          // false when a file's part could not be read; reported already
};

/// Rows of all data files, one file behind the other.
struct Table {
  int64_t num_rows = 0;
  std::vector<int64_t> file_begin;  // first row of each data file, and num_rows at the end
  std::vector<bool> file_sound;     // false when a file is missing or unreadable: it counts no rows
  bool sound = true;                // all files readable
  std::map<std::string, ColumnData, std::less<>> columns;
  std::vector<double> timestamp;  // [num_rows] s, as stored; empty when there is no such column
  std::vector<int64_t> task_index, frame_index, episode_index, index;  // likewise
};

/// Reads every numeric feature of every data file. Faults go to `findings`. Sets row_begin and
/// row_end of v2.x episodes.
Table read_table(Layout& layout, Findings& findings);

/// Compares rows with metadata: lengths, row ranges, order, timestamps, task numbers, non-finite
/// values, constant columns, counters.
void check_rows(const Layout& layout, const Table& table, const OpenOptions& options,
                Findings& findings);

}  // namespace longship::data::lerobot
