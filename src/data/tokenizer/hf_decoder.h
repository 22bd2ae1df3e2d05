#pragma once
// The key "decoder" of a tokenizer.json: from the texts of tokens to a text.

#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer/hf_json.h"

namespace longship::data::hf {

/// Immutable and thread-safe.
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Changes the parts whose concatenation becomes the text; all are valid UTF-8.
  virtual void apply(std::vector<std::string>& parts) const = 0;
};

/// ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and Sequence. Throws DataError for
/// other types and for fields that do not fit.
std::unique_ptr<const Decoder> parse_decoder(const JsonField& field);

}  // namespace longship::data::hf
