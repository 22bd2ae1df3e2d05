#include "data/tokenizer/hf_unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "base/strings.h"
#include "data/tokenizer/hf_unicode_tables.h"

namespace longship::data::hf {
namespace {

template <class Ranges>
auto find_range(const Ranges& ranges, char32_t c) {
  auto at = std::upper_bound(std::begin(ranges), std::end(ranges), c,
                             [](char32_t value, const auto& range) { return value < range.first; });
  if (at == std::begin(ranges)) return std::end(ranges);
  --at;
  return c <= at->last ? at : std::end(ranges);
}

uint8_t byte_at(std::string_view text, size_t pos) {
  return static_cast<uint8_t>(text[pos]);
}

/// General category by Unicode 16.0.
std::string_view category_of(char32_t c) {
  const auto at = find_range(kNewCategories, c);
  if (at != std::end(kNewCategories)) return at->category;
  return utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
}

/// Digits that Unicode 17.0 added.
bool is_newest_number(char32_t c) {
  return (c >= 0x11DE0 && c <= 0x11DE9) || (c >= 0x16FF4 && c <= 0x16FF6);
}

/// Alphabetic code points whose category does not say so (Other_Alphabetic of category So).
bool is_circled_letter(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

/// Bytes of the longest part at `pos` that a well-formed sequence could begin with.
size_t ill_formed_length(std::string_view bytes, size_t pos) {
  const uint8_t lead = byte_at(bytes, pos);
  size_t wanted = 0;
  uint8_t low = 0x80, high = 0xBF;  // of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    wanted = 1;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    wanted = 2;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    wanted = 3;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  size_t length = 1;
  for (; length <= wanted && pos + length < bytes.size(); ++length) {
    const uint8_t next = byte_at(bytes, pos + length);
    if (next < low || next > high) break;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t pos) {
  const uint8_t lead = byte_at(text, pos);
  if (lead < 0x80) return {lead, 1};
  const auto tail = [&](size_t i) { return static_cast<char32_t>(byte_at(text, pos + i) & 0x3F); };
  if (lead < 0xE0) return {(static_cast<char32_t>(lead & 0x1F) << 6) | tail(1), 2};
  if (lead < 0xF0) {
    return {(static_cast<char32_t>(lead & 0x0F) << 12) | (tail(1) << 6) | tail(2), 3};
  }
  return {(static_cast<char32_t>(lead & 0x07) << 18) | (tail(1) << 12) | (tail(2) << 6) | tail(3),
          4};
}

CodePoint code_point_before(std::string_view text, size_t end) {
  size_t pos = end - 1;
  while ((byte_at(text, pos) & 0xC0) == 0x80) --pos;
  return code_point_at(text, pos);
}

void append_utf8(std::string& text, char32_t c) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(static_cast<uint8_t>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const size_t good = find_invalid_utf8(bytes);
    text += bytes.substr(0, good);
    if (good == std::string_view::npos) break;
    append_utf8(text, 0xFFFD);
    bytes.remove_prefix(good + ill_formed_length(bytes, good));
  }
  return text;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return category_of(c)[0] == 'N' || is_newest_number(c);
}

bool is_word_character(char32_t c) {
  if (c < 0x80) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
  const std::string_view category = category_of(c);
  return category[0] == 'L' || category[0] == 'M' || category == "Nd" || category == "Nl" ||
         category == "Pc" || is_circled_letter(c) || c == 0x200C || c == 0x200D;
}

void append_lower_case(std::u32string& text, char32_t c) {
  if (c == 0x130) {  // the only one whose full mapping has two
    text += U"i\u0307";
    return;
  }
  if (const auto at = find_range(kNewLowerCase, c); at != std::end(kNewLowerCase)) {
    text += static_cast<char32_t>(static_cast<int64_t>(c) + at->difference);
    return;
  }
  text += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

std::span<const CategoryRange> new_categories() {
  return kNewCategories;
}
std::span<const ScriptRange> new_scripts() {
  return kNewScripts;
}

bool has_new_code_points(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    // The first of them is U+0897: shorter sequences cannot be new.
    const uint8_t lead = byte_at(text, pos);
    if (lead < 0xE0) {
      pos += lead < 0x80 ? 1 : 2;
      continue;
    }
    const CodePoint point = code_point_at(text, pos);
    if (find_range(kNewCategories, point.value) != std::end(kNewCategories)) return true;
    pos += point.num_bytes;
  }
  return false;
}

bool is_newer_than_normalisation(char32_t c) {
  return find_range(kNewerThanNormalisation, c) != std::end(kNewerThanNormalisation) ||
         find_range(kNewCategories, c) != std::end(kNewCategories);
}

}  // namespace longship::data::hf
