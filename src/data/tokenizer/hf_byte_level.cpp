#include "data/tokenizer/hf_byte_level.h"

namespace longship::data::hf {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, 256> make_code_points() {
  std::array<char32_t, 256> points{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    points[static_cast<size_t>(byte)] =
        stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return points;
}

constexpr std::array<char32_t, 256> kCodePoints = make_code_points();

constexpr std::array<int16_t, 0x144> make_bytes() {
  std::array<int16_t, 0x144> bytes{};
  for (auto& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) {
    bytes[kCodePoints[static_cast<size_t>(byte)]] = static_cast<int16_t>(byte);
  }
  return bytes;
}

constexpr std::array<int16_t, 0x144> kBytes = make_bytes();

}  // namespace

const std::array<char32_t, 256>& byte_code_points() {
  return kCodePoints;
}

int byte_of_code_point(char32_t c) {
  return c < kBytes.size() ? kBytes[c] : -1;
}

const std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace longship::data::hf
