// What happens to all processes when something happens to one.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "../train/fake_family.h"
#include "base/error.h"
#include "base/fs.h"
#include "runs.h"
#include "support/paths.h"
#include "train/checkpoint.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using testing::fake_run;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RankOutcome;
using testing::run_training;
using testing::RunRequest;

constexpr int kConfig = static_cast<int>(ExitCode::kConfig);
constexpr int kData = static_cast<int>(ExitCode::kData);
constexpr int kNonFinite = static_cast<int>(ExitCode::kNonFinite);
constexpr int kPeer = static_cast<int>(ExitCode::kPeer);
constexpr int kCheckpoint = static_cast<int>(ExitCode::kCheckpoint);

class ParallelFaults : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(name.begin(), name.end(), '/', '_');
    root_ = longship::testing::scratch_dir("pfault_" + name);
  }
  void TearDown() override {
    fs::permissions(root_, fs::perms::owner_all);
    fs::remove_all(root_);
  }
  RunRequest request(std::vector<std::string> more = {}, int64_t world = 2) {
    more.insert(more.end(),
                {fmt::format("parallel.strategy={}", GetParam()), "train.global_batch=12",
                 "train.micro_batch=2", "parallel.timeout_s=20", "parallel.setup_timeout_s=20"});
    return fake_run(root_ / "run", world, more);
  }
  // Ends a signal to this process after some steps.
  static void later(int milliseconds, int signal) {
    std::thread([=] {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      kill(getpid(), signal);
    }).detach();
  }
  std::vector<nlohmann::json> records() {
    std::vector<nlohmann::json> out;
    std::ifstream in(root_ / "run/metrics.jsonl");
    for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }
  fs::path root_;
};

TEST_P(ParallelFaults, NanOnOneRankStopsAllBeforeTheUpdate) {
  RunRequest r = request();
  r.set_up = [](int64_t rank) {
    testing::set_bad_steps(rank == 1 ? std::vector<int64_t>{7} : std::vector<int64_t>{});
  };
  for (const RankOutcome& rank : run_training(r)) {
    EXPECT_EQ(rank.exit_code, kNonFinite);
    EXPECT_THAT(rank.error, HasSubstr("step 8: rank 1: the loss is nan"));
    EXPECT_THAT(rank.error, HasSubstr("samples"));
  }
  EXPECT_EQ(CheckpointStore(root_ / "run").newest_valid(), 7);
  // And the run goes on from there.
  r.set_up = nullptr;
  EXPECT_EQ(testing::losses_of(r).size(), 13U);
}

TEST_P(ParallelFaults, NanOnOneRankIsSkippedByAll) {
  RunRequest r = request({"train.on_nonfinite=skip"});
  r.set_up = [](int64_t rank) {
    // An infinite gradient with a finite loss on one, a loss that is NaN on the other.
    testing::set_bad_steps(rank == 1 ? std::vector<int64_t>{4} : std::vector<int64_t>{-9});
  };
  const auto ranks = run_training(r);
  for (const RankOutcome& rank : ranks) {
    ASSERT_EQ(rank.exit_code, 0) << rank.error;
    EXPECT_EQ(rank.step, 20);
  }
  for (size_t i = 0; i < 20; ++i) {
    if (i == 4) continue;
    EXPECT_EQ(ranks[0].losses[i], ranks[1].losses[i]) << i;
  }
  EXPECT_EQ(records().back()["skipped_steps"], 2);
}

TEST_P(ParallelFaults, SignalOnOneRankStopsAllAtTheSameStepWithOneSave) {
  RunRequest r = request({"checkpoint.every=null", "train.steps=2000"}, 3);
  r.set_up = [](int64_t rank) {
    testing::set_step_delay_ms(5);
    if (rank == 2) later(1500, SIGTERM);
  };
  const auto ranks = run_training(r);
  for (const RankOutcome& rank : ranks) {
    ASSERT_EQ(rank.exit_code, 0) << rank.error;
    EXPECT_TRUE(rank.interrupted);
    EXPECT_EQ(rank.step, ranks[0].step);
  }
  EXPECT_GT(ranks[0].step, 0);
  EXPECT_LT(ranks[0].step, 2000);
  EXPECT_EQ(CheckpointStore(root_ / "run").steps(), (std::vector<int64_t>{ranks[0].step}));
}

TEST_P(ParallelFaults, KilledRankEndsTheOthersWithAMessage) {
  RunRequest r = request({"train.steps=100000"}, 3);
  r.set_up = [](int64_t rank) {
    testing::set_step_delay_ms(2);
    if (rank == 1) later(1500, SIGKILL);
  };
  const auto ranks = run_training(r);
  EXPECT_EQ(ranks[1].exit_code, -1);
  for (const size_t survivor : {0, 2}) {
    EXPECT_EQ(ranks[survivor].exit_code, kPeer) << ranks[survivor].error;
    EXPECT_THAT(ranks[survivor].error, HasSubstr("rank 1")) << survivor;
    EXPECT_LT(ranks[survivor].seconds, 15);
  }
  EXPECT_TRUE(CheckpointStore(root_ / "run").newest_valid().has_value());
}

TEST_P(ParallelFaults, UnreadableSampleOfOneRankStopsAllWithItsMessage) {
  RunRequest r = request({"checkpoint.every=null"});
  r.set_up = [](int64_t rank) {
    if (rank == 1) testing::set_unreadable_sample(40);
  };
  const auto ranks = run_training(r);
  for (const RankOutcome& rank : ranks) {
    EXPECT_EQ(rank.exit_code, kData);
    EXPECT_THAT(rank.error, HasSubstr("rank 1: "));
    EXPECT_THAT(rank.error, HasSubstr("sample 40 cannot be read"));
  }
  const size_t done = records().size();
  EXPECT_EQ(CheckpointStore(root_ / "run").newest_valid().value_or(0), static_cast<int64_t>(done));
}

TEST_P(ParallelFaults, RankZeroCannotSave) {
  RunRequest r = request({"checkpoint.every=5"});
  // A file where the folder should be: permissions do not stop root.
  fs::create_directories(root_ / "run");
  r.set_up = [this](int64_t rank) {
    if (rank != 0) return;
    std::thread([folder = root_ / "run"] {
      while (!fs::exists(folder / "metrics.jsonl")) std::this_thread::yield();
      std::ofstream(folder / "checkpoints") << "in the way";
    }).detach();
  };
  testing::set_step_delay_ms(50);
  for (const RankOutcome& rank : run_training(r)) {
    EXPECT_EQ(rank.exit_code, kCheckpoint) << rank.error;
    EXPECT_THAT(rank.error, HasSubstr("could not save the checkpoint"));
  }
  testing::set_step_delay_ms(0);
}

TEST_P(ParallelFaults, AnErrorOfOneRankReachesTheOthers) {
  RunRequest r = request();
  const auto base = r.recipe;
  // Rank 1 has another recipe: every rank says which key.
  r.recipe = [this, base](int64_t rank) {
    if (rank == 0) return base(rank);
    return testing::fake_recipe((root_ / "run").string(),
                                {fmt::format("parallel.strategy={}", GetParam()),
                                 "train.global_batch=12", "train.micro_batch=2", "optim.lr=0.02",
                                 "parallel.timeout_s=20", "parallel.setup_timeout_s=20"});
  };
  for (const RankOutcome& rank : run_training(r)) {
    EXPECT_EQ(rank.exit_code, kConfig);
    EXPECT_THAT(rank.error, HasSubstr("recipe optim.lr"));
    EXPECT_THAT(rank.error, HasSubstr("'0.02'"));
    EXPECT_THAT(rank.error, Not(HasSubstr("optim.eps")));
  }
  EXPECT_FALSE(fs::exists(root_ / "run/config.yaml"));
}

TEST_P(ParallelFaults, ForeignFolderIsRefusedByAll) {
  fs::create_directories(root_ / "run");
  std::ofstream(root_ / "run/thesis.txt") << "precious";
  for (const RankOutcome& rank : run_training(request())) {
    EXPECT_EQ(rank.exit_code, kConfig);
    EXPECT_THAT(rank.error, HasSubstr("is not empty and holds no checkpoint"));
  }
  EXPECT_TRUE(fs::exists(root_ / "run/thesis.txt"));
}

INSTANTIATE_TEST_SUITE_P(Strategies, ParallelFaults, ::testing::Values("ddp", "zero1"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace longship::train
