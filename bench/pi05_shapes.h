#pragma once
// Pi0.5 at full size, batch 32, 2 cameras, 60 valid text tokens, horizon 50: the sizes that the
// rows of the operator table use.

#include <cstdint>

namespace longship::bench::pi05 {

inline constexpr int64_t kBatch = 32;
inline constexpr int64_t kPrefixTokens = 572;  // 2 x 256 picture tokens + 60 of text
inline constexpr int64_t kPrefixRows = kBatch * kPrefixTokens;  // 18304
inline constexpr int64_t kPrefixWidth = 2048;
inline constexpr int64_t kPrefixMlp = 16384;
inline constexpr int64_t kPrefixQkv = 2560;  // 8 heads of q, one of k, one of v, 256 each
inline constexpr int64_t kQueryHeads = 8;
inline constexpr int64_t kHeadSize = 256;

inline constexpr int64_t kHorizon = 50;
inline constexpr int64_t kExpertRows = kBatch * kHorizon;  // 1600
inline constexpr int64_t kExpertWidth = 1024;
inline constexpr int64_t kExpertMlp = 4096;
inline constexpr int64_t kActionWidth = 32;

inline constexpr int64_t kPictures = 64;
inline constexpr int64_t kVisionTokens = 256;
inline constexpr int64_t kVisionRows = kPictures * kVisionTokens;  // 16384
inline constexpr int64_t kVisionWidth = 1152;
inline constexpr int64_t kVisionMlp = 4304;
inline constexpr int64_t kVisionHeads = 16;
inline constexpr int64_t kVisionHeadSize = 72;

inline constexpr int64_t kVocabulary = 257152;
inline constexpr int64_t kTextRows = kBatch * 60;
inline constexpr int64_t kTrainedParameters = 3'353'433'872;
inline constexpr double kRmsEps = 1e-6;

}  // namespace longship::bench::pi05
