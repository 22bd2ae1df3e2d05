#pragma once
// Prompt text of Pi0 and Pi0.5 and the digits of the discretised state. Source: openpi
// models/tokenizer.py (PaligemmaTokenizer.tokenize); pinned by tests/golden/pi05/preprocess and
// paligemma_tokenizer.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/sentencepiece.h"

namespace longship::models {

inline constexpr int64_t kStateBins = 256;

/// Bin of one normalised value: (number of edges -1 + k/128, k = 0..255, that are <= value) - 1. So
/// below -1 gives -1, from 127/128 on 255, NaN 255. Not clipped.
int64_t state_bin(float value);
std::vector<int64_t> discretise_state(std::span<const float> state);

/// Text with Unicode white space (Python's str.strip) removed at both ends. `text` is UTF-8.
std::string_view strip_unicode(std::string_view text);
/// strip, then every "_" and "\n" becomes a space. Case, tabs, "\r" and inner runs of spaces stay.
std::string clean_task(std::string_view task);

/// "Task: <clean task>, State: <bins joined by spaces>;\nAction: " (with the space at the end).
std::string pi05_prompt(std::string_view task, std::span<const int64_t> bins);
/// LoongForge without a state: "Task: <stripped task>;\nAction: "; "_" and newlines stay.
std::string loongforge_prompt_without_state(std::string_view task);

/// BOS followed by the ids of pi05_prompt(). Complete: never cut, never padded.
std::vector<int64_t> pi05_tokens(const data::SentencePieceTokenizer& tokenizer,
                                 std::string_view task, std::span<const int64_t> bins);
/// Pi0: BOS, ids of the clean task, then the separately encoded "\n".
std::vector<int64_t> pi0_tokens(const data::SentencePieceTokenizer& tokenizer,
                                std::string_view task);

/// The references' fixed-length form: cut at the right or padded with `pad_id` to `length`; mask 1
/// on real tokens. Training never uses it on a prompt that is too long; parity and serving of
/// reference recordings do.
struct PaddedTokens {
  std::vector<int64_t> ids;
  std::vector<uint8_t> mask;
};
PaddedTokens pad_tokens(std::span<const int64_t> ids, int64_t length, int64_t pad_id);

}  // namespace longship::models
