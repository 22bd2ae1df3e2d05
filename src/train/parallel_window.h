#pragma once
// How the processes of a run worked together between two records.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "train/metrics.h"

namespace longship::train {

class ParallelWindow {
 public:
  /// `data`: those whose collectives are counted. What they have counted so far belongs to no step.
  void begin(std::vector<dist::Communicator*> data);
  /// One step: a row per rank, with the step's milliseconds in column `step_ms` and those of them
  /// spent waiting for others in column `exposed_ms`.
  void add(const std::vector<std::vector<double>>& rows, size_t step_ms, size_t exposed_ms);
  /// The record of the steps since clear().
  ParallelRecord record(int64_t world_size, int64_t num_steps);
  void clear();

 private:
  std::vector<double> own_ms_;  // by rank: without waiting for others
  double exposed_ms_ = 0;       // over all ranks
  std::vector<dist::Communicator*> data_;
  std::vector<std::map<std::string, dist::CollectiveCounter>> before_;  // at the last record
};

}  // namespace longship::train
