#include "data/tokenizer/hf_decoder.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/strings.h"
#include "data/tokenizer/hf_byte_level.h"
#include "data/tokenizer/hf_pattern.h"
#include "data/tokenizer/hf_pretokenizer.h"
#include "data/tokenizer/hf_unicode.h"

namespace longship::data::hf {
namespace {

constexpr size_t kMaxSteps = 64;
constexpr int64_t kMaxStripped = 1 << 20;

/// The bytes of all tokens as one text; a token outside the byte alphabet stands for itself.
class ByteLevel final : public Decoder {
 public:
  void apply(std::vector<std::string>& parts) const override {
    std::string bytes;
    for (const std::string& part : parts) {
      const size_t before = bytes.size();
      for (size_t pos = 0; pos < part.size();) {
        const CodePoint c = code_point_at(part, pos);
        const int byte = byte_of_code_point(c.value);
        if (byte < 0) {
          bytes.resize(before);
          bytes += part;
          break;
        }
        bytes += static_cast<char>(byte);
        pos += c.num_bytes;
      }
    }
    parts.assign(1, to_valid_utf8(bytes));
  }
};

class Replace final : public Decoder {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(std::vector<std::string>& parts) const override {
    std::vector<TextRange> matches;
    for (std::string& part : parts) {
      pattern_.find_all(part, matches);
      if (matches.empty()) continue;
      std::string out;
      size_t done = 0;
      for (const TextRange& match : matches) {
        out += part.substr(done, match.begin - done);
        out += content_;
        done = match.end;
      }
      out += part.substr(done);
      part = std::move(out);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

/// Runs of tokens such as <0x41> become their bytes; a run that is no UTF-8 one U+FFFD for each.
class ByteFallback final : public Decoder {
 public:
  void apply(std::vector<std::string>& parts) const override {
    std::vector<std::string> out;
    std::string run;
    const auto end_run = [&] {
      if (run.empty()) return;
      if (find_invalid_utf8(run) == std::string_view::npos) {
        out.push_back(run);
      } else {
        out.insert(out.end(), run.size(), "\xEF\xBF\xBD");
      }
      run.clear();
    };
    for (std::string& part : parts) {
      const int byte = byte_named(part);
      if (byte >= 0) {
        run += static_cast<char>(byte);
        continue;
      }
      end_run();
      out.push_back(std::move(part));
    }
    end_run();
    parts = std::move(out);
  }

 private:
  static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  }

  static int byte_named(const std::string& part) {
    if (part.size() != 6 || part.compare(0, 3, "<0x") != 0 || part[5] != '>') return -1;
    const int high = part[3] == '+' ? 0 : digit(part[3]);  // a sign is allowed
    const int low = digit(part[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }
};

class Fuse final : public Decoder {
 public:
  void apply(std::vector<std::string>& parts) const override {
    std::string all;
    for (const std::string& part : parts) all += part;
    parts.assign(1, std::move(all));
  }
};

/// Takes up to `start` and `stop` of one character off the ends of every part.
class Strip final : public Decoder {
 public:
  Strip(char32_t content, int64_t start, int64_t stop) : start_(start), stop_(stop) {
    append_utf8(content_, content);
  }

  void apply(std::vector<std::string>& parts) const override {
    const size_t n = content_.size();
    for (std::string& part : parts) {
      size_t begin = 0, end = part.size();
      for (int64_t i = 0; i < start_ && part.compare(begin, n, content_) == 0; ++i) begin += n;
      for (int64_t i = 0; i < stop_ && end >= begin + n && part.compare(end - n, n, content_) == 0;
           ++i) {
        end -= n;
      }
      part = part.substr(begin, end - begin);
    }
  }

 private:
  std::string content_;
  int64_t start_, stop_;
};

/// The sign becomes a space again; in the first part it goes, where it may have been put in front.
class Metaspace final : public Decoder {
 public:
  Metaspace(char32_t replacement, bool prepended)
      : replacement_(replacement), prepended_(prepended) {}

  void apply(std::vector<std::string>& parts) const override {
    for (size_t i = 0; i < parts.size(); ++i) {
      std::string out;
      for (size_t pos = 0; pos < parts[i].size();) {
        const CodePoint c = code_point_at(parts[i], pos);
        pos += c.num_bytes;
        if (c.value != replacement_) {
          append_utf8(out, c.value);
        } else if (i > 0 || !prepended_) {
          out += ' ';
        }
      }
      parts[i] = std::move(out);
    }
  }

 private:
  char32_t replacement_;
  bool prepended_;
};

class Sequence final : public Decoder {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const Decoder>> steps) : steps_(std::move(steps)) {}

  void apply(std::vector<std::string>& parts) const override {
    size_t limit = 1 << 20;
    for (const std::string& part : parts) limit += 64 * part.size();
    for (const auto& step : steps_) {
      step->apply(parts);
      size_t size = 0;
      for (const std::string& part : parts) size += part.size();
      LS_CHECK(size <= limit, DataError,
               "the tokenizer's decoder makes a text of {}: its replacements grow without bound",
               human_bytes(size));
    }
  }

 private:
  std::vector<std::unique_ptr<const Decoder>> steps_;
};

}  // namespace

std::unique_ptr<const Decoder> parse_decoder(const JsonField& field) {
  const JsonField type_field = field.at("type");
  const std::string& type = type_field.as_string(kMaxTextBytes);
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  if (type == "Replace") {
    return std::make_unique<Replace>(Pattern::parse(field.at("pattern")),
                                     field.at("content").as_string(kMaxTextBytes));
  }
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "Strip") {
    return std::make_unique<Strip>(field.at("content").as_code_point(),
                                   field.at("start").as_integer(0, kMaxStripped),
                                   field.at("stop").as_integer(0, kMaxStripped));
  }
  if (type == "Metaspace") {
    return std::make_unique<Metaspace>(field.at("replacement").as_code_point(),
                                       parse_prepend_scheme(field) != PrependScheme::kNever);
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<const Decoder>> steps;
    for (const JsonField& step : field.at("decoders").elements(kMaxSteps)) {
      steps.push_back(parse_decoder(step));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  type_field.fail(
      fmt::format("the decoder \"{}\" is not supported; known are ByteLevel, Replace, "
                  "ByteFallback, Fuse, Strip, Metaspace and Sequence",
                  printable(type)));
}

}  // namespace longship::data::hf
