#include "data/sampler.h"

#include <utility>

#include "base/error.h"
#include "base/rng.h"

namespace longship::data {

namespace {

// Finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): every input bit reaches every output
// bit.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

IndexPermutation::IndexPermutation(int64_t size, uint64_t seed, uint64_t epoch) : size_(size) {
  LS_CHECK(size >= 1, InternalError, "a permutation needs at least one element, got {}", size);
  // At least eight bits: with shorter halves a Feistel network reaches few of the permutations.
  half_bits_ = 4;
  while (half_bits_ < 31 && (int64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
  const RngKey key = make_key(seed, RngStream::kShuffle, epoch);
  for (int round = 0; round < kRounds; ++round) {
    keys_[round] = random_bits(key, static_cast<uint64_t>(round));
  }
}

int64_t IndexPermutation::operator()(int64_t i) const {
  LS_CHECK(i >= 0 && i < size_, InternalError, "index {} is outside 0 .. {}", i, size_ - 1);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t value = static_cast<uint64_t>(i);
  // Cycle walking: the network permutes the whole power of four, so following it from a point
  // inside the range comes back inside, and the first return is again a bijection.
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (mix(right ^ key) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits_) | right;
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

ShuffledStream::ShuffledStream(std::vector<int64_t> sample_ids, uint64_t seed, int64_t global_batch)
    : ids_(std::move(sample_ids)), seed_(seed), global_batch_(global_batch) {
  LS_CHECK(!ids_.empty(), ConfigError,
           "there are no samples to train on; check the dataset and data.val_episodes");
  LS_CHECK(global_batch >= 1, ConfigError, "train.global_batch is {}; it must be 1 or more",
           global_batch);
}

int64_t ShuffledStream::at(int64_t position) const {
  LS_CHECK(position >= 0, InternalError, "stream position {} is negative", position);
  const int64_t size = num_samples();
  const IndexPermutation permutation(size, seed_, static_cast<uint64_t>(position / size));
  return ids_[static_cast<size_t>(permutation(position % size))];
}

std::vector<int64_t> ShuffledStream::batch(int64_t step) const {
  LS_CHECK(step >= 0, InternalError, "step {} is negative", step);
  const int64_t size = num_samples();
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(global_batch_));
  int64_t position = step * global_batch_;
  while (static_cast<int64_t>(out.size()) < global_batch_) {
    const IndexPermutation permutation(size, seed_, static_cast<uint64_t>(position / size));
    int64_t i = position % size;
    for (; i < size && static_cast<int64_t>(out.size()) < global_batch_; ++i, ++position) {
      out.push_back(ids_[static_cast<size_t>(permutation(i))]);
    }
  }
  return out;
}

double ShuffledStream::epochs_before(int64_t step) const {
  return static_cast<double>(step) * static_cast<double>(global_batch_) /
         static_cast<double>(num_samples());
}

}  // namespace longship::data
