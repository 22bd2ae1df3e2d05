// Checkpoints do not depend on who wrote them: any number of processes and any strategy go on from
// any other's.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "base/fs.h"
#include "bounds.h"
#include "runs.h"
#include "support/paths.h"
#include "train/checkpoint.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using testing::checkpoint_tensors;
using testing::losses_of;
using testing::pi05_run;
using testing::worst_error;

class ParallelResume : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = longship::testing::scratch_dir(
        std::string("presume_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { fs::remove_all(root_); }
  std::vector<double> run(const std::string& name, int64_t world, const std::string& strategy,
                          std::vector<std::string> more = {}) {
    more.insert(more.end(), {"train.steps=8", "train.global_batch=6", "train.micro_batch=1",
                             "checkpoint.every=4", "parallel.strategy=" + strategy});
    return losses_of(pi05_run(root_ / name, world, more));
  }
  void copy(const std::string& from, const std::string& to) {
    fs::copy(root_ / from, root_ / to,
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }
  fs::path root_;
};

std::vector<double> tail(const std::vector<double>& all, size_t count) {
  return {all.end() - static_cast<std::ptrdiff_t>(count), all.end()};
}

TEST_F(ParallelResume, SavedByTwoWithZero1GoesOnAnywhere) {
  const auto whole = run("whole", 2, "zero1");
  ASSERT_EQ(whole.size(), 8U);
  run("half", 2, "zero1", {"train.stop_after=4"});
  for (const char* name : {"same", "one", "three"}) copy("half", name);
  // The same processes: the same bits.
  EXPECT_EQ(run("same", 2, "zero1"), tail(whole, 4));
  EXPECT_LE(worst_error(run("one", 1, "none"), tail(whole, 4)), kFp32LossBound);
  EXPECT_LE(worst_error(run("three", 3, "ddp"), tail(whole, 4)), kFp32LossBound);
}

TEST_F(ParallelResume, SavedByOneGoesOnWithTwo) {
  const auto whole = run("whole", 1, "none");
  run("half", 1, "none", {"train.stop_after=4"});
  for (const char* name : {"zero1", "ddp"}) copy("half", name);
  const auto zero1 = run("zero1", 2, "zero1");
  const auto ddp = run("ddp", 2, "ddp");
  EXPECT_LE(worst_error(zero1, tail(whole, 4)), kFp32LossBound);
  EXPECT_LE(worst_error(ddp, tail(whole, 4)), kFp32LossBound);
}

// Masters, moments and averages come back to their ranks bit for bit, and bf16 weights are the
// rounded masters on all of them.
TEST_F(ParallelResume, Bf16IsBitwise) {
  for (const char* strategy : {"ddp", "zero1"}) {
    const std::string name = strategy;
    const std::vector<std::string> bf16 = {"train.dtype=bf16"};
    const auto whole = run(name, 2, strategy, bf16);
    run(name + "_half", 2, strategy, {"train.dtype=bf16", "train.stop_after=4"});
    EXPECT_EQ(run(name + "_half", 2, strategy, bf16), tail(whole, 4)) << strategy;
    for (const char* file : {"model", "state"}) {
      const auto a = checkpoint_tensors(root_ / name / "latest", file);
      const auto b = checkpoint_tensors(root_ / (name + "_half") / "latest", file);
      ASSERT_EQ(a.size(), b.size());
      for (const auto& [key, tensor] : a)
        EXPECT_TRUE(tensor.equal(b.at(key))) << file << " " << key;
    }
  }
}

// A checkpoint of zero1 has the tensors, shapes and types of one process's.
TEST_F(ParallelResume, FilesAreThoseOfOneProcess) {
  run("one", 1, "none", {"train.stop_after=4"});
  run("two", 2, "zero1", {"train.stop_after=4"});
  for (const char* file : {"model", "state"}) {
    const auto a = checkpoint_tensors(root_ / "one/latest", file);
    const auto b = checkpoint_tensors(root_ / "two/latest", file);
    ASSERT_EQ(a.size(), b.size()) << file;
    for (const auto& [name, tensor] : a) {
      ASSERT_TRUE(b.contains(name)) << file << " " << name;
      EXPECT_EQ(tensor.sizes(), b.at(name).sizes()) << name;
      EXPECT_EQ(tensor.scalar_type(), b.at(name).scalar_type()) << name;
    }
  }
  EXPECT_EQ(CheckpointStore(root_ / "two").newest_valid(), 4);
}

}  // namespace
}  // namespace longship::train
