// Ranks x strategies x what a recipe of GR00T can turn on, 10 steps each, against one process:
// ctest -L train_parallel_full.
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

struct Case {
  const char* name;
  std::vector<std::string> overrides;
  double bound = kFp32LossBound;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"Plain", {}},
      {"Recompute", {"train.recompute=full"}},
      // The published set: only the head, and for N1.6 some language layers, learn.
      {"PublishedSet", {"model.tune_llm=false", "model.tune_visual=false"}},
      {"SmallBuckets", {"parallel.bucket_mb=0.02"}},
      {"Bf16", {"train.dtype=bf16"}, kBf16LossBound},
      {"Bf16Wire", {"parallel.reduce_dtype=bf16"}, kWireLossBound},
  };
  return all;
}

using Parameter = std::tuple<const char*, int, int>;  // family, ranks, case

class GrootParallelFull : public ::testing::TestWithParam<Parameter> {};

TEST_P(GrootParallelFull, FollowsOneProcess) {
  const auto [family, world, index] = GetParam();
  const Case& c = cases()[static_cast<size_t>(index)];
  const fs::path root =
      longship::testing::scratch_dir(fmt::format("{}_full_{}_{}", family, world, c.name));
  // The global batch of 12 divides by 2 to 4; the micro-batches are those of one process.
  std::vector<std::string> base = {"train.steps=10", "train.global_batch=12", "train.micro_batch=1",
                                   "checkpoint.every=null"};
  std::vector<std::string> parallel;
  for (const std::string& text : c.overrides) {
    (text.starts_with("parallel.") ? parallel : base).push_back(text);
  }
  const auto one = losses_of(groot_run(family, root / "one", 1, base));
  ASSERT_EQ(one.size(), 10U);
  for (const std::string strategy : {"ddp", "zero1", "fsdp", "hsdp"}) {
    if (strategy == "hsdp" && world < 4) continue;
    auto more = base;
    for (const std::string& text : parallel) {
      if (strategy.ends_with("sdp") && text.starts_with("parallel.bucket_mb")) continue;
      more.push_back(text);
    }
    more.push_back("parallel.strategy=" + strategy);
    if (strategy == "hsdp") more.push_back("parallel.shard=2");
    const auto many = losses_of(groot_run(family, root / strategy, world, more));
    const double error = worst_error(many, one);
    fmt::print("{}, {} ranks, {}, {}: {:.2g} of at most {:g}\n", family, world, c.name, strategy,
               error, c.bound);
    EXPECT_LE(error, c.bound) << strategy;
  }
  fs::remove_all(root);
}

INSTANTIATE_TEST_SUITE_P(Ranks, GrootParallelFull,
                         ::testing::Combine(::testing::Values("groot_n16", "groot_n17"),
                                            ::testing::Values(2, 3, 4), ::testing::Range(0, 6)),
                         [](const auto& test) {
                           return fmt::format(
                               "{}_{}{}", std::get<0>(test.param),
                               cases()[static_cast<size_t>(std::get<2>(test.param))].name,
                               std::get<1>(test.param));
                         });

}  // namespace
}  // namespace longship::train
