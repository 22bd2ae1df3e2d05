// Checkpoints written by several processes: committed whole or not at all, whoever dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <functional>

#include "base/log.h"
#include "checkpoint_support.h"
#include "support/paths.h"
#include "train/checkpoint_saver.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using testing::bytes_of_file;
using testing::FolderGroup;
using ::testing::HasSubstr;
using testing::holds_known_state;
using testing::known_parts;

class CheckpointGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    log::init(log::Level::kOff);
    root_ = longship::testing::scratch_dir(
        std::string("checkpoint_group_") +
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    run_ = root_ / "run";
    fs::create_directories(run_);
  }
  void TearDown() override {
    log::init(log::Level::kInfo);
    fs::remove_all(root_);
  }
  // A fresh folder for the messages of one world.
  fs::path messages() {
    const fs::path folder = root_ / ("messages" + std::to_string(world_++));
    fs::create_directories(folder);
    return folder;
  }
  /// Runs `body` as every rank of a world, each a process; their exit codes, 256 + signal.
  std::vector<pid_t> start(int64_t world_size, const std::function<int(FolderGroup&)>& body,
                           double timeout_s = 20) {
    const fs::path folder = messages();
    std::vector<pid_t> children;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) {
        int code = 99;
        try {
          FolderGroup group(folder, rank, world_size, timeout_s);
          code = body(group);
        } catch (const Error& error) {
          std::ofstream(folder / ("error." + std::to_string(rank))) << error.what();
          code = static_cast<int>(error.code());
        } catch (...) {
        }
        ::_exit(code);
      }
      children.push_back(child);
    }
    return children;
  }
  static std::vector<int> end(const std::vector<pid_t>& children) {
    std::vector<int> codes;
    for (const pid_t child : children) {
      int status = 0;
      ::waitpid(child, &status, 0);
      codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status));
    }
    return codes;
  }
  std::string error_of(int64_t rank) {
    return bytes_of_file(root_ / ("messages" + std::to_string(world_ - 1)) /
                         ("error." + std::to_string(rank)));
  }
  int save_known(FolderGroup& group, int64_t step) {
    CheckpointStore store(run_);
    save_parts(store, group, known_parts(step, group.rank(), group.world_size()));
    return 0;
  }
  fs::path root_, run_;
  int world_ = 0;
};

TEST_F(CheckpointGroupTest, EveryWorldSizeWritesTheSameState) {
  CheckpointStore store(run_);
  SingleProcess alone;
  save_parts(store, alone, known_parts(100, 0, 1));
  const std::string model = bytes_of_file(store.folder_of(100) / "model.safetensors");
  for (int64_t world = 2; world <= 4; ++world) {
    const auto codes =
        end(start(world, [&](FolderGroup& g) { return save_known(g, 100 + g.world_size()); }));
    EXPECT_EQ(codes, std::vector<int>(static_cast<size_t>(world), 0));
    const fs::path folder = store.folder_of(100 + world);
    EXPECT_EQ(check_manifest(folder), "");
    EXPECT_TRUE(holds_known_state(folder, 100 + world));
    const io::ShardedState state = io::ShardedState::open(folder / "state");
    EXPECT_EQ(state.index().world_size, world);
    EXPECT_EQ(state.index().strategy, "zero1");
    for (int64_t r = 0; r < world; ++r) {
      EXPECT_TRUE(fs::exists(folder / "state" / io::shard_file_name(r, world)));
    }
  }
  EXPECT_EQ(store.newest_valid(), 104);
  EXPECT_EQ(fs::canonical(run_ / "latest"), fs::canonical(store.folder_of(104)));
  // The weights file does not tell how many ranks wrote it.
  const auto codes = end(start(3, [&](FolderGroup& g) {
    CheckpointStore other(root_ / "other");
    save_parts(other, g, known_parts(100, g.rank(), 3));
    return 0;
  }));
  EXPECT_EQ(codes, (std::vector<int>{0, 0, 0}));
  EXPECT_TRUE(bytes_of_file(root_ / "other/checkpoints/step_100/model.safetensors") == model);
}

TEST_F(CheckpointGroupTest, OneRankThatCannotWriteStopsTheCommitAndAllKnowWhy) {
  end(start(3, [&](FolderGroup& g) { return save_known(g, 1); }));
  // Every rank saves 2, where rank 1 hits a full disk, and goes on to save 3.
  const auto codes = end(start(3, [&](FolderGroup& g) {
    const fs::path reasons = root_ / ("reason." + std::to_string(g.rank()));
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit old{};
    ::getrlimit(RLIMIT_FSIZE, &old);
    const rlimit small{700, old.rlim_max};
    std::string reason;
    try {
      CheckpointStore store(run_);
      SavePlan plan;
      plan.step = 2;
      plan.write = [&](const fs::path& folder) {
        if (g.rank() == 1) ::setrlimit(RLIMIT_FSIZE, &small);
        return std::vector{write_shard(folder, g.rank(), 3, known_parts(2, g.rank(), 3).state)};
      };
      store.save(g, plan);
    } catch (const CheckpointError& error) {
      reason = error.what();
    }
    ::setrlimit(RLIMIT_FSIZE, &old);
    write_file_atomic(reasons, reason);
    return save_known(g, 3);
  }));
  EXPECT_EQ(codes, (std::vector<int>{0, 0, 0}));
  const std::string reason = bytes_of_file(root_ / "reason.0");
  EXPECT_THAT(reason, HasSubstr("step_2: rank 1: cannot write"));
  EXPECT_THAT(reason, HasSubstr("optimizer.r0001-of-0003.safetensors"));
  EXPECT_THAT(reason, HasSubstr("the last good checkpoint is"));
  EXPECT_THAT(reason, HasSubstr("step_1"));
  EXPECT_EQ(bytes_of_file(root_ / "reason.1"), reason);
  EXPECT_EQ(bytes_of_file(root_ / "reason.2"), reason);
  CheckpointStore store(run_);
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{1, 3}));
  EXPECT_TRUE(holds_known_state(store.folder_of(3), 3));
  for (const auto& entry : fs::directory_iterator(run_ / "checkpoints")) {
    EXPECT_EQ(entry.path().string().find("partial"), std::string::npos) << entry.path();
  }
}

TEST_F(CheckpointGroupTest, RankZeroThatCannotCommitStopsAll) {
  const auto codes = end(start(2, [&](FolderGroup& g) {
    CheckpointStore store(run_);
    SavePlan plan;
    plan.step = 5;
    plan.write = [&](const fs::path& folder) {
      return std::vector{write_shard(folder, g.rank(), 2, known_parts(5, g.rank(), 2).state)};
    };
    plan.complete = [](const fs::path&) -> std::vector<WrittenFile> {
      throw CheckpointError("the index does not close");
    };
    store.save(g, plan);
    return 0;
  }));
  EXPECT_EQ(codes, (std::vector<int>{4, 4}));
  EXPECT_THAT(error_of(1),
              HasSubstr("step_5: rank 0: the index does not close; no checkpoint had"));
  EXPECT_EQ(error_of(0), error_of(1));
  EXPECT_TRUE(CheckpointStore(run_).steps().empty());
}

TEST_F(CheckpointGroupTest, AReportThatTheFolderContradictsIsNoCommit) {
  const auto codes = end(start(2, [&](FolderGroup& g) {
    CheckpointStore store(run_);
    SavePlan plan;
    plan.step = 5;
    plan.write = [&](const fs::path& folder) {
      auto file = write_shard(folder, g.rank(), 2, known_parts(5, g.rank(), 2).state);
      if (g.rank() == 1) fs::resize_file(folder / file.path, file.sum.bytes - 1);
      return std::vector{file};
    };
    store.save(g, plan);
    return 0;
  }));
  EXPECT_EQ(codes, (std::vector<int>{4, 4}));
  EXPECT_THAT(error_of(1), HasSubstr("optimizer.r0001-of-0002.safetensors has"));
  EXPECT_THAT(error_of(1), HasSubstr("its writer reported"));
}

TEST_F(CheckpointGroupTest, ALostPeerCommitsNothing) {
  const auto codes = end(start(
      2,
      [&](FolderGroup& g) {
        CheckpointStore store(run_);
        SavePlan plan;
        plan.step = 5;
        plan.write = [&](const fs::path& folder) {
          if (g.rank() == 1) ::_exit(77);
          return std::vector{write_shard(folder, 0, 2, known_parts(5, 0, 2).state)};
        };
        store.save(g, plan);
        return 0;
      },
      0.5));
  EXPECT_EQ(codes, (std::vector<int>{static_cast<int>(ExitCode::kPeer), 77}));
  EXPECT_TRUE(CheckpointStore(run_).steps().empty());
  EXPECT_TRUE(fs::is_empty(run_ / "checkpoints"));
}

// Every rank changes its state as soon as begin() returns; rank 1 has nothing to save at step 3.
TEST_F(CheckpointGroupTest, RanksSaveBehindTraining) {
  const auto codes = end(start(3, [&](FolderGroup& g) {
    log::init(log::Level::kOff, root_ / ("log." + std::to_string(g.rank())));
    CheckpointStore store(run_);
    CheckpointSaver saver(store, g, {true, 3, std::nullopt});
    for (int64_t step = 1; step <= 5; ++step) {
      SaveParts parts = known_parts(step, g.rank(), 3);
      saver.begin(step, [&] {
        if (g.rank() == 1 && step == 3) throw CheckpointError("there is no state here");
        return parts;
      });
      for (const StateSlice& s : parts.state) s.tensor.fill_(-1.0);
    }
    saver.finish(6, [&] { return known_parts(6, g.rank(), 3); });
    log::flush();
    return 0;
  }));
  EXPECT_EQ(codes, (std::vector<int>{0, 0, 0}));
  CheckpointStore store(run_);
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{4, 5, 6}));
  for (const int64_t step : store.steps()) {
    EXPECT_EQ(check_manifest(store.folder_of(step)), "");
    EXPECT_TRUE(holds_known_state(store.folder_of(step), step));
  }
  for (int rank = 0; rank < 3; ++rank) {
    const std::string log = bytes_of_file(root_ / ("log." + std::to_string(rank)));
    EXPECT_THAT(log, HasSubstr("step_3: rank 1: there is no state here"));
    EXPECT_THAT(log, HasSubstr("training goes on"));
  }
}

// Worlds of 1 to 4 processes save and prune without pause; one rank, or all, are killed at random
// moments. Every checkpoint that can be seen is whole, and the next world goes on from it.
TEST_F(CheckpointGroupTest, KillingRanksAtAnyMomentLeavesOnlyWholeCheckpoints) {
  CheckpointStore store(run_);
  const auto before = std::chrono::steady_clock::now();
  end(start(3, [&](FolderGroup& g) { return save_known(g, 1); }));
  const double save_us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - before).count();
  int64_t newest = 1;
  uint64_t random = 4242;
  const auto draw = [&random] {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(random >> 33) / static_cast<double>(1ULL << 31);
  };
  for (int round = 0; round < 30 || (newest < 6 && round < 300); ++round) {
    const int64_t world = 1 + round % 4;
    const auto children = start(
        world,
        [&](FolderGroup& g) {
          CheckpointStore own(run_);
          if (g.rank() == 0) own.remove_partials();
          g.barrier();
          for (int64_t step = newest + 1;; ++step) {
            save_parts(own, g, known_parts(step, g.rank(), g.world_size()));
            if (g.rank() == 0) own.prune(step, 2, std::nullopt);
          }
          return 0;
        },
        0.3);
    std::this_thread::sleep_for(
        std::chrono::microseconds(static_cast<int64_t>(3 * save_us * draw())));
    if (round % 3 == 0) {
      // One alone; the others find out by themselves.
      ::kill(children[static_cast<size_t>(draw() * static_cast<double>(world))], SIGKILL);
    } else {
      for (const pid_t child : children) ::kill(child, SIGKILL);
    }
    for (const int code : end(children)) {
      EXPECT_TRUE(code == 256 + SIGKILL || code == static_cast<int>(ExitCode::kPeer)) << code;
    }
    std::vector<Rejected> rejected;
    const auto valid = store.newest_valid(&rejected);
    ASSERT_TRUE(valid.has_value());
    ASSERT_TRUE(rejected.empty()) << rejected[0].reason;
    EXPECT_GE(*valid, newest);
    newest = *valid;
    for (const int64_t step : store.steps()) {
      EXPECT_EQ(check_manifest(store.folder_of(step)), "");
      EXPECT_TRUE(holds_known_state(store.folder_of(step), step));
    }
  }
  EXPECT_GE(newest, 6);
  store.remove_partials();
  for (const auto& entry : fs::directory_iterator(run_ / "checkpoints")) {
    EXPECT_EQ(entry.path().string().find("partial"), std::string::npos) << entry.path();
  }
}

}  // namespace
}  // namespace longship::train
