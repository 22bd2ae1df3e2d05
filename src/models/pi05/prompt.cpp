#include "models/pi05/prompt.h"

#include <algorithm>
#include <cmath>

namespace longship::models {
namespace {

/// Code points for which Python's str.isspace() is true.
bool is_python_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

/// Bytes of the white space character at the start of `text`, 0 when it starts with another one.
/// Only the one- to three-byte forms in which white space occurs are decoded.
size_t space_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  if (text.empty()) return 0;
  if (byte(0) < 0x80) return is_python_space(byte(0)) ? 1 : 0;
  if ((byte(0) & 0xE0) == 0xC0 && text.size() >= 2) {
    return is_python_space((byte(0) & 0x1F) << 6 | (byte(1) & 0x3F)) ? 2 : 0;
  }
  if ((byte(0) & 0xF0) == 0xE0 && text.size() >= 3) {
    return is_python_space((byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F)) ? 3
                                                                                              : 0;
  }
  return 0;
}

}  // namespace

int64_t state_bin(float value) {
  if (std::isnan(value)) return kStateBins - 1;
  if (value < -1.0F) return -1;
  if (value >= 1.0F) return kStateBins - 1;
  // value * 128 is exact, and floor before adding keeps tiny negative values in bin 127.
  return kStateBins / 2 + static_cast<int64_t>(std::floor(value * 128.0F));
}

std::vector<int64_t> discretise_state(std::span<const float> state) {
  std::vector<int64_t> bins(state.size());
  std::transform(state.begin(), state.end(), bins.begin(), state_bin);
  return bins;
}

std::string_view strip_unicode(std::string_view text) {
  while (const size_t n = space_bytes(text)) text.remove_prefix(n);
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && text.size() - start < 3 &&
           (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80)
      --start;
    const std::string_view last = text.substr(start);
    if (space_bytes(last) != last.size()) break;
    text.remove_suffix(last.size());
  }
  return text;
}

std::string clean_task(std::string_view task) {
  std::string text(strip_unicode(task));
  for (char& c : text) {
    if (c == '_' || c == '\n') c = ' ';
  }
  return text;
}

std::string pi05_prompt(std::string_view task, std::span<const int64_t> bins) {
  std::string prompt = "Task: " + clean_task(task) + ", State: ";
  for (size_t i = 0; i < bins.size(); ++i) {
    if (i > 0) prompt += ' ';
    prompt += std::to_string(bins[i]);
  }
  return prompt + ";\nAction: ";
}

std::string loongforge_prompt_without_state(std::string_view task) {
  return "Task: " + std::string(strip_unicode(task)) + ";\nAction: ";
}

std::vector<int64_t> pi05_tokens(const data::SentencePieceTokenizer& tokenizer,
                                 std::string_view task, std::span<const int64_t> bins) {
  std::vector<int64_t> ids = tokenizer.encode(pi05_prompt(task, bins));
  ids.insert(ids.begin(), tokenizer.bos_id());
  return ids;
}

std::vector<int64_t> pi0_tokens(const data::SentencePieceTokenizer& tokenizer,
                                std::string_view task) {
  std::vector<int64_t> ids = tokenizer.encode(clean_task(task));
  ids.insert(ids.begin(), tokenizer.bos_id());
  const std::vector<int64_t> end = tokenizer.encode("\n");
  ids.insert(ids.end(), end.begin(), end.end());
  return ids;
}

PaddedTokens pad_tokens(std::span<const int64_t> ids, int64_t length, int64_t pad_id) {
  const auto n = std::min(ids.size(), static_cast<size_t>(length));
  PaddedTokens padded;
  padded.ids.assign(ids.begin(), ids.begin() + static_cast<int64_t>(n));
  padded.ids.resize(static_cast<size_t>(length), pad_id);
  padded.mask.assign(n, 1);
  padded.mask.resize(static_cast<size_t>(length), 0);
  return padded;
}

}  // namespace longship::models
