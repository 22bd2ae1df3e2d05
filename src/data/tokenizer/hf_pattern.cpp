#include "data/tokenizer/hf_pattern.h"

namespace longship::data::hf {

Pattern Pattern::parse(const JsonField& field) {
  Pattern pattern;
  if (const auto fixed = field.find("String")) {
    pattern.fixed_ = fixed->as_string(kMaxTextBytes);
    // An empty text is found between any two characters, as the regular expression is.
    if (pattern.fixed_.empty()) pattern.regex_.emplace("", field.file() + ": " + fixed->key());
  } else if (const auto regex = field.find("Regex")) {
    pattern.regex_.emplace(regex->as_string(1 << 20), field.file() + ": " + regex->key());
  } else {
    field.fail("expected {\"String\": ...} or {\"Regex\": ...}");
  }
  return pattern;
}

void Pattern::find_all(std::string_view text, std::vector<TextRange>& matches) const {
  if (regex_) return regex_->find_all(text, matches);
  matches.clear();
  for (size_t at = text.find(fixed_); at != std::string_view::npos;
       at = text.find(fixed_, at + fixed_.size())) {
    matches.push_back({at, at + fixed_.size()});
  }
}

}  // namespace longship::data::hf
