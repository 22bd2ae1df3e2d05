#include "data/windows.h"

#include <cmath>

#include "base/error.h"

namespace longship::data {

std::vector<int64_t> frame_offsets(std::span<const double> seconds, double fps,
                                   const std::string& what) {
  LS_CHECK(std::isfinite(fps) && fps > 0, ConfigError, "{}: the rate is {}", what, fps);
  std::vector<int64_t> out;
  for (const double second : seconds) {
    LS_CHECK(std::isfinite(second) && std::abs(second * fps) < 1e12, ConfigError,
             "{}: {} is no time offset", what, second);
    const double frame = std::round(second * fps);
    if (std::abs(frame / fps - second) > 1e-4) {
      const double below = std::floor(second * fps);
      throw ConfigError(fmt::format(
          "{}: {} s is no whole number of frames at {} per second; the nearest are {:.6g} s "
          "({} frames) and {:.6g} s ({} frames)",
          what, second, fps, below / fps, static_cast<int64_t>(below), (below + 1) / fps,
          static_cast<int64_t>(below) + 1));
    }
    out.push_back(static_cast<int64_t>(frame));
  }
  return out;
}

}  // namespace longship::data
