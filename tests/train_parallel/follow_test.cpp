// Two processes follow one; the full matrix is in follow_full_test.cpp.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "bounds.h"
#include "runs.h"
#include "support/paths.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using testing::checkpoint_tensors;
using testing::losses_of;
using testing::pi05_run;
using testing::worst_error;

class ParallelFollow : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = longship::testing::scratch_dir(
        std::string("follow_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { fs::remove_all(root_); }
  std::vector<double> run(const std::string& name, int64_t world, std::vector<std::string> more) {
    more.insert(more.end(), {"train.steps=20", "train.global_batch=8", "checkpoint.every=null"});
    return losses_of(pi05_run(root_ / name, world, more));
  }
  // Largest difference of the files, relative to the largest value of each tensor.
  double distance(const std::string& a, const std::string& b, const char* file) {
    auto left = checkpoint_tensors(root_ / a / "latest", file);
    // Of fsdp: frozen parameters, which are in the public file too.
    std::erase_if(left, [](const auto& entry) { return entry.first.starts_with("param."); });
    const auto right = checkpoint_tensors(root_ / b / "latest", file);
    EXPECT_EQ(left.size(), right.size());
    double worst = 0;
    for (const auto& [name, tensor] : left) {
      // The true gradient of a key's bias is zero, which leaves noise for AdamW to scale up.
      if (name.ends_with("k_proj.bias")) continue;
      const at::Tensor other = right.at(name);
      EXPECT_EQ(tensor.sizes(), other.sizes()) << name;
      EXPECT_EQ(tensor.scalar_type(), other.scalar_type()) << name;
      const double scale = other.abs().max().item<double>();
      if (scale == 0) continue;
      const double error = tensor.sub(other).abs().max().item<double>() / scale;
      if (error > kFp32StateBound) fmt::print("{} {} {:.2g} of {:.2g}\n", file, name, error, scale);
      worst = std::max(worst, error);
    }
    return worst;
  }
  fs::path root_;
};

TEST_F(ParallelFollow, Fp32WithAccumulation) {
  const auto one = run("one", 1, {"train.micro_batch=2"});
  ASSERT_EQ(one.size(), 20U);
  std::vector<double> ddp;
  for (const char* strategy : {"ddp", "zero1", "fsdp"}) {
    const auto two =
        run(strategy, 2, {"train.micro_batch=2", fmt::format("parallel.strategy={}", strategy)});
    if (ddp.empty()) ddp = two;
    fmt::print("{} {:.2g}, from ddp {:.2g}\n", strategy, worst_error(two, one),
               worst_error(two, ddp));
    EXPECT_LE(worst_error(two, one), kFp32LossBound) << strategy;
    EXPECT_LE(worst_error(two, ddp), kFp32LossBound) << strategy;
    for (const char* file : {"model", "state"}) {
      EXPECT_LE(distance(strategy, "one", file), kFp32StateBound) << strategy << " " << file;
    }
  }
}

// What is kept between the passes changes no bit.
TEST_F(ParallelFollow, ReshardingKeepsTheBits) {
  std::vector<double> before;
  for (const char* reshard : {"after_forward", "never", "after_optimizer_step"}) {
    const auto two = run(reshard, 2,
                         {"train.micro_batch=2", "train.recompute=full", "parallel.strategy=fsdp",
                          fmt::format("parallel.reshard={}", reshard)});
    if (!before.empty()) {
      EXPECT_EQ(two, before) << reshard;
    }
    before = two;
  }
}

// A table so large that its gradient is exchanged as lists of rows, and one process.
TEST_F(ParallelFollow, RowsOfATable) {
  const std::vector<std::string> large = {"perf.cpu_oracles=true",
                                          "model.paligemma_config.vocab_size=3000"};
  for (const char* passes : {"train.micro_batch=4", "train.micro_batch=2"}) {
    auto base = large;
    base.push_back(passes);
    const auto one = run(fmt::format("one_{}", passes), 1, base);
    for (const char* strategy : {"ddp", "zero1", "fsdp"}) {
      auto more = base;
      more.push_back(fmt::format("parallel.strategy={}", strategy));
      const std::string name = fmt::format("{}_{}", strategy, passes);
      const auto two = run(name, 2, more);
      fmt::print("{} {:.2g}\n", name, worst_error(two, one));
      EXPECT_LE(worst_error(two, one), kFp32LossBound) << name;
      for (const char* file : {"model", "state"}) {
        EXPECT_LE(distance(name, fmt::format("one_{}", passes), file), kFp32StateBound) << name;
      }
    }
  }
}

TEST_F(ParallelFollow, Bf16) {
  const std::vector<std::string> bf16 = {"train.dtype=bf16", "train.micro_batch=4"};
  const auto one = run("one", 1, bf16);
  for (const char* strategy : {"ddp", "zero1", "fsdp"}) {
    auto more = bf16;
    more.push_back(fmt::format("parallel.strategy={}", strategy));
    const auto two = run(strategy, 2, more);
    fmt::print("{} {:.2g}\n", strategy, worst_error(two, one));
    EXPECT_LE(worst_error(two, one), kBf16LossBound) << strategy;
  }
}

}  // namespace
}  // namespace longship::train
