#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

#include "base/config_support.h"
#include "base/fs.h"
#include "base/progress.h"
#include "support/paths.h"

namespace longship {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Log, ConsoleHasPlainLinesAndTheFileEverything) {
  const auto file = testing::scratch_dir("log") / "train.log";
  ::testing::internal::CaptureStderr();
  log::init(log::Level::kInfo, file);
  log::debug("quiet {}", 1);
  log::info("step {} of {}", 3, 4);
  log::warn("careful {{}}");
  log::error("broken");
  log::flush();
  log::init();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "step 3 of 4\nwarning: careful {}\nerror: broken\n");
  const std::string text = read_file(file, 10000);
  EXPECT_THAT(text, HasSubstr("debug: quiet 1\n"));
  EXPECT_THAT(text, HasSubstr("info: step 3 of 4\n"));
  EXPECT_THAT(text, HasSubstr("warning: careful {}\n"));
}

TEST(Log, AFileThatCannotBeOpenedIsAnError) {
  const auto dir = testing::scratch_dir("log_error");
  EXPECT_THAT(testing::message_of([&] { log::init(log::Level::kInfo, dir); }),
              HasSubstr("cannot open log file"));
}

TEST(Log, ProgressWritesPlainLinesWithoutATerminal) {
  ::testing::internal::CaptureStderr();
  {
    Progress progress("scan", 3, "file", 0, /*plain_interval_s=*/0);
    progress.update(1, "x.mp4");
    progress.update(3);
    progress.finish();
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("scan  1/3 file"));
  EXPECT_THAT(text, HasSubstr("x.mp4\n"));
  EXPECT_THAT(text, HasSubstr("scan: 3 file in "));
  EXPECT_THAT(text, Not(HasSubstr("\033")));
}

}  // namespace
}  // namespace longship
