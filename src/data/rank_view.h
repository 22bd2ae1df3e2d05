#pragma once
// Which samples of a global batch each rank takes. Together the ranks take exactly what one rank
// alone would.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/sampler.h"

namespace longship::data {

/// Cost of a sample in any unit, >= 0; only sums are compared.
using SampleCost = std::function<double(int64_t sample_id)>;

/// One rank's share of every global batch. Without a cost the ranks take neighbouring slices of the
/// batch, of equal length up to one; with a cost, see balanced_assignment(). Every rank has the
/// same number of steps, for ever.
class RankView {
 public:
  /// The stream must outlive the view. Throws ConfigError when rank and world do not fit, when the
  /// global batch is smaller than the world, or, with a cost, when the world does not divide it.
  RankView(const ShuffledStream& stream, int64_t rank, int64_t world, SampleCost cost = {});

  /// This rank's ids of a step, in the order of the global batch.
  std::vector<int64_t> batch(int64_t step) const;
  /// The same as places in ShuffledStream::batch(step), ascending.
  std::vector<int64_t> places(int64_t step) const;

 private:
  const ShuffledStream& stream_;
  int64_t rank_, world_;
  SampleCost cost_;
};

/// Longest processing time first: items by falling cost (equal ones in their order) go to the rank
/// with the least load among those that have fewer than `costs.size() / world` (then the one with
/// fewest items, then the lowest). Returns the places of each rank's items, ascending. Source:
/// LoongForge lingbot_va/samplers.py. Throws ConfigError when `world` does not divide the number.
std::vector<std::vector<int64_t>> balanced_assignment(std::span<const double> costs, int64_t world);

/// The reference's whole epoch: `order` padded by repetition to a multiple of world * group, cut
/// into blocks of that size, each assigned by balanced_assignment(). [world][total / world].
std::vector<std::vector<int64_t>> balanced_epoch(std::span<const int64_t> order,
                                                 const SampleCost& cost, int64_t world,
                                                 int64_t group);

/// SHA-256 of a balanced epoch: ASCII "world|group|seed|epoch|N|", then all ids rank by rank as
/// little-endian int64.
std::string balanced_sha256(const std::vector<std::vector<int64_t>>& per_rank, int64_t group,
                            int64_t seed, int64_t epoch, int64_t num_samples);

}  // namespace longship::data
