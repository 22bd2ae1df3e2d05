#pragma once
// How values and limits are written, shared by the printing visitors and by messages. Internal to
// base/config.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config/visitor.h"

namespace longship::config {

// As YAML that loads back to the same value.
std::string format_value(bool value);
std::string format_value(int64_t value);
std::string format_value(double value);
std::string format_value(std::string_view value);
std::string format_value(const std::string& value);
std::string format_value(const CountOrList& value);
std::string format_value(const std::vector<std::pair<std::string, std::string>>& value);

template <class T>
std::string format_value(const std::vector<T>& value) {
  std::string out = "[";
  for (size_t i = 0; i < value.size(); ++i) {
    if (i > 0) out += ", ";
    out += format_value(value[i]);
  }
  return out + "]";
}

template <class T>
std::string format_value(const std::optional<T>& value) {
  return value ? format_value(*value) : "null";
}

/// "", ">= 0", "<= 1", "from 0 to 1", "0 or 1"; numbers in shortest form.
std::string format_range(const Meta& meta);

/// "a number from 0 to 1 s": what a field wants, for messages. `what` is "a number".
std::string format_expected(std::string_view what, const Meta& meta);

// Names of types as help and messages write them.
inline std::string_view type_name(const bool&) {
  return "true or false";
}
inline std::string_view type_name(const int64_t&) {
  return "whole number";
}
inline std::string_view type_name(const double&) {
  return "number";
}
inline std::string_view type_name(const std::string&) {
  return "text";
}
inline std::string_view type_name(const std::optional<int64_t>&) {
  return "whole number or null";
}
inline std::string_view type_name(const std::optional<double>&) {
  return "number or null";
}
inline std::string_view type_name(const std::optional<std::string>&) {
  return "text or null";
}
inline std::string_view type_name(const std::vector<int64_t>&) {
  return "list of whole numbers";
}
inline std::string_view type_name(const std::vector<double>&) {
  return "list of numbers";
}
inline std::string_view type_name(const std::vector<std::string>&) {
  return "list of texts";
}
inline std::string_view type_name(const CountOrList&) {
  return "count or list of whole numbers";
}
inline std::string_view type_name(const std::vector<std::pair<std::string, std::string>>&) {
  return "map from name to name";
}

}  // namespace longship::config
