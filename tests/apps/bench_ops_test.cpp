#include "support/process.h"

namespace longship {
namespace {

using testing::longship;
using testing::ProcessResult;
using testing::run;

TEST(BenchOps, ListNeedsNoDevice) {
  const ProcessResult result = run(longship({"bench", "ops", "--list", "--filter", "geglu fwd"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, ::testing::HasSubstr("prefix 18304x2*16384"));
}

TEST(BenchOps, AFilterThatLeavesNothingIsAUsageError) {
  const ProcessResult result = run(longship({"bench", "ops", "--filter", "no such row"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, ::testing::HasSubstr("no row contains 'no such row'"));
}

TEST(BenchOps, WithoutADeviceTheExitCodeSaysSo) {
  // Hidden from the program where there is one.
  std::vector<std::string> command = longship({"bench", "ops"});
  command.insert(command.begin(), {"/usr/bin/env", "CUDA_VISIBLE_DEVICES="});
  const ProcessResult result = run(command);
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.output, ::testing::HasSubstr("no CUDA device is present"));
}

}  // namespace
}  // namespace longship
