#include "data/tokenizer/hf_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "base/strings.h"
#include "data/tokenizer/hf_regex_syntax.h"
#include "data/tokenizer/hf_unicode.h"

namespace longship::data::hf {
namespace {

constexpr size_t kMaxPatternBytes = 16 << 10;
constexpr uint32_t kMaxMatchSteps = 10'000'000;
constexpr uint32_t kMaxMatchKiB = 64 << 10;

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};

std::string error_text(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

PCRE2_SPTR bytes_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

struct Regex::Program {
  std::unique_ptr<pcre2_code, Free> code;
  std::unique_ptr<pcre2_match_context, Free> limits;

  Program(const std::string& pattern, std::string_view written, const std::string& place) {
    const std::unique_ptr<pcre2_compile_context, Free> context(
        pcre2_compile_context_create(nullptr));
    limits.reset(pcre2_match_context_create(nullptr));
    LS_CHECK(context && limits, DataError, "{}: no memory for a regular expression", place);
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    pcre2_set_match_limit(limits.get(), kMaxMatchSteps);
    pcre2_set_heap_limit(limits.get(), kMaxMatchKiB);
    int error = 0;
    size_t at = 0;
    code.reset(pcre2_compile(bytes_of(pattern), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &error, &at, context.get()));
    LS_CHECK(code, DataError, "{}: the regular expression \"{}\" is not sound: {}", place,
             printable(written, 200), error_text(error));
    // Without it, or where it refuses, the interpreter runs.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  }

  /// True with the match at or behind `start`, false when there is none.
  bool match(std::string_view text, size_t start, pcre2_match_data* data,
             const std::string& place) const {
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc =
        pcre2_match(code.get(), bytes_of(text), text.size(), start, options, data, limits.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      options |= PCRE2_NO_JIT;
      rc = pcre2_match(code.get(), bytes_of(text), text.size(), start, options, data, limits.get());
    }
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    LS_CHECK(rc >= 0, DataError, "{}: the regular expression fails on a text of {} bytes: {}",
             place, text.size(), error_text(rc));
    return true;
  }
};

Regex::Regex(std::string_view pattern, const std::string& place) : place_(place) {
  LS_CHECK(pattern.size() <= kMaxPatternBytes, DataError,
           "{}: a regular expression of {} bytes, at most {} are read", place, pattern.size(),
           kMaxPatternBytes);
  const std::string known = to_pcre2(pattern, false, place);
  const std::string all = to_pcre2(pattern, true, place);
  known_ = std::make_unique<const Program>(known, pattern, place);
  if (all != known) all_ = std::make_unique<const Program>(all, pattern, place);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::find_all(std::string_view text, std::vector<TextRange>& matches) const {
  matches.clear();
  if (text.empty()) return;
  // Classes that name the new code points one by one are slower, and texts rarely hold any.
  const Program& program = all_ && has_new_code_points(text) ? *all_ : *known_;
  const std::unique_ptr<pcre2_match_data, Free> data(pcre2_match_data_create(1, nullptr));
  LS_CHECK(data, DataError, "{}: no memory for a search", place_);
  const size_t* range = pcre2_get_ovector_pointer(data.get());
  size_t start = 0;
  bool matched = false;
  size_t last_end = 0;
  while (start <= text.size() && program.match(text, start, data.get(), place_)) {
    const size_t begin = range[0], end = range[1];
    if (begin == end && matched && last_end == end) {
      start += start < text.size() ? code_point_at(text, start).num_bytes : 1;
      continue;
    }
    matches.push_back({begin, end});
    start = last_end = end;
    matched = true;
  }
}

}  // namespace longship::data::hf
