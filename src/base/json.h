#pragma once
// Bounded JSON reading (RFC 8259). Messages name path, line and column. NaN and Infinity are
// rejected, so are duplicate keys, invalid UTF-8, numbers outside double, nesting and size above
// the limits.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/error.h"

namespace longship {

struct JsonLimits {
  uint64_t max_bytes = uint64_t{256} << 20;
  int max_depth = 64;
  ExitCode code = ExitCode::kData;  // class of the exception
};

nlohmann::json parse_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});
/// `name` stands for the file in messages.
nlohmann::json parse_json_text(std::string_view text, std::string_view name,
                               const JsonLimits& limits = {});

/// The same with the keys of objects in file order.
nlohmann::ordered_json parse_ordered_json_file(const std::filesystem::path& path,
                                               const JsonLimits& limits = {});
nlohmann::ordered_json parse_ordered_json_text(std::string_view text, std::string_view name,
                                               const JsonLimits& limits = {});

}  // namespace longship
