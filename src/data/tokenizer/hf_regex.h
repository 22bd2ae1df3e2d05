#pragma once
// Regular expressions of tokenizer.json files: the dialect of the library that wrote them
// (Oniguruma, Ruby syntax), run by PCRE2.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace longship::data::hf {

struct TextRange {
  size_t begin = 0, end = 0;
};

/// Immutable and thread-safe.
class Regex {
 public:
  /// Throws DataError "<place>: ..." for a pattern that is malformed, or uses what the translation
  /// does not cover (hf_regex_syntax.h).
  Regex(std::string_view pattern, const std::string& place);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// Matches in order, without overlap; an empty match directly behind the last one is none. `text`
  /// is valid UTF-8. Throws DataError when the search exceeds the limits of effort.
  void find_all(std::string_view text, std::vector<TextRange>& matches) const;

 private:
  struct Program;
  std::string place_;
  std::unique_ptr<const Program> known_, all_;  // all_: only where new code points matter
};

}  // namespace longship::data::hf
