#pragma once
// The key "added_tokens" of a tokenizer.json: tokens that are found in a text before the model
// runs.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "data/tokenizer/hf_bpe.h"
#include "data/tokenizer/hf_json.h"
#include "data/tokenizer/hf_normalizer.h"
#include "data/tokenizer/hf_text.h"

namespace longship::data::hf {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  std::string decoded;                  // the normalised content where that is what is looked for
  bool single_word = false;             // only where no word goes on before or behind it
  bool lstrip = false, rstrip = false;  // takes the white space before, behind it along
  bool normalized = false;              // looked for in the normalised text
  bool special = false;                 // left out of decoded texts on demand
};

/// A set of texts, found leftmost and, there, longest.
class TextFinder {
 public:
  TextFinder();
  /// False when the text is there already.
  bool add(std::string_view text, int32_t value);
  bool empty() const { return values_.size() == 1; }
  size_t num_nodes() const { return values_.size(); }

  struct Found {
    size_t begin = 0, end = 0;
    int32_t value = 0;
  };
  /// The first text at or behind `from`.
  std::optional<Found> find(std::string_view text, size_t from) const;

 private:
  std::array<int32_t, 256> roots_;               // by first byte, -1 for none
  std::unordered_map<uint64_t, int32_t> edges_;  // node << 8 | byte -> node
  std::vector<int32_t> values_;                  // by node, -1 inside of texts
};

/// Immutable and thread-safe.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// Ids follow from the order of the list and from the model's vocabulary; a file whose ids differ
  /// is refused with DataError, as are empty and repeated tokens.
  static AddedTokens parse(const JsonField& field, const BpeModel& model,
                           const Normalizer* normalizer);

  /// Cuts a text (valid UTF-8) at added tokens and normalises what lies between them. No piece is
  /// empty.
  PieceText extract(std::string_view text, const Normalizer* normalizer) const;

  std::optional<int32_t> find(std::string_view token) const;
  /// The token of an id, or nullptr.
  const AddedToken* token(int64_t id) const;
  /// Whether the text is a special token's content.
  bool is_special(std::string_view text) const {
    return special_.find(std::string(text)) != special_.end();
  }
  /// Tokens that the model lacks.
  int64_t num_new() const { return num_new_; }
  /// One past the largest id.
  int64_t id_bound() const { return id_bound_; }

 private:
  void split(const AlignedText& text, const Piece& piece, const TextFinder& finder,
             std::vector<Piece>& pieces) const;

  std::unordered_map<int64_t, AddedToken> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_set<std::string> special_;
  TextFinder plain_, normalized_;
  int64_t num_new_ = 0, id_bound_ = 0;
};

}  // namespace longship::data::hf
