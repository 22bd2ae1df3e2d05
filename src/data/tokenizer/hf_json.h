#pragma once
// A value of a tokenizer.json together with its place, so that every refusal names file and key.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longship::data::hf {

/// A view: document and file name outlive it. Accessors throw DataError "<file>: <key>: ..." when
/// the value is of another type or outside the bounds.
class JsonField {
 public:
  JsonField(const nlohmann::json& value, const std::string& file, std::string key);

  const nlohmann::json& value() const { return *value_; }
  const std::string& file() const { return *file_; }
  const std::string& key() const { return key_; }
  [[noreturn]] void fail(const std::string& why) const;

  /// A member of an object; absent is an error.
  JsonField at(const char* name) const;
  /// A member, or nothing where it is absent or null.
  std::optional<JsonField> find(const char* name) const;
  bool has(const char* name) const;
  /// Elements of an array of at most `limit`.
  std::vector<JsonField> elements(size_t limit) const;

  const std::string& as_string(size_t max_bytes) const;
  /// The one code point of a string.
  char32_t as_code_point() const;
  bool as_bool() const;
  bool bool_or(const char* name, bool otherwise) const;
  int64_t as_integer(int64_t low, int64_t high) const;

 private:
  const nlohmann::json* value_;
  const std::string* file_;
  std::string key_;
};

}  // namespace longship::data::hf
