#pragma once
// What the bench commands share: where a report goes, and lists of numbers as options.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace longship::apps {

/// Prints `text`, and writes the report to `path` where that is not empty; "-": the report alone on
/// standard output. Returns the exit code.
int put_report(const nlohmann::json& report, const std::string& path, const std::string& text);

/// "8,64,1024" as whole numbers of at least `least`. Throws CLI::ValidationError: `option`:
/// 'part' is no `what`.
std::vector<int64_t> numbers_of(const std::string& option, const std::string& text, int64_t least,
                                const std::string& what);

}  // namespace longship::apps
