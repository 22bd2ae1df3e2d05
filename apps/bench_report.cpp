#include "apps/bench_report.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/fs.h"
#include "base/strings.h"

namespace longship::apps {

int put_report(const nlohmann::json& report, const std::string& path, const std::string& text) {
  if (path == "-") {
    fmt::print("{}\n", report.dump(1));
    return 0;
  }
  fmt::print("{}", text);
  if (!path.empty()) {
    write_file_atomic(path, report.dump(1) + "\n");
    fmt::print("{}\n", path);
  }
  return 0;
}

std::vector<int64_t> numbers_of(const std::string& option, const std::string& text, int64_t least,
                                const std::string& what) {
  std::vector<int64_t> out;
  for (const std::string& part : split(text, ',')) {
    const std::optional<int64_t> number = parse_whole_number(part);
    if (!number || *number < least) {
      throw CLI::ValidationError(option, fmt::format("'{}' is no {}", part, what));
    }
    out.push_back(*number);
  }
  return out;
}

}  // namespace longship::apps
