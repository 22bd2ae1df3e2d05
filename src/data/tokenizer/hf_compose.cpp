#include "data/tokenizer/hf_compose.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "data/tokenizer/hf_unicode.h"

namespace longship::data::hf {
namespace {

// Hangul syllables (Unicode, section 3.12).
constexpr char32_t kSyllable = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTails = 28;
constexpr char32_t kSyllables = kLeads * kVowels * kTails;

struct Classed {
  Change change;
  int combining_class = 0;
};

int combining_class(char32_t c) {
  if (c < 0x300 || is_newer_than_normalisation(c)) return 0;
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

std::optional<char32_t> composed(char32_t a, char32_t b) {
  if (a >= kLead && a < kLead + kLeads && b >= kVowel && b < kVowel + kVowels) {
    return kSyllable + ((a - kLead) * kVowels + (b - kVowel)) * kTails;
  }
  if (a >= kSyllable && a < kSyllable + kSyllables && (a - kSyllable) % kTails == 0 && b > kTail &&
      b < kTail + kTails) {
    return a + (b - kTail);
  }
  // No second part of another composition is below U+0300; utf8proc takes kTail for one.
  if (b < 0x300 || b == kTail) return std::nullopt;
  std::array<utf8proc_int32_t, 2> pair = {static_cast<utf8proc_int32_t>(a),
                                          static_cast<utf8proc_int32_t>(b)};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  if (utf8proc_normalize_utf32(pair.data(), pair.size(), options) != 1) return std::nullopt;
  const auto c = static_cast<char32_t>(pair[0]);
  if (is_newer_than_normalisation(c)) return std::nullopt;
  return c;
}

void append_decomposition(std::vector<Classed>& out, char32_t c, bool compatible) {
  std::array<utf8proc_int32_t, 32> parts = {};
  utf8proc_ssize_t count = 1;
  parts[0] = static_cast<utf8proc_int32_t>(c);
  if (c >= 0xA0 && !is_newer_than_normalisation(c)) {
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                        (compatible ? UTF8PROC_COMPAT : 0));
    int boundary = 0;
    count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
                                    options, &boundary);
    LS_CHECK(count >= 1 && count <= static_cast<utf8proc_ssize_t>(parts.size()), InternalError,
             "utf8proc cannot decompose U+{:04X}", static_cast<uint32_t>(c));
  }
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const auto part = static_cast<char32_t>(parts[i]);
    out.push_back({{part, i == 0 ? 0 : 1}, combining_class(part)});
  }
}

/// Decomposed and in canonical order.
std::vector<Classed> decompose(std::string_view text, bool compatible) {
  std::vector<Classed> out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = code_point_at(text, pos);
    append_decomposition(out, c.value, compatible);
    pos += c.num_bytes;
  }
  for (auto from = out.begin(); from != out.end();) {
    if (from->combining_class == 0) {
      ++from;
      continue;
    }
    const auto to =
        std::find_if(from, out.end(), [](const Classed& c) { return c.combining_class == 0; });
    std::stable_sort(from, to, [](const Classed& a, const Classed& b) {
      return a.combining_class < b.combining_class;
    });
    from = to;
  }
  return out;
}

std::vector<Change> compose(const std::vector<Classed>& parts) {
  std::vector<Change> out;
  out.reserve(parts.size());
  size_t starter = parts.size();  // in out; none yet
  int last_class = -1;            // of what stands between the starter and here
  for (const Classed& part : parts) {
    if (starter < out.size()) {
      const bool blocked = last_class >= part.combining_class;
      Change& first = out[starter];
      const auto whole = blocked ? std::nullopt : composed(first.c, part.change.c);
      if (whole) {
        first.c = *whole;
        first.change += part.change.change - 1;
        continue;
      }
    }
    if (part.combining_class == 0) {
      starter = out.size();
      last_class = -1;
    } else {
      last_class = part.combining_class;
    }
    out.push_back(part.change);
  }
  return out;
}

}  // namespace

std::vector<Change> normalise(std::string_view text, NormalisationForm form) {
  const bool compatible = form == NormalisationForm::kNfkc || form == NormalisationForm::kNfkd;
  const std::vector<Classed> parts = decompose(text, compatible);
  if (form == NormalisationForm::kNfc || form == NormalisationForm::kNfkc) return compose(parts);
  std::vector<Change> out;
  out.reserve(parts.size());
  for (const Classed& part : parts) out.push_back(part.change);
  return out;
}

}  // namespace longship::data::hf
