#pragma once
// The dialect of JSON found in datasets: Python writes NaN and Infinity, editors add a byte-order
// mark.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/checks.h"

namespace longship::data::lerobot {

/// Drops a UTF-8 byte-order mark and turns the bare words NaN, Infinity and -Infinity into JSON
/// strings, so that strict parsing passes and the reader of a number decides. Text inside strings
/// is left alone.
std::string standard_json(std::string_view text);

/// A JSON object from a file. Throws DataError naming path, line and column.
nlohmann::ordered_json read_json_object(const std::filesystem::path& path);

/// Calls `use(line_number, object)` for every line that is not blank; CRLF line ends and a missing
/// final newline are fine. A line that is not one whole JSON object is reported as an error
/// "json-syntax" at `label` and its line number, and ends the reading. Returns false then.
bool read_json_lines(const std::filesystem::path& path, const std::string& label,
                     Findings& findings,
                     const std::function<void(int64_t, const nlohmann::ordered_json&)>& use);

/// A number, a bool as 0 or 1, or one of the strings NaN, Infinity, -Infinity as standard_json
/// leaves them. Throws DataError naming `what` for anything else.
double json_number(const nlohmann::ordered_json& value, std::string_view what);
/// A whole number (5 or 5.0). Throws DataError naming `what`.
int64_t json_integer(const nlohmann::ordered_json& value, std::string_view what);
/// All numbers of a nested array in row-major order.
std::vector<double> json_numbers(const nlohmann::ordered_json& value, std::string_view what);

}  // namespace longship::data::lerobot
