#pragma once
// The key "normalizer" of a tokenizer.json.

#include <memory>

#include "data/tokenizer/hf_json.h"
#include "data/tokenizer/hf_text.h"

namespace longship::data::hf {

/// Immutable and thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// `text` is one part of the input between added tokens, as it stands there at first.
  virtual void apply(AlignedText& text) const = 0;
};

/// NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Lowercase and Sequence. Throws DataError for
/// other types and for fields that do not fit.
std::unique_ptr<const Normalizer> parse_normalizer(const JsonField& field);

}  // namespace longship::data::hf
