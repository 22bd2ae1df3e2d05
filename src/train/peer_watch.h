#pragma once
// Notices a lost peer while the host cannot look itself: a device that waits for a dead process
// takes no further launches once its queue is full, and the thread that launches then stands still
// inside the driver.
//
//   PeerWatch watch(limits, hooks);   // a thread of its own
//   watch.sign();                     // again and again, by the thread that trains; throws once a
//                                     // peer is lost, whatever the device then says
//   watch.stop();                     // it leaves by itself
//
// Without a sign for `quiet_s` the peers are asked after once a second. Once one is known to be
// lost, what waits on devices is ended; the thread that trains then goes on into the error that its
// next collective throws. Where it does not within `grace_s`, the process is ended.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

namespace longship::train {

class PeerWatch {
 public:
  struct Limits {
    double quiet_s = 5;
    double every_s = 1;
    double grace_s = 60;
  };
  /// Called on the watch's thread.
  struct Hooks {
    std::function<void()> check;                      // throws once a peer is lost
    std::function<void()> abort;                      // ends what waits on devices
    std::function<void(const std::string& why)> end;  // ends the process
  };

  PeerWatch(const Limits& limits, Hooks hooks);
  ~PeerWatch() { stop(); }
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// The thread that trains is awake. Throws PeerError when the watch has found a peer lost and
  /// ended what waited for it: what the device computed since then is worth nothing. Thread-safe.
  void sign();
  /// No hook is called any more when this returns. Not from a hook.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  static double now() {
    return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  }
  void watch(const std::stop_token& stop);
  /// Whether it was asked to stop within `seconds`.
  bool pause(const std::stop_token& stop, double seconds);

  Limits limits_;
  Hooks hooks_;
  std::atomic<double> last_;
  std::atomic<bool> lost_ = false;
  std::string why_;  // written before `lost_` is set
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  // last
};

}  // namespace longship::train
