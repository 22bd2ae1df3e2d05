#include "data/tokenizer/hf_normalizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "base/strings.h"
#include "data/tokenizer/hf_compose.h"
#include "data/tokenizer/hf_pattern.h"
#include "data/tokenizer/hf_unicode.h"

namespace longship::data::hf {
namespace {

constexpr size_t kMaxSteps = 64;

class Form final : public Normalizer {
 public:
  explicit Form(NormalisationForm form) : form_(form) {}

  void apply(AlignedText& text) const override {
    // Nothing below U+0300 changes under NFC: its lead bytes are below 0xCC.
    const auto is_high = [](char c) { return static_cast<uint8_t>(c) >= 0xCC; };
    const auto is_ascii = [](char c) { return static_cast<uint8_t>(c) < 0x80; };
    const std::string& now = text.text();
    if (form_ == NormalisationForm::kNfc ? std::none_of(now.begin(), now.end(), is_high)
                                         : std::all_of(now.begin(), now.end(), is_ascii)) {
      return;
    }
    text.apply(normalise(now, form_));
  }

 private:
  NormalisationForm form_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(AlignedText& text) const override { text.prepend(prefix_); }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(AlignedText& text) const override {
    std::vector<TextRange> matches;
    pattern_.find_all(text.text(), matches);
    if (matches.empty()) return;
    AlignedText out;
    out.reserve(text.size() + matches.size() * content_.size());
    size_t done = 0;
    for (const TextRange& match : matches) {
      out.append(text, done, match.begin);
      // The content stands for the last code point that it replaces, or for the place in front.
      const Span& last = text.spans()[match.end == 0 ? 0 : match.end - 1];
      out.append(content_, match.end == 0 ? Span{last.begin, last.begin} : last);
      done = match.end;
    }
    out.append(text, done, text.size());
    text = std::move(out);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}

  void apply(AlignedText& text) const override {
    const std::string& now = text.text();
    size_t begin = 0, end = now.size();
    while (left_ && begin < end) {
      const CodePoint c = code_point_at(now, begin);
      if (!is_white_space(c.value)) break;
      begin += c.num_bytes;
    }
    while (right_ && end > begin) {
      const CodePoint c = code_point_before(now, end);
      if (!is_white_space(c.value)) break;
      end -= c.num_bytes;
    }
    if (begin == 0 && end == now.size()) return;
    AlignedText out;
    out.append(text, begin, end);
    text = std::move(out);
  }

 private:
  bool left_, right_;
};

class Lowercase final : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    AlignedText out;
    out.reserve(text.size());
    std::u32string lower;
    for (size_t pos = 0; pos < text.size();) {
      const CodePoint c = code_point_at(text.text(), pos);
      lower.clear();
      append_lower_case(lower, c.value);
      for (const char32_t part : lower) out.append(part, text.spans()[pos]);
      pos += c.num_bytes;
    }
    text = std::move(out);
  }
};

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const Normalizer>> steps)
      : steps_(std::move(steps)) {}

  void apply(AlignedText& text) const override {
    const size_t size = text.size();
    for (const auto& step : steps_) {
      step->apply(text);
      text.check_growth(size);
    }
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> steps_;
};

std::optional<NormalisationForm> form_named(const std::string& type) {
  if (type == "NFC") return NormalisationForm::kNfc;
  if (type == "NFD") return NormalisationForm::kNfd;
  if (type == "NFKC") return NormalisationForm::kNfkc;
  if (type == "NFKD") return NormalisationForm::kNfkd;
  return std::nullopt;
}

}  // namespace

std::unique_ptr<const Normalizer> parse_normalizer(const JsonField& field) {
  const JsonField type_field = field.at("type");
  const std::string& type = type_field.as_string(kMaxTextBytes);
  if (const auto form = form_named(type)) return std::make_unique<Form>(*form);
  if (type == "Prepend") {
    return std::make_unique<Prepend>(field.at("prepend").as_string(kMaxTextBytes));
  }
  if (type == "Replace") {
    return std::make_unique<Replace>(Pattern::parse(field.at("pattern")),
                                     field.at("content").as_string(kMaxTextBytes));
  }
  if (type == "Strip") {
    return std::make_unique<Strip>(field.at("strip_left").as_bool(),
                                   field.at("strip_right").as_bool());
  }
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "Sequence") {
    std::vector<std::unique_ptr<const Normalizer>> steps;
    for (const JsonField& step : field.at("normalizers").elements(kMaxSteps)) {
      steps.push_back(parse_normalizer(step));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  type_field.fail(
      fmt::format("the normalizer \"{}\" is not supported; known are NFC, NFD, NFKC, NFKD, "
                  "Prepend, Replace, Strip, Lowercase and Sequence",
                  printable(type)));
}

}  // namespace longship::data::hf
