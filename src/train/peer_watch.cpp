#include "train/peer_watch.h"

#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace longship::train {

PeerWatch::PeerWatch(const Limits& limits, Hooks hooks)
    : limits_(limits), hooks_(std::move(hooks)), last_(now()) {
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

void PeerWatch::sign() {
  if (lost_) throw PeerError(why_);
  last_ = now();
}

void PeerWatch::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

bool PeerWatch::pause(const std::stop_token& stop, double seconds) {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, stop, std::chrono::duration<double>(seconds), [] { return false; });
  return stop.stop_requested();
}

void PeerWatch::watch(const std::stop_token& stop) {
  std::string why;
  while (why.empty()) {
    if (pause(stop, limits_.every_s)) return;
    if (now() - last_ < limits_.quiet_s) continue;
    try {
      hooks_.check();
    } catch (const std::exception& error) {
      why = error.what();
    }
  }
  log::error("{}; what waits for it on the device is ended", why);
  why_ = why;
  lost_ = true;
  // On a thread of its own: a driver that hangs in there must not keep the process alive.
  std::atomic<bool> aborted = false;
  std::thread aborting([&] {
    try {
      hooks_.abort();
    } catch (const std::exception& error) {
      log::warn("ending the exchange between devices: {}", error.what());
    }
    aborted = true;
  });
  const auto left = [&] { return aborted && stop.stop_requested(); };
  const double until = now() + limits_.grace_s;
  while (!left() && now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (!left()) hooks_.end(why);
  aborting.join();
}

}  // namespace longship::train
