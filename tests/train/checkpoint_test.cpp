// Checkpoints that survive kills, cuts, full disks and read-only folders.
#include "train/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "support/paths.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

// A checkpoint whose files all hold its step.
void fill(const fs::path& folder, int64_t step, size_t num_bytes = 100) {
  write(folder / "model.safetensors", std::string(num_bytes, static_cast<char>('a' + step % 26)));
  write(folder / "state" / "trainer.json", std::to_string(step));
}

fs::path save(CheckpointStore& store, int64_t step, size_t num_bytes = 100) {
  return store.save(step, num_bytes, [&](const fs::path& f) { fill(f, step, num_bytes); });
}

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    log::init(log::Level::kOff);
    run_ = longship::testing::scratch_dir(
        std::string("checkpoint_") +
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { fs::remove_all(run_); }
  fs::path run_;
};

TEST_F(CheckpointTest, SavedOneIsValidAndLatest) {
  CheckpointStore store(run_);
  EXPECT_FALSE(store.newest_valid().has_value());
  const fs::path folder = save(store, 10);
  EXPECT_EQ(folder.filename(), "step_10");
  EXPECT_EQ(check_manifest(folder), "");
  EXPECT_EQ(store.newest_valid(), 10);
  EXPECT_EQ(fs::read_symlink(run_ / "latest"), fs::path("checkpoints/step_10"));
  save(store, 20);
  EXPECT_EQ(fs::read_symlink(run_ / "latest"), fs::path("checkpoints/step_20"));
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{10, 20}));
}

TEST_F(CheckpointTest, CutManifestFallsBackWithReason) {
  CheckpointStore store(run_);
  save(store, 10);
  const fs::path newer = save(store, 20);
  fs::resize_file(newer / kManifestFile, fs::file_size(newer / kManifestFile) / 2);
  std::vector<Rejected> rejected;
  EXPECT_EQ(store.newest_valid(&rejected), 10);
  ASSERT_EQ(rejected.size(), 1U);
  EXPECT_EQ(rejected[0].folder, newer);
  EXPECT_THAT(rejected[0].reason, HasSubstr("manifest.json"));
}

TEST_F(CheckpointTest, EveryKindOfDamageIsFound) {
  CheckpointStore store(run_);
  const fs::path a = save(store, 1), b = save(store, 2), c = save(store, 3), d = save(store, 4),
                 e = save(store, 5);
  fs::resize_file(a / "model.safetensors", 99);
  EXPECT_THAT(check_manifest(a), HasSubstr("model.safetensors has 99 bytes instead of 100"));
  write(b / "model.safetensors", std::string(100, '!'));
  EXPECT_THAT(check_manifest(b), HasSubstr("model.safetensors does not match its SHA-256"));
  fs::remove(c / "state" / "trainer.json");
  EXPECT_THAT(check_manifest(c), HasSubstr("state/trainer.json is missing"));
  write(d / "extra.bin", "x");
  EXPECT_THAT(check_manifest(d), HasSubstr("extra.bin is not in the manifest"));
  fs::remove(e / kManifestFile);
  EXPECT_THAT(check_manifest(e), HasSubstr("has no state/manifest.json"));
  EXPECT_FALSE(store.newest_valid().has_value());
}

TEST_F(CheckpointTest, KeepsTheLastAndTheMultiples) {
  CheckpointStore store(run_);
  for (int64_t step = 10; step <= 70; step += 10) {
    save(store, step);
    store.prune(step, 2, 30);
  }
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{30, 60, 70}));
}

TEST_F(CheckpointTest, PruningNeverCountsStepsBehindTheNewest) {
  CheckpointStore store(run_);
  save(store, 10);
  save(store, 40);
  write(run_ / "checkpoints/step_40/model.safetensors", "damaged");
  save(store, 20);
  store.prune(20, 1, std::nullopt);
  EXPECT_EQ(store.newest_valid(), 20);
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{20, 40}));
}

TEST_F(CheckpointTest, DamagedOneOfTheSameStepIsReplaced) {
  CheckpointStore store(run_);
  save(store, 10);
  write(run_ / "checkpoints/step_10/model.safetensors", "damaged");
  save(store, 10);
  EXPECT_EQ(check_manifest(store.folder_of(10)), "");
  EXPECT_TRUE(fs::exists(run_ / "checkpoints/step_10.invalid-1"));
}

TEST_F(CheckpointTest, FailureInsideASaveLeavesTheLastGoodOne) {
  CheckpointStore store(run_);
  save(store, 10);
  try {
    store.save(20, 100, [](const fs::path&) { throw DataError("something broke"); });
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ExitCode::kCheckpoint);
    EXPECT_THAT(error.what(), HasSubstr("step_20: something broke"));
    EXPECT_THAT(error.what(), HasSubstr("the last good checkpoint is"));
    EXPECT_THAT(error.what(), HasSubstr("step_10"));
  }
  EXPECT_EQ(store.newest_valid(), 10);
  EXPECT_EQ(store.steps(), std::vector<int64_t>{10});
}

TEST_F(CheckpointTest, TooLittleRoomIsFoundBeforeWriting) {
  CheckpointStore store(run_);
  save(store, 10);
  bool called = false;
  try {
    store.save(20, uint64_t{1} << 60, [&](const fs::path&) { called = true; });
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("are needed and"));
    EXPECT_THAT(error.what(), HasSubstr("are free"));
  }
  EXPECT_FALSE(called);
  EXPECT_EQ(store.newest_valid(), 10);
}

// The limit on file sizes stands in for a full disk: writing beyond it fails half-way.
TEST_F(CheckpointTest, DiskThatFillsWhileSaving) {
  CheckpointStore store(run_);
  save(store, 10);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{50000, 50000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      store.save(20, 100, [](const fs::path& f) {
        write_file_atomic(f / "model.safetensors", std::string(200000, 'x'));
      });
    } catch (const CheckpointError& error) {
      ::_exit(std::string(error.what()).find("step_20") != std::string::npos ? 4 : 98);
    } catch (...) {
      ::_exit(99);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 4);
  EXPECT_EQ(store.newest_valid(), 10);
}

// Root may write anywhere, so the child gives its rights up first.
TEST_F(CheckpointTest, ReadOnlyFolder) {
  CheckpointStore store(run_);
  save(store, 10);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    fs::permissions(run_ / "checkpoints", fs::perms(0555));
    if (::geteuid() == 0 && ::seteuid(65534) != 0) ::_exit(97);
    try {
      save(store, 20);
    } catch (const CheckpointError& error) {
      ::_exit(std::string(error.what()).find("ermission") != std::string::npos ? 4 : 98);
    } catch (...) {
      ::_exit(99);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  fs::permissions(run_ / "checkpoints", fs::perms(0755));
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 4);
  EXPECT_EQ(store.newest_valid(), 10);
}

// A child saves and prunes without pause and is killed at random moments; there is always a valid
// checkpoint, never older than the last one known to be complete, and the next process goes on from
// it.
TEST_F(CheckpointTest, KillAtAnyMomentLeavesAValidOne) {
  CheckpointStore store(run_);
  const auto before = std::chrono::steady_clock::now();
  save(store, 1, 50000);
  const double save_us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - before).count();
  const int64_t first = 1;
  int64_t newest = first;
  uint64_t random = 12345;
  // Until kills have hit many moments and the children together have got somewhere, however slow
  // the disk.
  for (int round = 0; round < 30 || (newest < first + 5 && round < 300); ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        store.remove_partials();
        for (int64_t step = newest + 1;; ++step) {
          save(store, step, 50000);
          store.prune(step, 1, std::nullopt);
        }
      } catch (...) {
        ::_exit(99);
      }
    }
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    const double share = static_cast<double>(random >> 33) / static_cast<double>(1ULL << 31);
    std::this_thread::sleep_for(
        std::chrono::microseconds(static_cast<int64_t>(3 * save_us * share)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed to save";
    std::vector<Rejected> rejected;
    const auto valid = store.newest_valid(&rejected);
    ASSERT_TRUE(valid.has_value());
    EXPECT_TRUE(rejected.empty()) << rejected[0].reason;
    EXPECT_GE(*valid, newest);
    newest = *valid;
  }
  EXPECT_GE(newest, first + 5);
  save(store, newest + 1);
  EXPECT_EQ(fs::canonical(run_ / "latest"), fs::canonical(store.folder_of(newest + 1)));
  store.remove_partials();
  for (const auto& entry : fs::directory_iterator(run_ / "checkpoints")) {
    EXPECT_EQ(entry.path().string().find("partial"), std::string::npos) << entry.path();
  }
}

TEST_F(CheckpointTest, ResolveTakesRunsAndCheckpoints) {
  CheckpointStore store(run_);
  const fs::path folder = save(store, 10);
  EXPECT_EQ(resolve_checkpoint(run_), folder);
  EXPECT_EQ(resolve_checkpoint(folder), folder);
  EXPECT_EQ(fs::canonical(resolve_checkpoint(run_ / "latest")), folder);
  EXPECT_THROW(resolve_checkpoint(run_ / "nothing"), CheckpointError);
  try {
    write(folder / "state" / "trainer.json", "x");
    resolve_checkpoint(run_);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("trainer.json"));
  }
}

}  // namespace
}  // namespace longship::train
