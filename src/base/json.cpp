#include "base/json.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/strings.h"

namespace longship {

namespace {

std::string place(std::string_view text, std::string_view name, size_t byte) {
  byte = std::min(byte, text.size());
  const std::string_view before = text.substr(0, byte);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t line_start = before.rfind('\n');
  const size_t column = line_start == std::string_view::npos ? byte : byte - line_start - 1;
  return fmt::format("{}:{}:{}", name, line, std::max<size_t>(column, 1));
}

// nlohmann's text begins with "[json.exception.parse_error.101] parse error at line 1, column 2: ";
// the place is ours.
std::string reason(const std::string& what) {
  const size_t at = what.find(": ");
  const std::string rest = at == std::string::npos ? what : what.substr(at + 2);
  return printable(rest, 300);
}

// JSON has no literal for them, Python's json module writes them all the same.
std::string_view non_finite_token(std::string_view text, size_t byte) {
  const size_t from = byte > 12 ? byte - 12 : 0;
  const std::string_view around = text.substr(std::min(from, text.size()), 24);
  for (const std::string_view token : {"NaN", "Infinity"}) {
    if (around.find(token) != std::string_view::npos) return token;
  }
  return {};
}

template <class Json>
Json parse(std::string_view text, std::string_view name, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    throw_error(limits.code,
                fmt::format("{} has {}, more than the {} allowed for such a file", name,
                            human_bytes(text.size()), human_bytes(limits.max_bytes)));
  }
  // Keys of every open object, to find duplicates: the last one would win silently.
  std::vector<std::set<std::string>> open;
  const auto check = [&](int depth, typename Json::parse_event_t event, Json& parsed) {
    using Event = typename Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= limits.max_depth) {
        throw_error(limits.code,
                    fmt::format("{}: nested deeper than {} levels", name, limits.max_depth));
      }
      if (event == Event::object_start) open.emplace_back();
    } else if (event == Event::object_end) {
      open.pop_back();
    } else if (event == Event::key) {
      const auto& key = parsed.template get_ref<const std::string&>();
      if (!open.back().insert(key).second) {
        throw_error(limits.code,
                    fmt::format("{}: key \"{}\" stands twice in one object", name, printable(key)));
      }
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const nlohmann::json::parse_error& e) {
    std::string message = fmt::format("{}: {}", place(text, name, e.byte), reason(e.what()));
    if (const std::string_view token = non_finite_token(text, e.byte); !token.empty()) {
      message += fmt::format("; {} is no JSON number", token);
    }
    throw_error(limits.code, message);
  } catch (const nlohmann::json::exception& e) {
    throw_error(limits.code, fmt::format("{}: {}", name, printable(e.what(), 300)));
  }
}

}  // namespace

nlohmann::json parse_json_text(std::string_view text, std::string_view name,
                               const JsonLimits& limits) {
  return parse<nlohmann::json>(text, name, limits);
}

nlohmann::json parse_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse<nlohmann::json>(read_file(path, limits.max_bytes, limits.code), path.string(),
                               limits);
}

nlohmann::ordered_json parse_ordered_json_text(std::string_view text, std::string_view name,
                                               const JsonLimits& limits) {
  return parse<nlohmann::ordered_json>(text, name, limits);
}

nlohmann::ordered_json parse_ordered_json_file(const std::filesystem::path& path,
                                               const JsonLimits& limits) {
  return parse<nlohmann::ordered_json>(read_file(path, limits.max_bytes, limits.code),
                                       path.string(), limits);
}

}  // namespace longship
