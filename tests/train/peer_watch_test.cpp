// A lost peer is noticed while the thread that trains stands still.
#include "train/peer_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/error.h"

namespace longship::train {
namespace {

constexpr PeerWatch::Limits kQuick{.quiet_s = 0.1, .every_s = 0.01, .grace_s = 0.2};

struct Heard {
  std::atomic<int> checks = 0, aborts = 0, ends = 0;
  std::atomic<bool> lost = false;
  std::string why;  // read after the watch has stopped

  PeerWatch::Hooks hooks() {
    return {[this] {
              ++checks;
              if (lost) throw PeerError("no sign of life from rank 1");
            },
            [this] { ++aborts; },
            [this](const std::string& text) {
              why = text;
              ++ends;
            }};
  }
};

void sleep(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

template <class Done>
bool comes(Done&& done) {
  for (int i = 0; i < 1000 && !done(); ++i) sleep(0.01);
  return done();
}

TEST(PeerWatch, AsksNobodyWhileTheHostIsAwake) {
  Heard heard;
  heard.lost = true;
  PeerWatch watch({.quiet_s = 5, .every_s = 0.01, .grace_s = 0.2}, heard.hooks());
  for (int i = 0; i < 20; ++i) {
    watch.sign();
    sleep(0.01);
  }
  watch.stop();
  EXPECT_EQ(heard.checks, 0);
  EXPECT_EQ(heard.aborts, 0);
}

TEST(PeerWatch, PeersThatLiveAreWaitedFor) {
  Heard heard;
  PeerWatch watch(kQuick, heard.hooks());
  EXPECT_TRUE(comes([&] { return heard.checks > 3; }));
  watch.stop();
  EXPECT_EQ(heard.aborts, 0);
  EXPECT_EQ(heard.ends, 0);
}

TEST(PeerWatch, ALostPeerEndsWhatWaitsAndTheHostLeavesByItself) {
  Heard heard;
  heard.lost = true;
  PeerWatch watch({.quiet_s = 0.1, .every_s = 0.01, .grace_s = 60}, heard.hooks());
  EXPECT_TRUE(comes([&] { return heard.aborts == 1; }));
  // The thread that trains learns of it, also where the peer comes back.
  heard.lost = false;
  try {
    watch.sign();
    FAIL() << "no error";
  } catch (const PeerError& error) {
    EXPECT_STREQ(error.what(), "no sign of life from rank 1");
  }
  watch.stop();
  EXPECT_EQ(heard.aborts, 1);
  EXPECT_EQ(heard.ends, 0);
}

TEST(PeerWatch, ADriverThatHangsKeepsNobodyAlive) {
  Heard heard;
  heard.lost = true;
  std::atomic<bool> go_on = false;
  PeerWatch::Hooks hooks = heard.hooks();
  hooks.abort = [&] {
    while (!go_on) sleep(0.01);
  };
  hooks.end = [&](const std::string&) {
    ++heard.ends;
    go_on = true;  // the process would be gone
  };
  PeerWatch watch(kQuick, hooks);
  EXPECT_TRUE(comes([&] { return heard.ends == 1; }));
}

TEST(PeerWatch, AHostThatDoesNotComeBackIsEnded) {
  Heard heard;
  heard.lost = true;
  PeerWatch watch(kQuick, heard.hooks());
  EXPECT_TRUE(comes([&] { return heard.ends == 1; }));
  watch.stop();
  EXPECT_EQ(heard.why, "no sign of life from rank 1");
  EXPECT_EQ(heard.aborts, 1);
}

}  // namespace
}  // namespace longship::train
