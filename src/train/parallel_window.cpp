#include "train/parallel_window.h"

#include <algorithm>

namespace longship::train {

void ParallelWindow::add(const StepReport& own, const ExchangedReport& all) {
  comm_ms_ += own.comm_ms;
  wire_bytes_ += own.wire_bytes;
  own_ms_.resize(all.rows.size());
  for (size_t r = 0; r < all.rows.size(); ++r) {
    const double waited = all.rows[r][ExchangedReport::kExposedMs];
    own_ms_[r] += all.rows[r][ExchangedReport::kStepMs] - waited;
    exposed_ms_ += waited;
  }
}

ParallelRecord ParallelWindow::record(int64_t num_steps) const {
  ParallelRecord out;
  out.world_size = static_cast<int64_t>(own_ms_.size());
  const double steps = static_cast<double>(std::max<int64_t>(num_steps, 1));
  out.wire_mb = 1e-6 * static_cast<double>(wire_bytes_) / steps;
  out.comm_ms = comm_ms_ / steps;
  if (own_ms_.empty()) return out;
  out.exposed_ms = exposed_ms_ / steps / static_cast<double>(own_ms_.size());
  const auto [fastest, slowest] = std::minmax_element(own_ms_.begin(), own_ms_.end());
  out.slowest_rank = slowest - own_ms_.begin();
  out.slowest_ms = *slowest / steps;
  out.fastest_ms = *fastest / steps;
  return out;
}

void ParallelWindow::clear() {
  *this = {};
}

}  // namespace longship::train
