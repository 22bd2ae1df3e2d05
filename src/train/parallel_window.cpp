#include "train/parallel_window.h"

#include <algorithm>

namespace longship::train {

void ParallelWindow::begin(std::vector<dist::Communicator*> data) {
  data_ = std::move(data);
  before_.clear();
  for (const dist::Communicator* one : data_) before_.push_back(one->counters());
}

void ParallelWindow::add(const std::vector<std::vector<double>>& rows, size_t step_ms,
                         size_t exposed_ms) {
  own_ms_.resize(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    own_ms_[r] += rows[r][step_ms] - rows[r][exposed_ms];
    exposed_ms_ += rows[r][exposed_ms];
  }
}

ParallelRecord ParallelWindow::record(int64_t world_size, int64_t num_steps) {
  ParallelRecord out;
  out.world_size = world_size;
  const double steps = static_cast<double>(std::max<int64_t>(num_steps, 1));
  for (size_t i = 0; i < data_.size(); ++i) {
    const auto now = data_[i]->counters();
    for (const auto& [name, counter] : dist::difference(now, before_[i])) {
      out.wire_mb += 1e-6 * static_cast<double>(counter.wire_bytes) / steps;
      out.comm_ms += counter.elapsed_ms / steps;
    }
    before_[i] = now;
  }
  if (own_ms_.empty()) return out;
  out.exposed_ms = exposed_ms_ / steps / static_cast<double>(own_ms_.size());
  const auto [fastest, slowest] = std::minmax_element(own_ms_.begin(), own_ms_.end());
  out.slowest_rank = slowest - own_ms_.begin();
  out.slowest_ms = *slowest / steps;
  out.fastest_ms = *fastest / steps;
  return out;
}

void ParallelWindow::clear() {
  std::fill(own_ms_.begin(), own_ms_.end(), 0.0);
  exposed_ms_ = 0;
}

}  // namespace longship::train
