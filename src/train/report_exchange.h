#pragma once
// One process's report of a step becomes that of all.

#include <cstddef>
#include <vector>

#include "train/parallel.h"
#include "train/step_engine.h"

namespace longship::train {

/// What all processes know after the exchange.
struct ExchangedReport {
  bool interrupted = false;  // a signal came to any of them
  bool data_fault = false;   // any of them has no samples for the next step
  /// One row per rank, with the step's milliseconds and those of them spent waiting for others in
  /// these columns.
  std::vector<std::vector<double>> rows;
  static constexpr size_t kStepMs = 6, kExposedMs = 7;
};

/// `report`, this process's, gets the mean loss and metrics of all, and a fault that any of them
/// saw. `interrupted`, `data_fault`: of this process. Throws InternalError on all ranks when the
/// norms of the gradients differ, or when parameters got no gradient on any rank. Collective.
ExchangedReport exchange_report(Parallel& parallel, StepReport& report, bool interrupted,
                                bool data_fault);

}  // namespace longship::train
