#include "base/rng.h"

#include <cmath>
#include <numbers>
#include <utility>

namespace longship {

namespace {

// Finaliser of SplitMix64: a bijection with full avalanche.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// The 256 bits of an RngKey and a block number must fit Philox' 64-bit key and 128-bit counter. The
// counter takes the sample and the block as they are, so that samples and blocks of one step never
// collide; seed, stream and step are mixed into the key.
struct Stream {
  explicit Stream(const RngKey& k) : sample(k.sample) {
    const uint64_t mixed = mix(mix(mix(k.seed) ^ k.stream) ^ k.step);
    key = {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
  }
  // Two words of 64 random bits.
  std::array<uint64_t, 2> block(uint64_t index) const {
    const auto w = philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                               static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                              key);
    return {w[0] | (uint64_t{w[1]} << 32), w[2] | (uint64_t{w[3]} << 32)};
  }
  std::array<uint32_t, 2> key;
  uint64_t sample;
};

// 52 bits at the middle of their interval: 53 would round the largest value up to 1.
double to_uniform(uint64_t bits) {
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

std::array<double, 2> normal_pair(const std::array<uint64_t, 2>& bits) {
  const double radius = std::sqrt(-2.0 * std::log(to_uniform(bits[0])));
  const double angle = 2.0 * std::numbers::pi * to_uniform(bits[1]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// Calls make(block) once per pair of outputs and stores its two numbers.
template <class Out, class Make>
void fill_pairs(const RngKey& key, std::span<Out> out, uint64_t first, Make make) {
  const Stream stream(key);
  size_t i = 0;
  while (i < out.size()) {
    const uint64_t number = first + i;
    const auto pair = make(stream.block(number / 2));
    if (number % 2 == 0) {
      out[i++] = static_cast<Out>(pair[0]);
      if (i == out.size()) return;
    }
    out[i++] = static_cast<Out>(pair[1]);
  }
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return c;
}

void fill_uniform(const RngKey& key, std::span<double> out, uint64_t first) {
  fill_pairs(key, out, first, [](const std::array<uint64_t, 2>& bits) {
    return std::array<double, 2>{to_uniform(bits[0]), to_uniform(bits[1])};
  });
}

void fill_normal(const RngKey& key, std::span<float> out, uint64_t first) {
  fill_pairs(key, out, first, normal_pair);
}

void fill_normal(const RngKey& key, std::span<double> out, uint64_t first) {
  fill_pairs(key, out, first, normal_pair);
}

uint64_t random_bits(const RngKey& key, uint64_t idx) {
  return Stream(key).block(idx / 2)[idx % 2];
}

void shuffle(const RngKey& key, std::span<int64_t> values) {
  const Stream stream(key);
  uint64_t drawn = 0;
  const auto draw = [&] {
    const uint64_t bits = stream.block(drawn / 2)[drawn % 2];
    ++drawn;
    return bits;
  };
  for (uint64_t n = values.size(); n > 1; --n) {
    // Bits at and above the largest multiple of n would favour small remainders.
    const uint64_t limit = ~uint64_t{0} - (~uint64_t{0} % n + 1) % n;
    uint64_t bits = draw();
    while (bits > limit) bits = draw();
    std::swap(values[n - 1], values[bits % n]);
  }
}

uint64_t hash_name(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
  return hash;
}

}  // namespace longship
