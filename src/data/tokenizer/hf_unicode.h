#pragma once
// Code points as the tokenizers library sees them. Its tables are of other Unicode versions than
// those of the C libraries here: regular expressions know Unicode 16.0, normalisation forms 9.0,
// digits and lower case 17.0.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace longship::data::hf {

struct CodePoint {
  char32_t value = 0;
  uint32_t num_bytes = 0;
};

/// The code point that begins at `pos`. `text` is well-formed UTF-8 and `pos` lies on a boundary.
CodePoint code_point_at(std::string_view text, size_t pos);
/// The code point that ends before `end` (> 0).
CodePoint code_point_before(std::string_view text, size_t end);
void append_utf8(std::string& text, char32_t c);
size_t count_code_points(std::string_view text);

/// Ill-formed UTF-8 becomes U+FFFD, one for each maximal part of a sequence (Unicode, table 3-8).
std::string to_valid_utf8(std::string_view bytes);

/// Property White_Space.
bool is_white_space(char32_t c);
/// General categories Nd, Nl, No (Unicode 17.0).
bool is_numeric(char32_t c);
/// Alphabetic, marks, decimal digits, connector punctuation and the two joiners (UTS #18, \w).
bool is_word_character(char32_t c);
/// Full lower case mapping without context (Unicode 17.0).
void append_lower_case(std::u32string& text, char32_t c);

/// Code points [first, last] of one general category ("Lu").
struct CategoryRange {
  char32_t first = 0, last = 0;
  char category[3] = "";
};
/// Code points [first, last] of one script.
struct ScriptRange {
  char32_t first = 0, last = 0;
  const char* script = "";
};

/// What Unicode 15 and 16 assigned, in order: PCRE2 and utf8proc here may know 14 only.
std::span<const CategoryRange> new_categories();
std::span<const ScriptRange> new_scripts();
/// Whether a text holds one of them.
bool has_new_code_points(std::string_view text);
/// Whether a code point with a decomposition or a combining class came after Unicode 9.0.
bool is_newer_than_normalisation(char32_t c);

}  // namespace longship::data::hf
