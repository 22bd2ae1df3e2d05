// Saving while training goes on: the same bits as saving while it waits, and no failure but the
// last one's ends a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>

#include "base/log.h"
#include "checkpoint_support.h"
#include "fake_family.h"
#include "runtime/device.h"
#include "support/paths.h"
#include "train/checkpoint_saver.h"
#include "train/trainer.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using testing::bytes_of_file;
using testing::fake_families;
using testing::fake_recipe;
using ::testing::HasSubstr;
using testing::holds_known_state;
using testing::known_parts;
using ::testing::Not;

/// Holds every agreement until it is let go, so that a save is surely under way meanwhile.
class SlowGroup : public SingleProcess {
 public:
  Agreement agree(bool ok, const std::string& note) override {
    while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return SingleProcess::agree(ok, note);
  }
  std::atomic<bool> held = true;
};

class CheckpointSaverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = longship::testing::scratch_dir(
        std::string("checkpoint_saver_") +
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    log::init(log::Level::kOff, root_ / "log");
  }
  void TearDown() override {
    testing::set_step_delay_ms(0);
    log::init(log::Level::kInfo);
    fs::remove_all(root_);
  }
  std::string log_text() {
    log::flush();
    return bytes_of_file(root_ / "log");
  }
  fs::path root_;
};

// Every file of two checkpoints.
void expect_same_files(const fs::path& a, const fs::path& b) {
  int64_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(a)) {
    if (entry.is_directory()) continue;
    const fs::path name = entry.path().lexically_relative(a);
    EXPECT_TRUE(bytes_of_file(entry.path()) == bytes_of_file(b / name)) << name;
    ++files;
  }
  for (const auto& entry : fs::recursive_directory_iterator(b))
    files -= entry.is_directory() ? 0 : 1;
  EXPECT_EQ(files, 0);
}

TEST_F(CheckpointSaverTest, UpdatesWhileTheCopyIsWrittenChangeNothing) {
  CheckpointStore store(root_ / "run"), other(root_ / "other");
  SlowGroup group;
  CheckpointSaver saver(store, group, {});
  const SaveParts parts = known_parts(10, 0, 1, true);
  saver.begin(10, [&] { return parts; });
  EXPECT_FALSE(fs::exists(store.folder_of(10)));
  // What training does: every tensor of the state changes.
  for (const StateSlice& s : parts.state) s.tensor.fill_(123.0);
  group.held = false;
  saver.wait();
  EXPECT_EQ(saver.newest(), store.folder_of(10));
  EXPECT_TRUE(holds_known_state(store.folder_of(10), 10, true));
  SingleProcess alone;
  expect_same_files(save_parts(other, alone, known_parts(10, 0, 1, true)), store.folder_of(10));
}

TEST_F(CheckpointSaverTest, TheNextSaveWaitsAndTheMemoryIsOneCopy) {
  const SaveParts parts = known_parts(10, 0, 1);
  HostCopy copy;
  copy.take(parts);
  const uint64_t once = copy.bytes();
  copy.take(parts);
  EXPECT_EQ(copy.bytes(), once);
  EXPECT_GE(once, bytes_of(parts.state));
  EXPECT_LE(once, bytes_of(parts.state) + 64 * parts.state.size());

  CheckpointStore store(root_ / "run");
  SlowGroup group;
  CheckpointSaver saver(store, group, {true, 2, std::nullopt});
  saver.begin(1, [] { return known_parts(1, 0, 1); });
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    group.held = false;
  });
  saver.begin(2, [&] {
    // The copy of the first save is no longer in use.
    EXPECT_TRUE(holds_known_state(store.folder_of(1), 1));
    return known_parts(2, 0, 1);
  });
  release.join();
  saver.begin(3, [] { return known_parts(3, 0, 1); });
  saver.finish(4, [] { return known_parts(4, 0, 1); });
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{3, 4}));  // keep_last 2
  EXPECT_TRUE(holds_known_state(store.folder_of(3), 3));
  bool asked = false;
  saver.finish(4, [&] {
    asked = true;
    return known_parts(4, 0, 1);
  });
  EXPECT_FALSE(asked) << "it is saved already";
}

TEST_F(CheckpointSaverTest, AFailureBehindTrainingIsAWarningAndTheLastOneAnError) {
  CheckpointStore store(root_ / "run");
  SingleProcess group;
  CheckpointSaver saver(store, group, {});
  saver.begin(1, [] { return known_parts(1, 0, 1); });
  saver.wait();
  const auto broken = [](int64_t step) {
    SaveParts parts = known_parts(step, 0, 1);
    parts.model[0].source = "weights.unknown";
    return parts;
  };
  saver.begin(2, [&] { return broken(2); });
  saver.wait();
  EXPECT_EQ(saver.newest(), store.folder_of(1));
  EXPECT_THAT(log_text(), HasSubstr("warn"));
  EXPECT_THAT(log_text(), HasSubstr("could not save the checkpoint"));
  EXPECT_THAT(log_text(), HasSubstr("step_2"));
  EXPECT_THAT(log_text(), HasSubstr("weights.unknown"));
  EXPECT_THAT(log_text(), HasSubstr("the last good checkpoint is"));
  EXPECT_THAT(log_text(), HasSubstr("training goes on"));
  saver.begin(3, [] { return known_parts(3, 0, 1); });
  try {
    saver.finish(4, [&] { return broken(4); });
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("step_4"));
    EXPECT_THAT(error.what(), HasSubstr("step_3"));
    EXPECT_THAT(error.what(), HasSubstr("start the same command again"));
  }
  EXPECT_EQ(store.newest_valid(), 3);
  // The step that failed behind training is tried again when it is the last.
  saver.begin(5, [&] { return broken(5); });
  saver.finish(5, [] { return known_parts(5, 0, 1); });
  EXPECT_TRUE(holds_known_state(store.folder_of(5), 5));
}

TEST_F(CheckpointSaverTest, ARunWithAndWithoutAsyncLeavesTheSameFiles) {
  const auto run = [&](const std::string& name, const std::string& async) {
    TrainOptions options;
    options.quiet = true;
    return train(fake_recipe((root_ / name).string(),
                             {"checkpoint.async=" + async, "checkpoint.every=2",
                              "checkpoint.keep_last=20", "optim.ema=0.9", "train.dtype=bf16"}),
                 testing::make_fake_dataset(), options, fake_families());
  };
  const TrainOutcome a = run("async", "true"), b = run("sync", "false");
  EXPECT_EQ(a.losses, b.losses);
  const CheckpointStore left(root_ / "async"), right(root_ / "sync");
  ASSERT_EQ(left.steps(), right.steps());
  EXPECT_EQ(left.steps().size(), 10U);
  for (const int64_t step : left.steps()) {
    EXPECT_EQ(check_manifest(left.folder_of(step)), "");
    for (const char* file : {"model.safetensors", "state/optimizer.r0000-of-0001.safetensors",
                             "state/index.json", "state/trainer.json", "stats.json"}) {
      EXPECT_TRUE(bytes_of_file(left.folder_of(step) / file) ==
                  bytes_of_file(right.folder_of(step) / file))
          << step << " " << file;
    }
  }
}

// The limit on file sizes stands in for a full disk. Checkpoints fail until there is room; training
// goes on all the while and ends as it would have.
TEST_F(CheckpointSaverTest, AFullDiskDoesNotEndTraining) {
  const fs::path run_folder = root_ / "run";
  const auto child_run = [&](bool room_at_the_end) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    int code = 99;
    try {
      std::signal(SIGXFSZ, SIG_IGN);
      rlimit old{};
      ::getrlimit(RLIMIT_FSIZE, &old);
      const rlimit small{60000, old.rlim_max};  // logs and charts are smaller
      testing::set_step_delay_ms(5);
      std::thread disk([&] {
        // Full from the first checkpoint on.
        while (!fs::exists(run_folder / "checkpoints/step_5/model.safetensors")) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        ::setrlimit(RLIMIT_FSIZE, &small);
        if (!room_at_the_end) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        ::setrlimit(RLIMIT_FSIZE, &old);
      });
      TrainOptions options;
      options.quiet = true;
      const TrainOutcome outcome =
          train(fake_recipe(run_folder.string(),
                            {"checkpoint.every=5", "train.steps=40", "log.tensorboard=false",
                             "log.every=40", "checkpoint.keep_last=20",
                             "data={datasets: [{path: fake_dataset}], val_episodes: 1, horizon: "
                             "48}"}),
                testing::make_fake_dataset(), options, fake_families());
      disk.join();
      code = outcome.finished ? 0 : 98;
    } catch (const CheckpointError&) {
      code = 4;
    } catch (...) {
    }
    ::_exit(code);
  };
  const auto code_of = [](pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
  };
  EXPECT_EQ(code_of(child_run(true)), 0);
  const CheckpointStore store(run_folder);
  EXPECT_EQ(store.newest_valid(), 40);
  EXPECT_LT(store.steps().size(), 8U) << "no save failed";
  for (const int64_t step : store.steps()) EXPECT_EQ(check_manifest(store.folder_of(step)), "");
}

// On a device: the copy is pinned, complete when take() returns, and cut at no element.
TEST(CheckpointSaverGpu, TheCopyIsWhatTheDeviceHeld) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  SaveParts parts = known_parts(5, 0, 1, true);
  const std::vector<StateSlice> expected = parts.state;
  for (StateSlice& s : parts.state) s.tensor = s.tensor.to(at::Device("cuda"));
  HostCopy copy;
  const SaveParts taken = copy.take(parts);
  for (const StateSlice& s : parts.state) s.tensor.fill_(7.0);
  runtime::synchronize(at::Device("cuda:0"));
  ASSERT_EQ(taken.state.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(taken.state[i].tensor.device().is_cpu());
    EXPECT_TRUE(taken.state[i].tensor.numel() == 0 || taken.state[i].tensor.is_pinned());
    EXPECT_TRUE(taken.state[i].tensor.reshape({-1}).equal(expected[i].tensor.reshape({-1})));
  }
  const fs::path root = longship::testing::scratch_dir("checkpoint_saver_gpu");
  CheckpointStore host(root / "host"), copied(root / "copied"), direct(root / "direct");
  SingleProcess alone;
  const fs::path reference = save_parts(host, alone, known_parts(5, 0, 1, true));
  expect_same_files(reference, save_parts(copied, alone, taken));
  // A checkpoint goes back to a device, and from there to the same files.
  load_slices(io::ShardedState::open(copied.folder_of(5) / "state"), parts.state);
  expect_same_files(reference, save_parts(direct, alone, parts));
  load_slices(io::ShardedState::open(copied.folder_of(5) / "state"), parts.state);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(parts.state[i].tensor.to(at::kCPU).equal(expected[i].tensor));
  }
}

}  // namespace
}  // namespace longship::train
