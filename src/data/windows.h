#pragma once
// Windows stated in seconds as frames.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace longship::data {

/// Frame offsets of time offsets (seconds, any order, both signs, duplicates kept) at `fps`. An
/// offset within 1e-4 s of a frame is that frame, as the official reader accepts it; another one
/// throws ConfigError naming `what`, the offset and the nearest legal values.
std::vector<int64_t> frame_offsets(std::span<const double> seconds, double fps,
                                   const std::string& what);

}  // namespace longship::data
