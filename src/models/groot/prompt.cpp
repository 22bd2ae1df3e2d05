#include "models/groot/prompt.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/strings.h"

namespace longship::models {
namespace {

using CodePoint = utf8proc_int32_t;

std::vector<CodePoint> decode(std::string_view text) {
  const size_t bad = find_invalid_utf8(text);
  LS_CHECK(bad == std::string_view::npos, DataError,
           "a task text is no UTF-8 from byte {} on: \"{}\"", bad, printable(text));
  std::vector<CodePoint> out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    CodePoint c = 0;
    const utf8proc_ssize_t bytes =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                         static_cast<utf8proc_ssize_t>(text.size() - at), &c);
    LS_CHECK(bytes > 0, InternalError, "byte {} of a valid text could not be decoded", at);
    out.push_back(c);
    at += static_cast<size_t>(bytes);
  }
  return out;
}

void append(std::string& text, CodePoint c) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const utf8proc_ssize_t n = utf8proc_encode_char(c, bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(n));
}

/// \w or \s of Python's re for text: str.isalnum() or "_"; white space, which Python takes from the
/// bidirectional class and the category.
bool stays(CodePoint c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
    case UTF8PROC_CATEGORY_ZS:
      return true;
    default:
      break;
  }
  if (c == '_') return true;
  const auto bidi = utf8proc_get_property(c)->bidi_class;
  return bidi == UTF8PROC_BIDI_CLASS_WS || bidi == UTF8PROC_BIDI_CLASS_B ||
         bidi == UTF8PROC_BIDI_CLASS_S;
}

bool is_cased(CodePoint c) {
  return utf8proc_islower(c) != 0 || utf8proc_isupper(c) != 0 ||
         utf8proc_category(c) == UTF8PROC_CATEGORY_LT;
}

/// Unicode's Case_Ignorable.
bool is_case_ignorable(CodePoint c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      break;
  }
  // Punctuation that stands inside of words.
  constexpr std::array<CodePoint, 17> kInside = {0x27,   0x2E,   0x3A,   0xB7,   0x387,  0x55F,
                                                 0x5F4,  0x2018, 0x2019, 0x2024, 0x2027, 0xFE13,
                                                 0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
  return std::find(kInside.begin(), kInside.end(), c) != kInside.end();
}

/// Whether the capital sigma at `at` ends a word, so that its small form is another letter.
bool ends_word(std::span<const CodePoint> text, size_t at) {
  size_t i = at;
  while (i > 0 && is_case_ignorable(text[i - 1])) --i;
  if (i == 0 || !is_cased(text[i - 1])) return false;
  size_t j = at + 1;
  while (j < text.size() && is_case_ignorable(text[j])) ++j;
  return j == text.size() || !is_cased(text[j]);
}

constexpr CodePoint kCapitalSigma = 0x3A3, kSmallSigma = 0x3C3, kFinalSigma = 0x3C2;

void append_repeated(std::string& text, std::string_view piece, int64_t times) {
  for (int64_t i = 0; i < times; ++i) text += piece;
}

/// What stands in the text for picture `k` (from 0) with `count` tokens; a negative count gives the
/// template's placeholder.
std::string picture_text(GrootVersion version, size_t k, int64_t count) {
  std::string text;
  if (version == GrootVersion::kN16) {
    if (count < 0) return fmt::format("<image-{}>", k + 1);
    text = fmt::format("<image {}><img>", k + 1);
    append_repeated(text, "<IMG_CONTEXT>", count);
    return text + "</img>";
  }
  text = "<|vision_start|>";
  append_repeated(text, "<|image_pad|>", count < 0 ? 1 : count);
  return text + "<|vision_end|>";
}

std::string chat_text(GrootVersion version, std::string_view task, std::string_view pictures) {
  const std::string user = "<|im_start|>user\n", end = "<|im_end|>\n";
  if (version == GrootVersion::kN16) {
    return fmt::format("<|im_start|>system\nYou are a helpful assistant.{}{}{}{}{}", end, user,
                       task, pictures, end);
  }
  return fmt::format("{}{}{}{}", user, pictures, task, end);
}

}  // namespace

std::string formalize_language(std::string_view task) {
  const std::vector<CodePoint> text = decode(task);
  std::string out;
  out.reserve(task.size());
  for (size_t i = 0; i < text.size(); ++i) {
    // The one letter with a longer small form, U+0130, gives "i" and a mark, and marks do not stay.
    CodePoint c = utf8proc_tolower(text[i]);
    if (text[i] == kCapitalSigma) c = ends_word(text, i) ? kFinalSigma : kSmallSigma;
    if (stays(c)) append(out, c);
  }
  return out;
}

std::string groot_prompt(GrootVersion version, std::string_view task, int64_t pictures) {
  std::string places;
  for (int64_t k = 0; k < pictures; ++k) {
    places += picture_text(version, static_cast<size_t>(k), -1);
  }
  return chat_text(version, task, places);
}

std::string groot_expanded_prompt(GrootVersion version, std::string_view task,
                                  std::span<const int64_t> counts) {
  std::string places;
  for (size_t k = 0; k < counts.size(); ++k) places += picture_text(version, k, counts[k]);
  return chat_text(version, task, places);
}

std::vector<int64_t> groot_tokens(GrootVersion version, std::string_view task,
                                  std::span<const int64_t> counts, int64_t image_token,
                                  const GrootTokenize& tokenize) {
  const std::vector<int64_t> ones(counts.size(), 1);
  const std::vector<int64_t> ids = tokenize(groot_expanded_prompt(version, task, ones));
  const auto found = static_cast<size_t>(std::count(ids.begin(), ids.end(), image_token));
  LS_CHECK(found == counts.size(), CheckpointError,
           "the tokenizer gives {} tokens {} for the {} places of pictures in a prompt; it must "
           "turn {} into that one id, and no task may hold it",
           found, image_token, counts.size(),
           version == GrootVersion::kN16 ? "<IMG_CONTEXT>" : "<|image_pad|>");
  std::vector<int64_t> out;
  size_t picture = 0;
  for (const int64_t id : ids) {
    if (id != image_token) {
      out.push_back(id);
    } else {
      out.insert(out.end(), static_cast<size_t>(counts[picture++]), id);
    }
  }
  return out;
}

}  // namespace longship::models
