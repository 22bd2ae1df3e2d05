#pragma once
// Rows that hold NaN or infinite numbers, and the samples whose windows touch one.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace longship::data {

/// A frame with a non-finite number in one column.
struct BadFrame {
  int64_t sample_id = 0;
  std::string column;
  int64_t dim = 0;  // the first such dimension
  float value = 0;
};

/// Bad frames of the given columns, column by column, by rising sample id. Columns that the dataset
/// does not have are passed over.
std::vector<BadFrame> find_bad_frames(const Dataset& dataset,
                                      const std::vector<std::string>& columns);

/// Samples whose window over a column holds one of its bad frames, repeated frames at the ends of
/// an episode included. Ascending, each once.
std::vector<int64_t> samples_touching(const Dataset& dataset, std::span<const BadFrame> bad,
                                      const WindowSpec& windows);

/// Statistics of the columns named in `bad` over the rows that are not bad. Throws DataError when
/// no row is left.
std::map<std::string, FeatureStats> clean_stats(const Dataset& dataset,
                                                std::span<const BadFrame> bad);

/// "episode 1, frame 3: action[2] is nan"
std::string describe(const Dataset& dataset, const BadFrame& bad);

}  // namespace longship::data
