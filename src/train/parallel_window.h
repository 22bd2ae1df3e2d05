#pragma once
// How the processes of a run worked together between two records.

#include <cstdint>
#include <vector>

#include "train/metrics.h"
#include "train/report_exchange.h"
#include "train/step_engine.h"

namespace longship::train {

class ParallelWindow {
 public:
  /// One step: this process's report, and the times of all ranks.
  void add(const StepReport& own, const ExchangedReport& all);
  /// The record of the steps since clear().
  ParallelRecord record(int64_t num_steps) const;
  void clear();

 private:
  std::vector<double> own_ms_;  // by rank: without waiting for others
  double exposed_ms_ = 0;       // over all ranks
  double comm_ms_ = 0;
  int64_t wire_bytes_ = 0;
};

}  // namespace longship::train
