#pragma once
// What Split and Replace look for: {"String": ...} or {"Regex": ...}.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/hf_json.h"
#include "data/tokenizer/hf_regex.h"

namespace longship::data::hf {

inline constexpr size_t kMaxTextBytes = 256;  // of a replacement, a prefix, a fixed pattern

class Pattern {
 public:
  static Pattern parse(const JsonField& field);
  void find_all(std::string_view text, std::vector<TextRange>& matches) const;

 private:
  std::string fixed_;
  std::optional<Regex> regex_;
};

}  // namespace longship::data::hf
