#pragma once
// Single pictures as files hold them: PNG and JPEG, told by their first bytes and not by a name.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longship::io {

/// What the head of a picture says, without decoding it.
struct StillFacts {
  std::string kind;  // "PNG" or "JPEG"
  int64_t height = 0, width = 0;
  int64_t bits = 8;      // per channel
  int64_t channels = 3;  // as stored: 1 gray, 2 gray and alpha, 3, 4 (PNG: alpha; JPEG: CMYK)
  bool has_alpha = false;
};

/// Throws DataError with `name` in front: neither PNG nor JPEG, cut, sizes out of range.
StillFacts still_facts(std::string_view bytes, const std::string& name);

struct Still {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]
};

/// Gray is repeated to three channels, a palette expanded, alpha dropped without blending, CMYK
/// converted; an orientation noted in EXIF is ignored. Throws DataError with `name` in front: more
/// than 8 bits per channel, damaged.
Still decode_still(std::string_view bytes, const std::string& name);

}  // namespace longship::io
