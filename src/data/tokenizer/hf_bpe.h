#pragma once
// The key "model" of a tokenizer.json: byte pair encoding (Sennrich et al. 2016) with ranked
// merges.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/tokenizer/hf_json.h"

namespace longship::data::hf {

inline constexpr int64_t kMaxTokens = 1 << 21;  // entries and ids
inline constexpr int64_t kMaxMerges = 1 << 22;
inline constexpr size_t kMaxTokenBytes = 4096;

/// A token of a word: an id and bytes [begin, end) of the word. The end may lie behind the word's
/// where the word's last characters got a suffix that became bytes.
struct Token {
  int32_t id = 0;
  uint32_t begin = 0, end = 0;
};

/// Immutable and thread-safe; words that come again are answered from a cache.
class BpeModel {
 public:
  /// Throws DataError naming the key: another type, dropout, ids beyond kMaxTokens or used twice,
  /// merges of unknown tokens.
  static std::unique_ptr<const BpeModel> parse(const JsonField& field);
  ~BpeModel();

  /// Appends the tokens of a word (valid UTF-8). Throws DataError when the word needs the unknown
  /// token and the vocabulary lacks it.
  void encode(std::string_view word, std::vector<Token>& tokens) const;

  std::optional<int32_t> find(std::string_view token) const;
  /// The token of an id, or nullptr.
  const std::string* token(int64_t id) const;
  int64_t size() const { return num_tokens_; }
  /// One past the largest id.
  int64_t id_bound() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  struct Merge {
    uint64_t pair = 0;  // left id << 32 | right id
    uint32_t rank = 0;
    int32_t id = 0;
  };
  struct Symbol;
  struct Candidate;
  class Cache;

  BpeModel();
  void parse_vocabulary(const JsonField& field);
  static std::optional<std::pair<std::string_view, std::string_view>> merge_parts(
      const JsonField& list, size_t index);
  void parse_merges(const JsonField& field);
  void parse_options(const JsonField& field);
  void insert_merge(const Merge& merge);
  const Merge* find_merge(int32_t left, int32_t right) const;
  int32_t find_symbol(std::string_view character, bool is_first, bool is_last,
                      std::string& written) const;
  void begin_word(std::string_view word, std::vector<Symbol>& symbols) const;
  bool add_bytes(std::string_view text, std::vector<Symbol>& symbols) const;
  void merge_symbols(std::vector<Symbol>& symbols) const;

  std::string place_;
  std::vector<std::string> tokens_;  // by id
  std::vector<bool> used_;           // ids that have a token
  std::unordered_map<std::string_view, int32_t> ids_;
  int64_t num_tokens_ = 0;
  std::vector<int32_t> short_ids_;  // of code points below 0x800, where no affix is added
  std::vector<Merge> merges_;       // open addressing, a power of two; id -1 is free
  std::string prefix_, suffix_;     // of characters inside, and at the end, of words
  std::optional<std::string> unknown_;
  int32_t unknown_id_ = -1;
  std::array<int32_t, 256> byte_ids_{};  // of "<0x41>", or -1
  bool byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
  std::unique_ptr<Cache> cache_;
};

}  // namespace longship::data::hf
