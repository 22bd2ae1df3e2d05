#pragma once
// The key "pre_tokenizer" of a tokenizer.json.

#include <memory>

#include "data/tokenizer/hf_json.h"
#include "data/tokenizer/hf_text.h"

namespace longship::data::hf {

/// Immutable and thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Cuts the pieces that are no added tokens into smaller ones, and may change their text.
  virtual void apply(PieceText& text) const = 0;
};

/// Where Metaspace puts its sign in front: the text's first piece, none, or every piece.
enum class PrependScheme { kFirst, kNever, kAlways };
/// Of a pre-tokenizer or decoder "Metaspace". Throws DataError when its fields contradict each
/// other.
PrependScheme parse_prepend_scheme(const JsonField& field);

/// Split, ByteLevel, Digits, Metaspace and Sequence. Throws DataError for other types and for
/// fields that do not fit.
std::unique_ptr<const PreTokenizer> parse_pre_tokenizer(const JsonField& field);

}  // namespace longship::data::hf
