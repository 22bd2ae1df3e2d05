// Values as text, and the visitor that prints a configuration as YAML.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "base/config/format.h"
#include "base/config/load.h"

namespace longship::config {

namespace {

// Words that YAML readers of some version take for something else than text.
constexpr std::array kReserved = {"null", "true", "false", "yes", "no", "on",
                                  "off",  "y",    "n",     "nan", "inf"};

bool is_plain(std::string_view text) {
  if (text.empty()) return false;
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const bool good_start =
      letter(text[0]) || text[0] == '/' || text.starts_with("./") || text.starts_with("../");
  if (!good_start) return false;
  if (!std::all_of(text.begin(), text.end(), [&](char c) {
        return letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '/' || c == '-';
      })) {
    return false;
  }
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::find(kReserved.begin(), kReserved.end(), lower) == kReserved.end();
}

std::string number(double value) {
  return fmt::format("{}", value);
}

}  // namespace

std::string format_value(bool value) {
  return value ? "true" : "false";
}

std::string format_value(int64_t value) {
  return fmt::format("{}", value);
}

std::string format_value(double value) {
  std::string text = number(value);
  // "1e-10" is text for YAML 1.1 readers, which want a dot in the mantissa; "3" would be a whole
  // number.
  if (std::isfinite(value) && text.find('.') == std::string::npos) {
    const size_t exponent = std::min(text.find('e'), text.size());
    text.insert(exponent, ".0");
  }
  return text;
}

std::string format_value(std::string_view value) {
  if (is_plain(value)) return std::string(value);
  std::string out = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string format_value(const std::string& value) {
  return format_value(std::string_view(value));
}

std::string format_value(const CountOrList& value) {
  return value.is_list ? format_value(value.list) : format_value(value.count);
}

std::string format_value(const std::vector<std::pair<std::string, std::string>>& value) {
  std::string out = "{";
  for (size_t i = 0; i < value.size(); ++i) {
    out += fmt::format("{}{}: {}", i > 0 ? ", " : "", format_value(value[i].first),
                       format_value(value[i].second));
  }
  return out + "}";
}

std::string format_range(const Meta& meta) {
  const bool has_min = std::isfinite(meta.min);
  const bool has_max = std::isfinite(meta.max);
  if (has_min && has_max) return fmt::format("from {} to {}", number(meta.min), number(meta.max));
  if (has_min) return fmt::format(">= {}", number(meta.min));
  if (has_max) return fmt::format("<= {}", number(meta.max));
  return "";
}

std::string format_expected(std::string_view what, const Meta& meta) {
  std::string out(what);
  if (const std::string range = format_range(meta); !range.empty()) out += " " + range;
  if (!meta.unit.empty()) out += fmt::format(" {}", meta.unit);
  return out;
}

namespace {

class Dumper : public Visitor {
 public:
  std::string take() { return out_.empty() ? "{}\n" : std::move(out_); }

  void field(std::string_view key, bool& value, const Meta&) override {
    line(key, format_value(value));
  }
  void field(std::string_view key, int64_t& value, const Meta&) override {
    line(key, format_value(value));
  }
  void field(std::string_view key, double& value, const Meta&) override {
    line(key, format_value(value));
  }
  void field(std::string_view key, std::string& value, const Meta&) override {
    line(key, format_value(value));
  }
  void field(std::string_view key, std::optional<int64_t>& value, const Meta&) override {
    line(key, format_value(value));
  }
  void field(std::string_view key, std::optional<double>& value, const Meta&) override {
    line(key, format_value(value));
  }
  void field(std::string_view key, std::optional<std::string>& value, const Meta&) override {
    line(key, format_value(value));
  }
  void field(std::string_view key, std::vector<int64_t>& value, const Meta&) override {
    line(key, format_value(value));
  }
  void field(std::string_view key, std::vector<double>& value, const Meta&) override {
    line(key, format_value(value));
  }
  void field(std::string_view key, std::vector<std::string>& value, const Meta&) override {
    line(key, format_value(value));
  }
  void field(std::string_view key, CountOrList& value, const Meta&) override {
    line(key, format_value(value));
  }
  void field(std::string_view key, std::vector<std::pair<std::string, std::string>>& value,
             const Meta&) override {
    if (value.empty()) return line(key, "{}");
    enter_section(key, "");
    for (const auto& [name, target] : value) line(format_value(name), format_value(target));
    leave_section();
  }
  void choice(std::string_view key, std::string& value, const std::vector<std::string>&,
              const Meta&) override {
    line(key, format_value(value));
  }
  bool enter_section(std::string_view key, std::string_view) override {
    start_line();
    out_ += fmt::format("{}:\n", key);
    body_.push_back(out_.size());
    ++depth_;
    return true;
  }
  void leave_section() override {
    --depth_;
    if (out_.size() == body_.back()) out_.insert(out_.size() - 1, " {}");
    body_.pop_back();
  }
  int64_t begin_list(std::string_view key, int64_t current_size, std::string_view) override {
    start_line();
    out_ += fmt::format("{}:{}\n", key, current_size == 0 ? " []" : "");
    ++depth_;
    return -1;
  }
  void begin_item(int64_t) override {
    dash_ = true;
    ++depth_;
  }
  void end_item() override {
    --depth_;
    if (dash_) out_ += std::string(static_cast<size_t>(2 * depth_), ' ') + "- {}\n";
    dash_ = false;
  }
  void end_list() override { --depth_; }

 private:
  void start_line() {
    const int indent = 2 * depth_ - (dash_ ? 2 : 0);
    out_ += std::string(static_cast<size_t>(indent), ' ');
    if (dash_) out_ += "- ";
    dash_ = false;
  }
  void line(std::string_view key, const std::string& value) {
    start_line();
    out_ += fmt::format("{}: {}\n", key, value);
  }

  std::string out_;
  std::vector<size_t> body_;  // where the lines of each open section begin
  int depth_ = 0;
  bool dash_ = false;  // the next line is the first of a list item
};

}  // namespace

namespace detail {

std::string dump_yaml(void* config, Walk walk) {
  Dumper dumper;
  walk(config, dumper);
  return dumper.take();
}

}  // namespace detail

}  // namespace longship::config
