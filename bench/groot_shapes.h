#pragma once
// GR00T N1.6 at full size, batch 64, two pictures and 220 tokens: the sizes that the rows of the
// operator table use.

#include <cstdint>

namespace longship::bench::groot {

inline constexpr int64_t kBatch = 64;
inline constexpr int64_t kTextTokens = 220;
inline constexpr int64_t kTextRows = kBatch * kTextTokens;  // 14080
inline constexpr int64_t kTextWidth = 2048;
inline constexpr int64_t kTextMlp = 6144;
inline constexpr int64_t kQueryHeads = 16;
inline constexpr int64_t kKeyHeads = 8;
inline constexpr int64_t kHeadSize = 128;
inline constexpr int64_t kActionTokens = 51;
inline constexpr int64_t kDitWidth = 1536;
// A small step: N1.7 at batch 4.
inline constexpr int64_t kSmallBatch = 4;
inline constexpr int64_t kSmallActionTokens = 41;
inline constexpr double kRmsEps = 1e-6;

}  // namespace longship::bench::groot
