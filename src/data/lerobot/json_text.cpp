#include "data/lerobot/json_text.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/strings.h"

namespace longship::data::lerobot {

namespace {

constexpr uint64_t kMaxMetadataBytes = uint64_t{2} << 30;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
// The longer word first: "-Infinity" ends in "Infinity".
constexpr std::string_view kPythonWords[] = {"-Infinity", "Infinity", "NaN"};

}  // namespace

std::string standard_json(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      out += c;
      if (c == '\\' && i + 1 < text.size()) out += text[++i];
      if (c == '"') in_string = false;
      continue;
    }
    in_string = c == '"';
    bool replaced = false;
    if (c == 'N' || c == 'I' || c == '-') {
      for (const std::string_view word : kPythonWords) {
        if (!text.substr(i).starts_with(word)) continue;
        out += '"';
        out += word;
        out += '"';
        i += word.size() - 1;
        replaced = true;
        break;
      }
    }
    if (!replaced) out += c;
  }
  return out;
}

nlohmann::ordered_json read_json_object(const std::filesystem::path& path) {
  const std::string text = standard_json(read_file(path, JsonLimits{}.max_bytes, ExitCode::kData));
  nlohmann::ordered_json json = parse_ordered_json_text(text, path.string());
  LS_CHECK(json.is_object(), DataError, "{}: the file must hold one JSON object", path.string());
  return json;
}

bool read_json_lines(const std::filesystem::path& path, const std::string& label,
                     Findings& findings,
                     const std::function<void(int64_t, const nlohmann::ordered_json&)>& use) {
  std::string text;
  try {
    text = read_file(path, kMaxMetadataBytes, ExitCode::kData);
  } catch (const Error& error) {
    findings.error("file-unreadable", label, error.what());
    return false;
  }
  std::string_view rest = text;
  if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    const std::string_view line = trim(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.empty()) continue;
    const std::string place = fmt::format("{} line {}", label, number);
    try {
      const nlohmann::ordered_json object = parse_ordered_json_text(standard_json(line), place);
      LS_CHECK(object.is_object(), DataError, "the line is JSON, but no object");
      use(number, object);
    } catch (const Error& error) {
      findings.error("json-syntax", place,
                     fmt::format("the line is not one whole JSON object ({})", error.what()),
                     "one object per line",
                     "write each record on a line of its own, or restore the file from its writer");
      return false;
    }
  }
  return true;
}

double json_number(const nlohmann::ordered_json& value, std::string_view what) {
  if (value.is_number()) return value.get<double>();
  if (value.is_boolean()) return value.get<bool>() ? 1.0 : 0.0;
  if (value.is_string()) {
    const auto& word = value.get_ref<const std::string&>();
    if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (word == "Infinity") return std::numeric_limits<double>::infinity();
    if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
  }
  throw DataError(fmt::format("{} is {}, not a number", what, printable(value.dump())));
}

int64_t json_integer(const nlohmann::ordered_json& value, std::string_view what) {
  if (value.is_number_integer() &&
      !(value.is_number_unsigned() &&
        value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
    return value.get<int64_t>();
  }
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (number == std::floor(number) && std::abs(number) < 9.0e15) {
      return static_cast<int64_t>(number);
    }
  }
  throw DataError(fmt::format("{} is {}, not a whole number", what, printable(value.dump())));
}

std::vector<double> json_numbers(const nlohmann::ordered_json& value, std::string_view what) {
  if (!value.is_array()) return {json_number(value, what)};
  std::vector<double> out;
  for (const auto& item : value) {
    const std::vector<double> part = json_numbers(item, what);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

}  // namespace longship::data::lerobot
