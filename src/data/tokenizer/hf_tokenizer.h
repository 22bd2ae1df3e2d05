#pragma once
// tokenizer.json files of the tokenizers library (version 0.23) with a BPE model: the tokenizers of
// Qwen, Llama, Gemma, DeepSeek and GPT-2. Ids, offsets and decoded texts are the library's.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longship::data {

struct HfEncoding {
  std::vector<int64_t> ids;
  /// One for each id: [begin, end) in Unicode code points of the text as it was given, before any
  /// normalisation. 0..0 for tokens that the post-processor adds.
  std::vector<std::pair<int64_t, int64_t>> offsets;
};

/// Immutable and thread-safe.
class HfTokenizer {
 public:
  /// Throws DataError naming file and key: missing, too large, no JSON, a component of a type that
  /// is not supported, values of other types or out of bounds, merges of unknown tokens, ids that
  /// are used twice or do not follow the vocabulary, unsound regular expressions, truncation or
  /// padding.
  static std::shared_ptr<const HfTokenizer> load(const std::filesystem::path& path);
  /// `name` stands for the file in messages.
  static std::shared_ptr<const HfTokenizer> from_bytes(std::string_view bytes,
                                                       const std::string& name);

  virtual ~HfTokenizer() = default;
  /// Invalid UTF-8 is encoded as U+FFFD, one for each maximal part of a sequence, and counts as one
  /// code point each. Throws DataError for texts above 64 MiB, for a regular expression that
  /// exceeds its limit of effort, and where the vocabulary lacks its own unknown token.
  virtual HfEncoding encode(std::string_view text, bool add_special_tokens) const = 0;
  /// Text of ids; special tokens are left out on demand. Bytes that are no UTF-8 become U+FFFD as
  /// the file's decoder does it. Throws ShapeError for an id that no token has.
  virtual std::string decode(std::span<const int64_t> ids, bool skip_special_tokens) const = 0;
  /// The id of a token as the vocabulary writes it ("Ġthe"), added tokens included.
  virtual std::optional<int64_t> token_id(std::string_view token) const = 0;
  /// The token of an id as decode() takes it: as the vocabulary writes it; an added token that is
  /// looked for in normalised text is normalised. Throws ShapeError for an id that no token has.
  virtual std::string token(int64_t id) const = 0;
  virtual bool is_special(int64_t id) const = 0;
  /// Number of tokens, added ones included.
  virtual int64_t vocab_size() const = 0;
  /// One past the largest id: more than vocab_size() when ids have gaps.
  virtual int64_t id_bound() const = 0;
};

}  // namespace longship::data
