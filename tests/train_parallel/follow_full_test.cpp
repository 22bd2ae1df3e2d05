// Ranks x strategies x what a recipe can turn on, 20 steps each, against one process:
// ctest -L train_parallel_full.
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

struct Case {
  const char* name;
  std::vector<std::string> overrides;
  double bound = kFp32LossBound;
};

// Micro-batches of W processes are those of one process with the same train.micro_batch, so that
// only the order of sums differs. The global batch of 12 divides by 1, 2, 3 and 4, in micro-batches
// of 3 (of 2 for 3 ranks) where a case names none; no layer's size divides by 3.
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"Accumulation", {"train.micro_batch=1"}},
      {"WholeShare", {"train.micro_batch=SHARE"}},
      {"Recompute", {"train.recompute=full"}},
      {"NoEma", {"optim.ema=null"}},
      {"Freezing", {"model.freeze=[vision]"}},
      {"GroupsAndRamp",
       {"optim.weight_decay=0.1",
        "optim.groups=[{pattern: \"*bias\", weight_decay: 0}, {pattern: \"*vision*\", lr_scale: "
        "0.5}]"}},
      {"SmallBuckets", {"parallel.bucket_mb=0.02"}},
      {"Bf16", {"train.dtype=bf16"}, kBf16LossBound},
      {"Bf16Wire", {"parallel.reduce_dtype=bf16"}, kWireLossBound},
  };
  return all;
}

using Parameter = std::tuple<int, int>;  // ranks, case

class ParallelFollowFull : public ::testing::TestWithParam<Parameter> {};

TEST_P(ParallelFollowFull, FollowsOneProcess) {
  const auto [world, index] = GetParam();
  const Case& c = cases()[static_cast<size_t>(index)];
  const fs::path root = longship::testing::scratch_dir(fmt::format("full_{}_{}", world, c.name));
  std::vector<std::string> base = {"train.steps=20", "train.global_batch=12",
                                   "checkpoint.every=null"};
  std::vector<std::string> parallel;
  bool micro = false;
  for (const std::string& text : c.overrides) {
    if (text.starts_with("parallel.")) {
      parallel.push_back(text);
      continue;
    }
    const bool share = text == "train.micro_batch=SHARE";
    base.push_back(share ? fmt::format("train.micro_batch={}", 12 / world) : text);
    micro = micro || text.starts_with("train.micro_batch");
  }
  if (!micro) base.push_back(fmt::format("train.micro_batch={}", world == 3 ? 2 : 3));
  const auto one = losses_of(pi05_run(root / "one", 1, base));
  ASSERT_EQ(one.size(), 20U);
  std::vector<double> before;
  for (const char* strategy : {"ddp", "zero1", "fsdp", "hsdp"}) {
    const std::string name = strategy;
    if (name == "hsdp" && world < 4) continue;
    auto more = base;
    for (const std::string& text : parallel) {
      if (name.ends_with("sdp") && text.starts_with("parallel.bucket_mb")) continue;
      more.push_back(text);
    }
    more.push_back("parallel.strategy=" + name);
    if (name == "hsdp") more.push_back("parallel.shard=2");
    const auto many = losses_of(pi05_run(root / strategy, world, more));
    const double error = worst_error(many, one);
    fmt::print("{} ranks, {}, {}: {:.2g} of at most {:g}\n", world, c.name, strategy, error,
               c.bound);
    EXPECT_LE(error, c.bound) << strategy;
    if (world == 1) {
      EXPECT_EQ(many, one) << "one process is not what it was";
    }
    if (!before.empty()) {
      EXPECT_LE(worst_error(many, before), c.bound) << strategy << " and the one before";
    }
    before = many;
  }
  fs::remove_all(root);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParallelFollowFull,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Range(0, 9)),
                         [](const auto& test) {
                           return fmt::format(
                               "{}{}", cases()[static_cast<size_t>(std::get<1>(test.param))].name,
                               std::get<0>(test.param));
                         });

}  // namespace
}  // namespace longship::train
