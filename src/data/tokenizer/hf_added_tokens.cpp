#include "data/tokenizer/hf_added_tokens.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/strings.h"
#include "data/tokenizer/hf_split.h"
#include "data/tokenizer/hf_unicode.h"

namespace longship::data::hf {
namespace {

constexpr size_t kMaxAddedTokens = 1 << 18;
constexpr size_t kMaxContentBytes = 1024;
constexpr size_t kMaxFinderNodes = 4 << 20;

uint64_t edge(int32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
}

AddedToken parse_token(const JsonField& field) {
  AddedToken token;
  token.id = static_cast<int32_t>(field.at("id").as_integer(0, kMaxTokens - 1));
  const JsonField content = field.at("content");
  token.content = content.as_string(kMaxContentBytes);
  if (token.content.empty()) content.fail("it is empty");
  token.single_word = field.at("single_word").as_bool();
  token.lstrip = field.at("lstrip").as_bool();
  token.rstrip = field.at("rstrip").as_bool();
  token.normalized = field.at("normalized").as_bool();
  token.special = field.at("special").as_bool();
  return token;
}

}  // namespace

TextFinder::TextFinder() : values_(1, -1) {
  roots_.fill(-1);
}

bool TextFinder::add(std::string_view text, int32_t value) {
  int32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto fresh = static_cast<int32_t>(values_.size());
    int32_t& next = i == 0 ? roots_[static_cast<uint8_t>(text[i])]
                           : edges_.try_emplace(edge(node, text[i]), -1).first->second;
    if (next < 0) {
      next = fresh;
      values_.push_back(-1);
    }
    node = next;
  }
  int32_t& at = values_[static_cast<size_t>(node)];
  if (text.empty() || at >= 0) return false;
  at = value;
  return true;
}

std::optional<TextFinder::Found> TextFinder::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    int32_t node = roots_[static_cast<uint8_t>(text[begin])];
    if (node < 0) continue;
    std::optional<Found> longest;
    for (size_t end = begin + 1;; ++end) {
      const int32_t value = values_[static_cast<size_t>(node)];
      if (value >= 0) longest = Found{begin, end, value};
      if (end == text.size()) break;
      const auto next = edges_.find(edge(node, text[end]));
      if (next == edges_.end()) break;
      node = next->second;
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

AddedTokens AddedTokens::parse(const JsonField& field, const BpeModel& model,
                               const Normalizer* normalizer) {
  AddedTokens added;
  int64_t next_id = model.size();
  for (const JsonField& entry : field.elements(kMaxAddedTokens)) {
    AddedToken token = parse_token(entry);
    const std::string name = printable(token.content, 60);
    if (!added.ids_.emplace(token.content, token.id).second) {
      entry.fail(fmt::format("the token \"{}\" is added twice", name));
    }
    const auto known = model.find(token.content);
    const int64_t id = known ? *known : next_id;
    if (token.id != id) {
      entry.fail(
          known ? fmt::format("\"{}\" has id {} here, but {} in the vocabulary", name, token.id, id)
                : fmt::format("\"{}\" has id {}, but the next free one is {}: ids of new "
                              "tokens follow the vocabulary without gaps",
                              name, token.id, id));
    }
    // With gaps in the vocabulary the next free id may be none.
    if (!known && model.token(id) != nullptr) {
      entry.fail(fmt::format("id {} of \"{}\" is that of \"{}\" in the vocabulary", id, name,
                             printable(*model.token(id), 60)));
    }
    if (!known) {
      ++next_id;
      ++added.num_new_;
    }
    added.id_bound_ = std::max(added.id_bound_, id + 1);
    token.decoded = token.content;
    if (token.normalized && normalizer != nullptr) {
      AlignedText content(token.content);
      normalizer->apply(content);
      token.decoded = content.text();
    }
    TextFinder& finder = token.normalized ? added.normalized_ : added.plain_;
    if (!finder.add(token.decoded, token.id)) {
      entry.fail(fmt::format("\"{}\" is looked for as \"{}\", which is empty or another token's",
                             name, printable(token.decoded, 60)));
    }
    if (finder.num_nodes() > kMaxFinderNodes) entry.fail("the added tokens are too long together");
    if (token.special) added.special_.insert(token.content);
    added.tokens_.emplace(id, std::move(token));
  }
  return added;
}

void AddedTokens::split(const AlignedText& aligned, const Piece& piece, const TextFinder& finder,
                        std::vector<Piece>& pieces) const {
  const std::string_view text = aligned.text(piece.begin, piece.end);
  size_t done = 0;
  const auto add = [&](size_t begin, size_t end, int32_t id) {
    if (begin >= end) return;
    pieces.push_back(sub_piece(aligned, piece, begin, end));
    pieces.back().added_token = id;
  };
  size_t from = 0;
  while (!finder.empty()) {
    const auto found = finder.find(text, from);
    if (!found) break;
    from = found->end;
    size_t begin = found->begin, end = found->end;
    const AddedToken& token = tokens_.at(found->value);
    if (token.single_word) {
      const bool goes_on_before =
          begin > 0 && is_word_character(code_point_before(text, begin).value);
      const bool goes_on_behind =
          end < text.size() && is_word_character(code_point_at(text, end).value);
      if (goes_on_before || goes_on_behind) continue;
    }
    // Space that the token before took is gone.
    while (token.lstrip && begin > 0) {
      const CodePoint c = code_point_before(text, begin);
      if (!is_white_space(c.value)) break;
      begin -= c.num_bytes;
    }
    if (token.lstrip) begin = std::max(begin, done);
    while (token.rstrip && end < text.size()) {
      const CodePoint c = code_point_at(text, end);
      if (!is_white_space(c.value)) break;
      end += c.num_bytes;
    }
    add(done, begin, -1);
    add(begin, end, found->value);
    done = end;
  }
  add(done, text.size(), -1);
}

PieceText AddedTokens::extract(std::string_view text, const Normalizer* normalizer) const {
  PieceText plain;
  plain.aligned = AlignedText(text);
  Piece whole;
  whole.end = static_cast<uint32_t>(text.size());
  split(plain.aligned, whole, plain_, plain.pieces);

  PieceText out;
  out.aligned.reserve(plain.aligned.size() + 16);
  for (Piece piece : plain.pieces) {
    const auto begin = static_cast<uint32_t>(out.aligned.size());
    if (piece.added_token >= 0 || normalizer == nullptr) {
      out.aligned.append(plain.aligned, piece.begin, piece.end);
    } else {
      AlignedText part;
      part.append(plain.aligned, piece.begin, piece.end);
      normalizer->apply(part);
      part.check_growth(piece.end - piece.begin);
      out.aligned.append(part);
    }
    piece.begin = begin;
    piece.end = static_cast<uint32_t>(out.aligned.size());
    if (piece.added_token >= 0) {
      out.pieces.push_back(piece);
    } else {
      split(out.aligned, piece, normalized_, out.pieces);
    }
  }
  return out;
}

std::optional<int32_t> AddedTokens::find(std::string_view token) const {
  const auto found = ids_.find(std::string(token));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const AddedToken* AddedTokens::token(int64_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

}  // namespace longship::data::hf
