// Two processes with GR00T follow one, as with Pi0.5; more processes in groot_follow_full_test.cpp.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "bounds.h"
#include "groot_runs.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using testing::groot_run;
using testing::losses_of;
using testing::worst_error;

class GrootParallel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    root_ = longship::testing::scratch_dir(std::string("parallel_") + GetParam());
  }
  void TearDown() override { fs::remove_all(root_); }
  std::vector<double> run(const std::string& name, int64_t world, const std::string& strategy,
                          std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"train.steps=10", "train.global_batch=4", "train.micro_batch=1",
                               "checkpoint.every=null", "parallel.strategy=" + strategy});
    return losses_of(groot_run(GetParam(), root_ / name, world, more));
  }
  fs::path root_;
};

TEST_P(GrootParallel, TwoFollowOne) {
  const auto one = run("one", 1, "none");
  ASSERT_EQ(one.size(), 10U);
  for (const char* strategy : {"ddp", "zero1", "fsdp"}) {
    const auto two = run(strategy, 2, strategy);
    fmt::print("{} {}: {:.2g}\n", GetParam(), strategy, worst_error(two, one));
    EXPECT_LE(worst_error(two, one), kFp32LossBound) << strategy;
  }
  if (GetParam() == std::string("groot_n16")) return;  // two more runs are enough
  // Saved with one strategy, gone on with another.
  run("half", 2, "zero1", {"train.stop_after=5"});
  const auto rest = run("half", 2, "fsdp");
  const std::vector<double> expected(one.end() - 5, one.end());
  fmt::print("{} zero1, then fsdp: {:.2g}\n", GetParam(), worst_error(rest, expected));
  EXPECT_LE(worst_error(rest, expected), kFp32LossBound);
}

INSTANTIATE_TEST_SUITE_P(Both, GrootParallel, ::testing::Values("groot_n16", "groot_n17"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace longship::train
