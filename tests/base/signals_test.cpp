#include "base/signals.h"

#include <gtest/gtest.h>

#include <csignal>

#include "base/error.h"

namespace longship {
namespace {

TEST(InterruptGuard, FirstSignalSetsTheFlag) {
  for (const int number : {SIGINT, SIGTERM}) {
    InterruptGuard guard;
    EXPECT_FALSE(guard.interrupted());
    ::testing::internal::CaptureStderr();
    std::raise(number);
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(guard.interrupted());
    EXPECT_EQ(guard.signal_number(), number);
    EXPECT_THAT(text, ::testing::HasSubstr("once more to stop at once"));
  }
}

TEST(InterruptGuard, SecondSignalEndsTheProcess) {
  EXPECT_EXIT(
      {
        InterruptGuard guard;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      ::testing::KilledBySignal(SIGINT), "");
}

TEST(InterruptGuard, OnlyOneAtATime) {
  InterruptGuard guard;
  EXPECT_THROW(InterruptGuard(), InternalError);
}

}  // namespace
}  // namespace longship
