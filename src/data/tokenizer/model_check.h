#pragma once
// Bounded check of a SentencePiece ModelProto before the library parses it: the library aborts, or
// reads out of bounds, on some damaged files.

#include <cstdint>
#include <string>
#include <string_view>

namespace longship::data {

inline constexpr uint64_t kMaxTokenizerBytes = 64ULL << 20;
inline constexpr int64_t kMaxTokenizerPieces = 1 << 20;

/// Facts that a sound model file states.
struct TokenizerModelFacts {
  int64_t num_pieces = 0;
  int64_t model_type = 1;  // 1 unigram, 2 BPE
  bool byte_fallback = false;
};

/// Checks sizes, wire types, piece count, unique non-empty UTF-8 pieces, finite scores, exactly one
/// unknown piece, byte pieces, model type, and the memory safety of the normaliser's trie. Throws
/// CheckpointError "<name>: ...".
TokenizerModelFacts check_tokenizer_model(std::string_view bytes, const std::string& name);

}  // namespace longship::data
