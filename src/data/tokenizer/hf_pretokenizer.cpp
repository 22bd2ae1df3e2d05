#include "data/tokenizer/hf_pretokenizer.h"

#include <fmt/core.h>

#include "base/strings.h"
#include "data/tokenizer/hf_byte_level.h"
#include "data/tokenizer/hf_pattern.h"
#include "data/tokenizer/hf_split.h"
#include "data/tokenizer/hf_unicode.h"

namespace longship::data::hf {
namespace {

constexpr size_t kMaxSteps = 64;

/// Writes every piece that is no added token anew, in order, into one new text.
template <class Write>
void rewrite_pieces(PieceText& text, Write write) {
  AlignedText out;
  out.reserve(text.aligned.size() + text.aligned.size() / 2);
  for (Piece& piece : text.pieces) {
    const auto begin = static_cast<uint32_t>(out.size());
    if (piece.added_token >= 0) {
      out.append(text.aligned, piece.begin, piece.end);
    } else {
      write(piece, out);
    }
    piece.begin = begin;
    piece.end = static_cast<uint32_t>(out.size());
  }
  text.aligned = std::move(out);
}

bool begins_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

class Split final : public PreTokenizer {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void apply(PieceText& text) const override {
    split_pieces(
        text,
        [this](std::string_view piece, std::vector<TextRange>& matches) {
          pattern_.find_all(piece, matches);
        },
        behavior_, invert_);
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex, const std::string& place)
      : add_prefix_space_(add_prefix_space) {
    if (use_regex) regex_.emplace(kByteLevelPattern, place);
  }

  void apply(PieceText& text) const override {
    if (add_prefix_space_) add_prefix_spaces(text);
    if (regex_) {
      split_pieces(
          text,
          [this](std::string_view piece, std::vector<TextRange>& matches) {
            regex_->find_all(piece, matches);
          },
          SplitBehavior::kIsolated, false);
    }
    const auto& points = byte_code_points();
    rewrite_pieces(text, [&](const Piece& piece, AlignedText& out) {
      for (size_t i = piece.begin; i < piece.end; ++i) {
        out.append(points[static_cast<uint8_t>(text.aligned.text()[i])], text.aligned.spans()[i]);
      }
    });
  }

 private:
  static void add_prefix_spaces(PieceText& text) {
    rewrite_pieces(text, [&](const Piece& piece, AlignedText& out) {
      if (piece.begin < piece.end && !begins_with(text.text(piece), " ")) {
        out.append(U' ', text.aligned.spans()[piece.begin]);
      }
      out.append(text.aligned, piece.begin, piece.end);
    });
  }

  bool add_prefix_space_;
  std::optional<Regex> regex_;
};

class Digits final : public PreTokenizer {
 public:
  explicit Digits(bool individual) : individual_(individual) {}

  void apply(PieceText& text) const override {
    split_pieces(text, find, individual_ ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                 false);
  }

 private:
  static void find(std::string_view text, std::vector<TextRange>& matches) {
    matches.clear();
    for (size_t pos = 0; pos < text.size();) {
      const CodePoint c = code_point_at(text, pos);
      if (is_numeric(c.value)) matches.push_back({pos, pos + c.num_bytes});
      pos += c.num_bytes;
    }
  }

  bool individual_;
};

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(char32_t replacement, PrependScheme prepend, bool split)
      : prepend_(prepend), split_(split) {
    append_utf8(replacement_, replacement);
  }

  void apply(PieceText& text) const override {
    rewrite_pieces(text, [&](const Piece& piece, AlignedText& out) {
      const std::string_view now = text.text(piece);
      const bool wanted = prepend_ == PrependScheme::kAlways ||
                          (prepend_ == PrependScheme::kFirst && piece.original_begin == 0);
      if (wanted && !now.empty() && now[0] != ' ' && !begins_with(now, replacement_)) {
        out.append(replacement_, text.aligned.spans()[piece.begin]);
      }
      for (size_t i = piece.begin; i < piece.end; ++i) {
        if (text.aligned.text()[i] == ' ') {
          out.append(replacement_, text.aligned.spans()[i]);
        } else {
          out.append(text.aligned, i, i + 1);
        }
      }
    });
    if (!split_) return;
    split_pieces(
        text,
        [this](std::string_view piece, std::vector<TextRange>& matches) {
          matches.clear();
          for (size_t at = piece.find(replacement_); at != std::string_view::npos;
               at = piece.find(replacement_, at + replacement_.size())) {
            matches.push_back({at, at + replacement_.size()});
          }
        },
        SplitBehavior::kMergedWithNext, false);
  }

 private:
  std::string replacement_;
  PrependScheme prepend_;
  bool split_;
};

class Sequence final : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const PreTokenizer>> steps)
      : steps_(std::move(steps)) {}

  void apply(PieceText& text) const override {
    const size_t size = text.aligned.size();
    for (const auto& step : steps_) {
      step->apply(text);
      text.aligned.check_growth(size);
    }
  }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> steps_;
};

SplitBehavior parse_behavior(const JsonField& field) {
  const std::string& name = field.as_string(kMaxTextBytes);
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  field.fail(
      fmt::format("\"{}\" is no behavior; known are Removed, Isolated, MergedWithPrevious, "
                  "MergedWithNext and Contiguous",
                  printable(name)));
}

}  // namespace

PrependScheme parse_prepend_scheme(const JsonField& field) {
  PrependScheme prepend = PrependScheme::kAlways;
  if (const auto scheme = field.find("prepend_scheme")) {
    const std::string& name = scheme->as_string(kMaxTextBytes);
    if (name == "first") {
      prepend = PrependScheme::kFirst;
    } else if (name == "never") {
      prepend = PrependScheme::kNever;
    } else if (name != "always") {
      scheme->fail(fmt::format("\"{}\" is none of first, never and always", printable(name)));
    }
  }
  if (!field.bool_or("add_prefix_space", true) && prepend != PrependScheme::kNever) {
    field.fail("\"add_prefix_space\" is false, but \"prepend_scheme\" is not \"never\"");
  }
  return prepend;
}

std::unique_ptr<const PreTokenizer> parse_pre_tokenizer(const JsonField& field) {
  const JsonField type_field = field.at("type");
  const std::string& type = type_field.as_string(kMaxTextBytes);
  if (type == "Split") {
    return std::make_unique<Split>(Pattern::parse(field.at("pattern")),
                                   parse_behavior(field.at("behavior")),
                                   field.at("invert").as_bool());
  }
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(field.at("add_prefix_space").as_bool(),
                                       field.bool_or("use_regex", true),
                                       field.file() + ": " + field.key());
  }
  if (type == "Digits") {
    return std::make_unique<Digits>(field.at("individual_digits").as_bool());
  }
  if (type == "Metaspace") {
    return std::make_unique<Metaspace>(field.at("replacement").as_code_point(),
                                       parse_prepend_scheme(field), field.bool_or("split", true));
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<const PreTokenizer>> steps;
    for (const JsonField& step : field.at("pretokenizers").elements(kMaxSteps)) {
      steps.push_back(parse_pre_tokenizer(step));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  type_field.fail(
      fmt::format("the pre-tokenizer \"{}\" is not supported; known are Split, ByteLevel, "
                  "Digits, Metaspace and Sequence",
                  printable(type)));
}

}  // namespace longship::data::hf
