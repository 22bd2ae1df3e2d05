#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). A draw is a pure function of its key and its index, so results never depend
// on threads, workers or ranks.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace longship {

/// What a draw is for. Values are part of the numbers a seed gives: never renumber, only append.
enum class RngStream : uint64_t {
  kNoise = 1,    // flow-matching or diffusion noise
  kTime = 2,     // flow-matching time
  kInit = 3,     // parameter initialisation
  kShuffle = 4,  // order of samples
  kAugment = 5,  // image augmentation
  kDropout = 6,
  kSample = 7,  // start noise of inference
  kTest = 8,
};

struct RngKey {
  uint64_t seed = 0;
  uint64_t stream = 0;  // a RngStream, or a hash (e.g. of a parameter's name)
  uint64_t step = 0;
  uint64_t sample = 0;
};

inline RngKey make_key(uint64_t seed, RngStream stream, uint64_t step = 0, uint64_t sample = 0) {
  return RngKey{seed, static_cast<uint64_t>(stream), step, sample};
}

/// One block of Philox4x32 with ten rounds, words in the order of Random123.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// Uniform doubles in the open interval (0, 1), 52 random bits each. Element i is number `first +
/// i` of the key's sequence, so a long vector can be filled in pieces.
void fill_uniform(const RngKey& key, std::span<double> out, uint64_t first = 0);

/// Standard normal numbers by Box-Muller in double, rounded to float. Same indexing.
void fill_normal(const RngKey& key, std::span<float> out, uint64_t first = 0);
void fill_normal(const RngKey& key, std::span<double> out, uint64_t first = 0);

/// 64 random bits, number `idx` of the key's sequence.
uint64_t random_bits(const RngKey& key, uint64_t idx);

/// Fisher-Yates shuffle in place, without modulo bias.
void shuffle(const RngKey& key, std::span<int64_t> values);

/// FNV-1a of a text, for streams named by a parameter.
uint64_t hash_name(std::string_view text);

}  // namespace longship
