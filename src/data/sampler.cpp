#include "data/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"

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

// What a permutation is for, beside the part it belongs to: in the key's `sample`, whose low half
// is the part.
constexpr uint64_t kEpisodes = uint64_t{1} << 32, kPattern = uint64_t{2} << 32,
                   kBlocks = uint64_t{3} << 32;

RngKey shuffle_key(uint64_t seed, uint64_t epoch, uint64_t use) {
  return make_key(seed, RngStream::kShuffle, epoch, use);
}

void check_not_empty(int64_t size) {
  LS_CHECK(size > 0, ConfigError,
           "there are no samples to train on; check the dataset and data.val_episodes");
}

// Keeps the newest entries only: workers run ahead by a few batches, never by epochs.
template <class T, class Make>
std::shared_ptr<const T> cached(std::mutex& mutex,
                                std::map<int64_t, std::shared_ptr<const T>>& entries, int64_t key,
                                size_t most, Make make) {
  {
    const std::lock_guard lock(mutex);
    const auto found = entries.find(key);
    if (found != entries.end()) return found->second;
  }
  auto made = std::make_shared<const T>(make());
  const std::lock_guard lock(mutex);
  const auto slot = entries.emplace(key, std::move(made)).first;
  const std::shared_ptr<const T> out = slot->second;
  while (entries.size() > most) {
    entries.erase(entries.begin()->first == key ? std::prev(entries.end()) : entries.begin());
  }
  return out;
}

}  // namespace

IndexPermutation::IndexPermutation(int64_t size, const RngKey& key) : size_(size) {
  LS_CHECK(size >= 1, InternalError, "a permutation needs at least one element, got {}", size);
  // At least eight bits: with shorter halves a Feistel network reaches few of the permutations.
  half_bits_ = 4;
  while (half_bits_ < 31 && (int64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
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

int64_t SampleOrder::at(int64_t position) const {
  LS_CHECK(position >= 0, InternalError, "stream position {} is negative", position);
  int64_t id = 0;
  fill(position, {&id, 1});
  return id;
}

FullShuffle::FullShuffle(IdRanges ids, uint64_t seed, uint64_t part)
    : ids_(std::move(ids)), seed_(seed), part_(part) {
  check_not_empty(static_cast<int64_t>(ids_.size()));
}

void FullShuffle::fill(int64_t first, std::span<int64_t> out) const {
  const int64_t size = epoch_size();
  for (size_t done = 0; done < out.size();) {
    const int64_t position = first + static_cast<int64_t>(done);
    const IndexPermutation permutation(
        size, shuffle_key(seed_, static_cast<uint64_t>(position / size), part_));
    for (int64_t i = position % size; i < size && done < out.size(); ++i) {
      out[done++] = ids_[permutation(i)];
    }
  }
}

BlockShuffle::BlockShuffle(std::vector<IdRange> episodes, int64_t block_episodes, uint64_t seed,
                           uint64_t part)
    : episodes_(std::move(episodes)), block_episodes_(block_episodes), seed_(seed), part_(part) {
  std::erase_if(episodes_, [](const IdRange& range) { return range.size() <= 0; });
  for (const IdRange& range : episodes_) size_ += range.size();
  check_not_empty(size_);
  LS_CHECK(block_episodes >= 1, ConfigError, "data.block_episodes is {}; it must be 1 or more",
           block_episodes);
}

std::shared_ptr<const BlockShuffle::Epoch> BlockShuffle::epoch(int64_t number) const {
  return cached(mutex_, epochs_, number, 2, [&] {
    const auto num_episodes = static_cast<int64_t>(episodes_.size());
    const IndexPermutation permutation(
        num_episodes, shuffle_key(seed_, static_cast<uint64_t>(number), kEpisodes | part_));
    Epoch out;
    out.episode.reserve(episodes_.size());
    out.begin.reserve(episodes_.size() + 1);
    int64_t position = 0;
    for (int64_t i = 0; i < num_episodes; ++i) {
      out.episode.push_back(permutation(i));
      out.begin.push_back(position);
      position += episodes_[static_cast<size_t>(out.episode.back())].size();
    }
    out.begin.push_back(position);
    return out;
  });
}

void BlockShuffle::fill(int64_t first, std::span<int64_t> out) const {
  for (size_t done = 0; done < out.size();) {
    const int64_t position = first + static_cast<int64_t>(done);
    const int64_t number = position / size_;
    const std::shared_ptr<const Epoch> order = epoch(number);
    const std::vector<int64_t>& begin = order->begin;
    int64_t inside = position % size_;
    const auto place = std::upper_bound(begin.begin(), begin.end(), inside) - begin.begin() - 1;
    const int64_t block = place / block_episodes_;
    const auto block_first = static_cast<size_t>(block * block_episodes_);
    const size_t block_last =
        std::min(block_first + static_cast<size_t>(block_episodes_), episodes_.size());
    const int64_t base = begin[block_first], size = begin[block_last] - base;
    const RngKey key = shuffle_key(seed_, static_cast<uint64_t>(number), kBlocks | part_);
    const IndexPermutation permutation(size,
                                       shuffle_key(random_bits(key, static_cast<uint64_t>(block)),
                                                   static_cast<uint64_t>(number), kBlocks | part_));
    for (; inside < base + size && done < out.size(); ++inside) {
      const int64_t target = base + permutation(inside - base);
      const auto from = begin.begin() + static_cast<std::ptrdiff_t>(block_first);
      const auto to = begin.begin() + static_cast<std::ptrdiff_t>(block_last);
      const auto at = static_cast<size_t>(std::upper_bound(from, to, target) - begin.begin() - 1);
      out[done++] = episodes_[static_cast<size_t>(order->episode[at])].begin + target - begin[at];
    }
  }
}

WeightedMix::WeightedMix(std::vector<std::shared_ptr<const SampleOrder>> parts,
                         const std::vector<double>& weights, uint64_t seed)
    : parts_(std::move(parts)), seed_(seed) {
  LS_CHECK(!parts_.empty() && parts_.size() == weights.size() && parts_.size() < 65536, ConfigError,
           "a mixture of {} datasets has {} weights", parts_.size(), weights.size());
  double sum = 0;
  for (size_t p = 0; p < weights.size(); ++p) {
    LS_CHECK(std::isfinite(weights[p]) && weights[p] > 0, ConfigError,
             "data.datasets.{}.weight is {}; a share must be above 0 (remove the dataset to leave "
             "it out)",
             p, weights[p]);
    sum += weights[p];
    epoch_size_ += parts_[p]->epoch_size();
  }
  // Largest remainders: the quotas sum to the period and differ from the exact shares by less than
  // one.
  std::vector<std::pair<double, size_t>> rest;
  int64_t given = 0;
  for (size_t p = 0; p < weights.size(); ++p) {
    const double exact = weights[p] / sum * static_cast<double>(kPeriod);
    quotas_.push_back(static_cast<int64_t>(exact));
    given += quotas_.back();
    rest.emplace_back(exact - std::floor(exact), p);
  }
  std::stable_sort(rest.begin(), rest.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t k = 0; given < kPeriod; ++k, ++given) ++quotas_[rest[k % rest.size()].second];
  for (size_t p = 0; p < weights.size(); ++p) {
    LS_CHECK(quotas_[p] > 0, ConfigError,
             "data.datasets.{}.weight: {} of {} is less than one sample in {}; raise it, or remove "
             "the dataset",
             p, weights[p], sum, kPeriod);
  }
}

std::shared_ptr<const WeightedMix::Period> WeightedMix::period(int64_t number) const {
  return cached(mutex_, periods_, number, 4, [&] {
    std::vector<uint16_t> owner;
    owner.reserve(static_cast<size_t>(kPeriod));
    for (size_t p = 0; p < quotas_.size(); ++p) {
      owner.insert(owner.end(), static_cast<size_t>(quotas_[p]), static_cast<uint16_t>(p));
    }
    const IndexPermutation permutation(kPeriod,
                                       shuffle_key(seed_, static_cast<uint64_t>(number), kPattern));
    Period out;
    out.part.resize(static_cast<size_t>(kPeriod));
    out.number.resize(static_cast<size_t>(kPeriod));
    std::vector<int32_t> count(quotas_.size());
    for (size_t i = 0; i < out.part.size(); ++i) {
      out.part[i] = owner[static_cast<size_t>(permutation(static_cast<int64_t>(i)))];
      out.number[i] = count[out.part[i]]++;
    }
    return out;
  });
}

void WeightedMix::fill(int64_t first, std::span<int64_t> out) const {
  std::vector<std::vector<int64_t>> ids(parts_.size());
  std::vector<size_t> taken(parts_.size());
  for (size_t done = 0; done < out.size();) {
    const int64_t position = first + static_cast<int64_t>(done);
    const int64_t number = position / kPeriod;
    const auto inside = static_cast<size_t>(position % kPeriod);
    const std::shared_ptr<const Period> pattern = period(number);
    const size_t count = std::min(out.size() - done, static_cast<size_t>(kPeriod) - inside);
    // Inside a period each part's samples are neighbours in its own order: asked for at once.
    for (size_t p = 0; p < parts_.size(); ++p) {
      const auto begin = pattern->part.begin() + static_cast<std::ptrdiff_t>(inside);
      const auto end = begin + static_cast<std::ptrdiff_t>(count);
      ids[p].resize(static_cast<size_t>(std::count(begin, end, static_cast<uint16_t>(p))));
      taken[p] = 0;
      if (ids[p].empty()) continue;
      const auto at = std::find(begin, end, static_cast<uint16_t>(p)) - pattern->part.begin();
      parts_[p]->fill(number * quotas_[p] + pattern->number[static_cast<size_t>(at)], ids[p]);
    }
    for (size_t k = 0; k < count; ++k) {
      const size_t part = pattern->part[inside + k];
      out[done++] = ids[part][taken[part]++];
    }
  }
}

ShuffledStream::ShuffledStream(IdRanges sample_ids, uint64_t seed, int64_t global_batch)
    : ShuffledStream(std::make_shared<FullShuffle>(std::move(sample_ids), seed), global_batch) {}

ShuffledStream::ShuffledStream(std::shared_ptr<const SampleOrder> order, int64_t global_batch)
    : order_(std::move(order)), global_batch_(global_batch) {
  LS_CHECK(global_batch >= 1, ConfigError, "train.global_batch is {}; it must be 1 or more",
           global_batch);
}

std::vector<int64_t> ShuffledStream::batch(int64_t step) const {
  LS_CHECK(step >= 0, InternalError, "step {} is negative", step);
  std::vector<int64_t> out(static_cast<size_t>(global_batch_));
  order_->fill(step * global_batch_, out);
  return out;
}

double ShuffledStream::epochs_before(int64_t step) const {
  return static_cast<double>(step) * static_cast<double>(global_batch_) /
         static_cast<double>(num_samples());
}

std::string order_sha256(const SampleOrder& order, int64_t epoch,
                         const std::function<bool()>& cancelled) {
  static_assert(std::endian::native == std::endian::little, "ids are hashed as they lie in memory");
  constexpr int64_t kPiece = 8192;
  const int64_t size = order.epoch_size();
  std::vector<int64_t> ids;
  Sha256 hash;
  for (int64_t done = 0; done < size; done += kPiece) {
    if (cancelled && cancelled()) return {};
    ids.resize(static_cast<size_t>(std::min(kPiece, size - done)));
    order.fill(epoch * size + done, ids);
    hash.update(ids.data(), ids.size() * sizeof(int64_t));
  }
  return hash.hex();
}

}  // namespace longship::data
