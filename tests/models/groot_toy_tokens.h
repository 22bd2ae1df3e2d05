#pragma once
// A tokenizer for tests that look at tokens one by one.

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace longship::testing {

/// Cuts a text at the special tokens; every other byte is the token `first_byte` + its value.
inline std::vector<int64_t> toy_tokens_with(
    std::string_view text, std::span<const std::pair<std::string_view, int64_t>> special,
    int64_t first_byte) {
  std::vector<int64_t> out;
  while (!text.empty()) {
    size_t bytes = 1;
    int64_t id = first_byte + static_cast<uint8_t>(text.front());
    for (const auto& [name, token] : special) {
      if (!text.starts_with(name)) continue;
      id = token;
      bytes = name.size();
    }
    out.push_back(id);
    text.remove_prefix(bytes);
  }
  return out;
}

/// One token per byte, and one for a picture's place, as the demo sizes number it.
inline std::vector<int64_t> toy_tokens(std::string_view text) {
  static constexpr std::pair<std::string_view, int64_t> kPlaces[] = {{"<IMG_CONTEXT>", 2},
                                                                     {"<|image_pad|>", 1}};
  return toy_tokens_with(text, kPlaces, 256);
}

}  // namespace longship::testing
