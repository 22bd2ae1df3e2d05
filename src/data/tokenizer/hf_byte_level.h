#pragma once
// The alphabet of byte-level tokenizers: one printable code point for each byte (GPT-2).

#include <array>
#include <cstdint>
#include <string_view>

namespace longship::data::hf {

/// Visible Latin-1 stands for itself; the other 68 bytes, in order, are U+0100 onwards.
const std::array<char32_t, 256>& byte_code_points();
/// The byte that a code point stands for, or -1.
int byte_of_code_point(char32_t c);
/// How GPT-2 cuts a text into words.
extern const std::string_view kByteLevelPattern;

}  // namespace longship::data::hf
