// torchrun starts this very binary; its agent serves the store.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "dist/process_group.h"
#include "ranks.h"
#include "support/paths.h"
#include "support/process.h"

namespace longship::dist {
namespace {

using ::testing::HasSubstr;

// What torchrun runs; skipped when nobody has started it so.
TEST(TorchrunWorker, SumsItsRank) {
  if (std::getenv("TORCHELASTIC_RUN_ID") == nullptr) GTEST_SKIP() << "started by torchrun only";
  const LaunchInfo launch = read_launch();
  ASSERT_TRUE(launch.agent_store);
  ASSERT_EQ(launch.world_size, 2);
  const auto group = ProcessGroup::connect(test_options(launch));
  const double sum = group->world().sum({static_cast<double>(launch.rank + 1)}, "ranks").front();
  group->close();
  // In one piece: both ranks write to one file.
  fmt::print("{}",
             fmt::format("worker {} restart {} sum {}\n", launch.rank, launch.restart_count, sum));
}

TEST(Torchrun, TwoRanksMeetAtTheAgentsStore) {
  const std::filesystem::path torchrun = testing::source_root() / ".venv/bin/torchrun";
  if (!std::filesystem::exists(torchrun)) GTEST_SKIP() << "no " << torchrun;
  testing::Process process({torchrun.string(), "--nproc-per-node", "2", "--master-port",
                            std::to_string(free_port()), "--no-python",
                            std::filesystem::read_symlink("/proc/self/exe").string(),
                            "--gtest_filter=TorchrunWorker.SumsItsRank"});
  const testing::ProcessResult result = process.wait();
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("worker 0 restart 0 sum 3"));
  EXPECT_THAT(result.output, HasSubstr("worker 1 restart 0 sum 3"));
}

}  // namespace
}  // namespace longship::dist
