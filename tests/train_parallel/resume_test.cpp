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
                          const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = {"train.steps=8", "train.global_batch=6", "train.micro_batch=1",
                                    "checkpoint.every=4", "parallel.strategy=" + strategy};
    all.insert(all.end(), more.begin(), more.end());
    return losses_of(pi05_run(root_ / name, world, all));
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

TEST_F(ParallelResume, SavedByFourWithFsdpGoesOnAnywhere) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"train.global_batch=12", "model.freeze=[vision]"});
    return more;
  };
  const auto whole = run("whole", 4, "fsdp", with({}));
  ASSERT_EQ(whole.size(), 8U);
  run("half", 4, "fsdp", with({"train.stop_after=4"}));
  for (const char* name : {"same", "one", "two", "three"}) copy("half", name);
  EXPECT_EQ(run("same", 4, "fsdp", with({})), tail(whole, 4));
  EXPECT_LE(worst_error(run("one", 1, "none", with({})), tail(whole, 4)), kFp32LossBound);
  EXPECT_LE(worst_error(run("two", 2, "zero1", with({})), tail(whole, 4)), kFp32LossBound);
  EXPECT_LE(worst_error(run("three", 3, "ddp", with({})), tail(whole, 4)), kFp32LossBound);
}

// Two copies of two parts each.
TEST_F(ParallelResume, HsdpAndBack) {
  const std::vector<std::string> share = {"parallel.shard=2", "train.global_batch=8"};
  const auto whole = run("whole", 4, "hsdp", share);
  ASSERT_EQ(whole.size(), 8U);
  auto half = share;
  half.push_back("train.stop_after=4");
  run("half", 4, "hsdp", half);
  for (const char* name : {"same", "one", "two"}) copy("half", name);
  EXPECT_EQ(run("same", 4, "hsdp", share), tail(whole, 4));
  EXPECT_LE(worst_error(run("one", 1, "none", {"train.global_batch=8"}), tail(whole, 4)),
            kFp32LossBound);
  EXPECT_LE(worst_error(run("two", 2, "fsdp", {"train.global_batch=8"}), tail(whole, 4)),
            kFp32LossBound);
}

// Masters, moments and averages come back to their ranks bit for bit, and bf16 weights are the
// rounded masters on all of them.
TEST_F(ParallelResume, Bf16IsBitwise) {
  for (const char* strategy : {"ddp", "zero1", "fsdp"}) {
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

// A checkpoint of several has the tensors, shapes and types of one process's; the state of fsdp has
// the frozen parameters besides.
TEST_F(ParallelResume, FilesAreThoseOfOneProcess) {
  const std::vector<std::string> frozen = {"train.stop_after=4", "model.freeze=[vision]"};
  run("one", 1, "none", frozen);
  for (const char* strategy : {"zero1", "fsdp"}) {
    run(strategy, 2, strategy, frozen);
    for (const char* file : {"model", "state"}) {
      const auto a = checkpoint_tensors(root_ / "one/latest", file);
      auto b = checkpoint_tensors(root_ / strategy / "latest", file);
      const size_t more =
          std::erase_if(b, [](const auto& entry) { return entry.first.starts_with("param."); });
      EXPECT_EQ(more > 5, file == std::string("state") && strategy == std::string("fsdp"));
      ASSERT_EQ(a.size(), b.size()) << file;
      for (const auto& [name, tensor] : a) {
        ASSERT_TRUE(b.contains(name)) << file << " " << name;
        EXPECT_EQ(tensor.sizes(), b.at(name).sizes()) << name;
        EXPECT_EQ(tensor.scalar_type(), b.at(name).scalar_type()) << name;
        if (file == std::string("model") && name.find("vision_tower") != std::string::npos) {
          EXPECT_TRUE(tensor.equal(b.at(name))) << strategy << " " << name;
        }
      }
    }
    EXPECT_EQ(CheckpointStore(root_ / strategy).newest_valid(), 4);
  }
}

}  // namespace
}  // namespace longship::train
