#include "data/tokenizer/hf_json.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/strings.h"
#include "data/tokenizer/hf_unicode.h"

namespace longship::data::hf {
namespace {

std::string kind(const nlohmann::json& value) {
  return value.is_number_float() ? "a number that is not whole" : value.type_name();
}

}  // namespace

JsonField::JsonField(const nlohmann::json& value, const std::string& file, std::string key)
    : value_(&value), file_(&file), key_(std::move(key)) {}

void JsonField::fail(const std::string& why) const {
  throw DataError(fmt::format("{}: {}: {}", *file_, key_.empty() ? "the document" : key_, why));
}

JsonField JsonField::at(const char* name) const {
  if (!value_->is_object()) fail(fmt::format("expected an object, found {}", kind(*value_)));
  const auto found = value_->find(name);
  if (found == value_->end()) fail(fmt::format("\"{}\" is missing", name));
  return {*found, *file_, key_.empty() ? name : key_ + "." + name};
}

std::optional<JsonField> JsonField::find(const char* name) const {
  if (!value_->is_object()) fail(fmt::format("expected an object, found {}", kind(*value_)));
  const auto found = value_->find(name);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return at(name);
}

bool JsonField::has(const char* name) const {
  return find(name).has_value();
}

std::vector<JsonField> JsonField::elements(size_t limit) const {
  if (!value_->is_array()) fail(fmt::format("expected an array, found {}", kind(*value_)));
  if (value_->size() > limit)
    fail(fmt::format("{} entries, at most {} are read", value_->size(), limit));
  std::vector<JsonField> fields;
  fields.reserve(value_->size());
  for (const auto& element : *value_) {
    fields.emplace_back(element, *file_, fmt::format("{}[{}]", key_, fields.size()));
  }
  return fields;
}

const std::string& JsonField::as_string(size_t max_bytes) const {
  if (!value_->is_string()) fail(fmt::format("expected a string, found {}", kind(*value_)));
  const auto& text = value_->get_ref<const std::string&>();
  if (text.size() > max_bytes) {
    fail(fmt::format("a string of {} bytes, at most {} are read", text.size(), max_bytes));
  }
  return text;
}

char32_t JsonField::as_code_point() const {
  const std::string& text = as_string(4);
  if (text.empty() || code_point_at(text, 0).num_bytes != text.size()) {
    fail(fmt::format("expected one character, found \"{}\"", printable(text)));
  }
  return code_point_at(text, 0).value;
}

bool JsonField::as_bool() const {
  if (!value_->is_boolean()) fail(fmt::format("expected true or false, found {}", kind(*value_)));
  return value_->get<bool>();
}

bool JsonField::bool_or(const char* name, bool otherwise) const {
  const auto field = find(name);
  return field ? field->as_bool() : otherwise;
}

int64_t JsonField::as_integer(int64_t low, int64_t high) const {
  if (!value_->is_number_integer()) {
    fail(fmt::format("expected a whole number, found {}", kind(*value_)));
  }
  const bool too_large =
      value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (too_large || value_->get<int64_t>() < low || value_->get<int64_t>() > high) {
    fail(fmt::format("{} is outside {}..{}", value_->dump(), low, high));
  }
  return value_->get<int64_t>();
}

}  // namespace longship::data::hf
