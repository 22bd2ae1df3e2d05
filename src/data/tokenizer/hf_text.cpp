#include "data/tokenizer/hf_text.h"

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "data/tokenizer/hf_unicode.h"

namespace longship::data::hf {

AlignedText::AlignedText(std::string_view original) : text_(original) {
  spans_.reserve(original.size());
  for (size_t pos = 0; pos < original.size();) {
    const uint32_t n = code_point_at(original, pos).num_bytes;
    const auto begin = static_cast<uint32_t>(pos);
    spans_.insert(spans_.end(), n, Span{begin, begin + n});
    pos += n;
  }
}

void AlignedText::reserve(size_t num_bytes) {
  text_.reserve(num_bytes);
  spans_.reserve(num_bytes);
}

void AlignedText::append(const AlignedText& other, size_t begin, size_t end) {
  text_ += other.text(begin, end);
  spans_.insert(spans_.end(), other.spans_.begin() + static_cast<int64_t>(begin),
                other.spans_.begin() + static_cast<int64_t>(end));
}

void AlignedText::append(std::string_view text, Span span) {
  text_ += text;
  spans_.insert(spans_.end(), text.size(), span);
}

void AlignedText::append(char32_t c, Span span) {
  append_utf8(text_, c);
  spans_.resize(text_.size(), span);
}

void AlignedText::prepend(std::string_view prefix) {
  if (text_.empty()) return;
  text_.insert(0, prefix);
  const Span first = spans_.front();
  spans_.insert(spans_.begin(), prefix.size(), first);
}

void AlignedText::apply(const std::vector<Change>& changes) {
  AlignedText out;
  out.reserve(text_.size());
  size_t pos = 0;
  const auto next = [&] {
    LS_CHECK(pos < text_.size(), InternalError, "a change of a text takes more than it has");
    pos += code_point_at(text_, pos).num_bytes;
  };
  for (const Change& change : changes) {
    if (change.change > 0) {
      out.append(change.c, pos == 0 ? Span{} : spans_[pos - 1]);
      continue;
    }
    const size_t at = pos;
    next();
    out.append(change.c, spans_[at]);
    for (int64_t removed = 0; removed < -change.change; ++removed) next();
  }
  *this = std::move(out);
}

void AlignedText::check_growth(size_t num_bytes) const {
  constexpr size_t kFree = 64 << 10, kTimes = 64;
  LS_CHECK(text_.size() <= std::max(kFree, kTimes * num_bytes), DataError,
           "the tokenizer's normalizer makes {} of a text of {}: its replacements grow without "
           "bound",
           human_bytes(text_.size()), human_bytes(num_bytes));
}

}  // namespace longship::data::hf
