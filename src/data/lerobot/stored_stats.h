#pragma once
// The statistics that a dataset brings along.

#include <map>
#include <string>

#include "data/checks.h"
#include "data/dataset.h"
#include "data/lerobot/layout.h"
#include "data/lerobot/table.h"

namespace longship::data::lerobot {

/// meta/stats.json (v3.0, v2.0), or the aggregate of meta/episodes_stats.jsonl (v2.1): counts add
/// up, means are weighted by count, var = sum(count * (std^2 + (mean_e - mean)^2)) / sum(count),
/// min and max over all, as lerobot's aggregate_stats; there are no quantiles then. The std of
/// cameras and of columns of 8- or 16-bit integers is left out: the writers of v3.0 squared such
/// values in their own width, which overflows. Missing statistics are a note.
std::map<std::string, FeatureStats> read_stored_stats(const Layout& layout, Findings& findings);

/// Compares stored statistics with the rows: widths, and dimensions said to be constant whose rows
/// differ.
void check_stats(const Layout& layout, const Table& table,
                 const std::map<std::string, FeatureStats>& stats, const OpenOptions& options,
                 Findings& findings);

}  // namespace longship::data::lerobot
