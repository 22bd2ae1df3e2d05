#pragma once
// Pictures as PNG files, for reports.

#include <cstdint>
#include <span>
#include <string>

namespace longship::io {

/// rgb: [height, width, 3] row-major. Throws DataError when the size is out of range.
std::string encode_png(std::span<const uint8_t> rgb, int64_t height, int64_t width);

}  // namespace longship::io
