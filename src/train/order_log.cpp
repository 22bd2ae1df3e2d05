#include "train/order_log.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace longship::train {
namespace {

// Hashing this many ids takes a fraction of a second.
constexpr int64_t kAtOnce = 1'000'000;

}  // namespace

void check_order(const data::ShuffledStream& stream, const std::vector<std::string>& expected,
                 int64_t num_steps) {
  const int64_t num_positions = num_steps * stream.global_batch();
  const int64_t num_epochs = (num_positions + stream.num_samples() - 1) / stream.num_samples();
  for (int64_t epoch = 0; epoch < std::min(num_epochs, static_cast<int64_t>(expected.size()));
       ++epoch) {
    const std::string& wanted = expected[static_cast<size_t>(epoch)];
    if (wanted.empty()) continue;
    const std::string found = data::order_sha256(stream.order(), epoch);
    LS_CHECK(
        found == wanted, ConfigError,
        "data.expect_order_sha256: the samples of epoch {} come in another order: expected {}, "
        "found {}. The order depends on train.seed, the episodes and lengths of the datasets, "
        "their weights and subsets, data.val_episodes, data.shuffle, data.block_episodes and "
        "the samples that data.on_bad_sample leaves out; take the change back, or give the "
        "new value",
        epoch, wanted, found);
  }
}

OrderLog::OrderLog(const data::ShuffledStream& stream) : stream_(stream) {}

OrderLog::~OrderLog() {
  if (!worker_.joinable()) return;
  worker_.request_stop();
  wake_.notify_all();
}

void OrderLog::enter(int64_t step) {
  const int64_t size = stream_.num_samples(), batch = stream_.global_batch();
  const int64_t last = ((step + 1) * batch - 1) / size;
  if (next_epoch_ < 0) next_epoch_ = step * batch / size;
  for (; next_epoch_ <= last; ++next_epoch_) {
    if (size <= kAtOnce) {
      log(next_epoch_, data::order_sha256(stream_.order(), next_epoch_));
      continue;
    }
    const std::lock_guard lock(mutex_);
    wanted_.push_back(next_epoch_);
    if (!worker_.joinable()) {
      worker_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
    }
    wake_.notify_all();
  }
}

void OrderLog::work(const std::stop_token& stop) {
  for (;;) {
    int64_t epoch = 0;
    {
      std::unique_lock lock(mutex_);
      if (!wake_.wait(lock, stop, [this] { return !wanted_.empty(); })) return;
      epoch = wanted_.front();
      wanted_.erase(wanted_.begin());
    }
    const std::string hash =
        data::order_sha256(stream_.order(), epoch, [&] { return stop.stop_requested(); });
    if (!hash.empty()) log(epoch, hash);
  }
}

void OrderLog::log(int64_t epoch, const std::string& hash) const {
  // Where epochs are shorter than a few steps, their lines would bury the log.
  const bool often = epoch >= 10 && stream_.num_samples() < 10 * stream_.global_batch();
  if (often) {
    longship::log::debug("order of epoch {}: sha256 {} ({} samples)", epoch, hash,
                         stream_.num_samples());
  } else {
    longship::log::info("order of epoch {}: sha256 {} ({} samples)", epoch, hash,
                        stream_.num_samples());
  }
}

}  // namespace longship::train
