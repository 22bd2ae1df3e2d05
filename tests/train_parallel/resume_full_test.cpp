// Every pair of (ranks, strategy) that saves and (ranks, strategy) that goes on.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "bounds.h"
#include "runs.h"
#include "support/paths.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using testing::losses_of;
using testing::pi05_run;
using testing::worst_error;

struct Layout {
  int64_t world;
  const char* strategy;
  const char* more = "parallel.timeout_s=60";
};

TEST(ParallelResumeFull, EveryPairOfLayouts) {
  const fs::path root = longship::testing::scratch_dir("presume_full");
  const std::vector<Layout> layouts = {{1, "none"},  {1, "zero1"}, {2, "ddp"},
                                       {2, "zero1"}, {2, "fsdp"},  {3, "ddp"},
                                       {3, "zero1"}, {3, "fsdp"},  {4, "ddp"},
                                       {4, "zero1"}, {4, "fsdp"},  {4, "hsdp", "parallel.shard=2"}};
  const auto run = [&](const fs::path& folder, const Layout& layout,
                       std::vector<std::string> more) {
    more.insert(more.end(), {"train.steps=6", "train.global_batch=12", "train.micro_batch=1",
                             "checkpoint.every=3",
                             fmt::format("parallel.strategy={}", layout.strategy), layout.more});
    return losses_of(pi05_run(folder, layout.world, more));
  };
  const auto whole = run(root / "whole", layouts[0], {});
  ASSERT_EQ(whole.size(), 6U);
  const std::vector<double> rest(whole.end() - 3, whole.end());
  for (const Layout& from : layouts) {
    const fs::path half = root / fmt::format("half_{}_{}", from.world, from.strategy);
    run(half, from, {"train.stop_after=3"});
    for (const Layout& to : layouts) {
      const fs::path next = root / "next";
      fs::remove_all(next);
      fs::copy(half, next, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
      EXPECT_LE(worst_error(run(next, to, {}), rest), kFp32LossBound)
          << from.world << " " << from.strategy << " to " << to.world << " " << to.strategy;
    }
  }
  fs::remove_all(root);
}

}  // namespace
}  // namespace longship::train
