// A resumed run is the uninterrupted one, bit for bit; changed recipes and foreign folders are
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "fake_family.h"
#include "io/tensor_io.h"
#include "support/paths.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using testing::fake_families;
using testing::fake_recipe;
using ::testing::HasSubstr;

class ResumeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::set_bad_steps({});
    root_ = longship::testing::scratch_dir(
        std::string("resume_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override {
    log::init(log::Level::kInfo);
    fs::remove_all(root_);
  }
  TrainOutcome run(const std::string& name, std::vector<std::string> overrides = {},
                   bool overwrite = false) {
    TrainOptions options;
    options.quiet = true;
    options.overwrite = overwrite;
    return train(fake_recipe((root_ / name).string(), overrides), dataset_, options,
                 fake_families());
  }
  std::string error_of(const std::string& name, std::vector<std::string> overrides) {
    try {
      run(name, std::move(overrides));
    } catch (const Error& error) {
      code_ = error.code();
      return error.what();
    }
    code_ = ExitCode::kOk;
    return "";
  }
  void expect_same_state(const std::string& a, const std::string& b, int64_t step) {
    for (const char* file : {"model.safetensors", "state/optimizer.r0000-of-0001.safetensors"}) {
      const auto of = [&](const std::string& name) {
        return io::load_tensors(root_ / name / "checkpoints" / ("step_" + std::to_string(step)) /
                                file);
      };
      const auto left = of(a), right = of(b);
      ASSERT_EQ(left.size(), right.size());
      for (const auto& [name, tensor] : left)
        EXPECT_TRUE(tensor.equal(right.at(name))) << file << " " << name;
    }
  }
  // Everything of metrics.jsonl but times.
  std::vector<std::string> records(const std::string& name) {
    std::vector<std::string> out;
    std::ifstream in(root_ / name / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      const auto cut = line.find("\"samples_per_s\"");
      const auto on = line.find("\"epoch\"");
      const auto feed = line.find(",\"data_queue_capacity\"");  // how busy the workers were
      out.push_back(line.substr(0, cut) + line.substr(on, feed - on));
    }
    return out;
  }
  std::shared_ptr<const data::Dataset> dataset_ = testing::make_fake_dataset();
  fs::path root_;
  ExitCode code_ = ExitCode::kOk;
};

void expect_concatenation(const std::vector<double>& whole, const std::vector<double>& first,
                          const std::vector<double>& second) {
  std::vector<double> joined = first;
  joined.insert(joined.end(), second.begin(), second.end());
  EXPECT_EQ(whole, joined);
}

TEST_F(ResumeTest, TenAndTenAreTwentyBitwise) {
  const TrainOutcome whole = run("whole", {"optim.ema=0.9"});
  const TrainOutcome first = run("parts", {"optim.ema=0.9", "train.stop_after=10"});
  EXPECT_EQ(first.step, 10);
  EXPECT_FALSE(first.finished);
  const TrainOutcome second = run("parts", {"optim.ema=0.9"});
  EXPECT_TRUE(second.finished);
  expect_concatenation(whole.losses, first.losses, second.losses);
  expect_same_state("whole", "parts", 20);
  EXPECT_EQ(records("whole"), records("parts"));
}

TEST_F(ResumeTest, WindowMeansSurviveAResumeInsideTheWindow) {
  run("whole", {"log.every=6"});
  run("parts", {"log.every=6", "train.stop_after=10"});
  run("parts", {"log.every=6"});
  EXPECT_EQ(records("whole"), records("parts"));
}

TEST_F(ResumeTest, Bf16WithMastersIsBitwiseToo) {
  const TrainOutcome whole = run("whole", {"train.dtype=bf16"});
  const TrainOutcome first = run("parts", {"train.dtype=bf16", "train.stop_after=10"});
  const TrainOutcome second = run("parts", {"train.dtype=bf16"});
  expect_concatenation(whole.losses, first.losses, second.losses);
  expect_same_state("whole", "parts", 20);
}

TEST_F(ResumeTest, WorkersAndPrefetchDoNotMatter) {
  const TrainOutcome two = run("two");
  const TrainOutcome none = run(
      "none", {"data={datasets: [{path: fake_dataset}], val_episodes: 1, horizon: 4, workers: 0}"});
  const TrainOutcome four = run("four", {"data.workers=4", "data.prefetch=7"});
  EXPECT_EQ(two.losses, none.losses);
  EXPECT_EQ(two.losses, four.losses);
}

TEST_F(ResumeTest, AccumulationGivesTheLossOfTheWholeBatch) {
  const TrainOutcome two = run("two");
  const TrainOutcome one = run("one", {"train.micro_batch=8"});
  ASSERT_EQ(one.losses.size(), two.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(one.losses[i], two.losses[i], 1e-5);
}

TEST_F(ResumeTest, SkippedStepsSurviveAResume) {
  const std::vector<std::string> skip = {"train.on_nonfinite=skip", "train.max_skipped_steps=5"};
  testing::set_bad_steps({4, 12});
  run("whole", skip);
  std::vector<std::string> half = skip;
  half.push_back("train.stop_after=10");
  run("parts", half);
  run("parts", skip);
  expect_same_state("whole", "parts", 20);
  EXPECT_EQ(records("whole"), records("parts"));
}

TEST_F(ResumeTest, AKillDuringTheFirstSaveStartsOver) {
  run("whole");
  run("parts", {"train.stop_after=5"});
  // As the kill leaves it: a folder that was being filled, and no other.
  const fs::path checkpoints = root_ / "parts/checkpoints";
  fs::rename(checkpoints / "step_5", checkpoints / "step_5.partial-999999999");
  fs::remove(root_ / "parts/latest");
  EXPECT_EQ(run("parts").losses.size(), 20U);
  expect_same_state("whole", "parts", 20);
  EXPECT_FALSE(fs::exists(checkpoints / "step_5.partial-999999999"));
  // Anything else there is not ours to remove.
  fs::create_directories(root_ / "other/checkpoints/mine");
  fs::copy_file(root_ / "parts/config.yaml", root_ / "other/config.yaml");
  EXPECT_THAT(error_of("other", {}), HasSubstr("is not empty"));
}

TEST_F(ResumeTest, DamagedNewestFallsBackAndStillEndsTheSame) {
  run("whole");
  run("parts", {"train.stop_after=10"});
  fs::resize_file(root_ / "parts/checkpoints/step_10/model.safetensors", 10);
  const TrainOutcome second = run("parts");
  EXPECT_EQ(second.losses.size(), 15U);  // from step 5
  expect_same_state("whole", "parts", 20);
  EXPECT_EQ(records("whole"), records("parts"));
  EXPECT_THAT(read_file(root_ / "parts/train.log", 1 << 20), HasSubstr("is not used"));
}

// What was learned before a sample that cannot be read is kept, and the run goes on once the data
// are mended.
TEST_F(ResumeTest, UnreadableSampleKeepsTheStateBeforeItsStep) {
  run("whole");
  testing::set_unreadable_sample(40);
  EXPECT_THAT(error_of("parts", {"checkpoint.every=null"}), HasSubstr("sample 40 cannot be read"));
  testing::set_unreadable_sample(-1);
  EXPECT_EQ(code_, ExitCode::kData);
  const size_t done = records("parts").size();
  EXPECT_EQ(CheckpointStore(root_ / "parts").newest_valid(), static_cast<int64_t>(done));
  const TrainOutcome rest = run("parts", {"checkpoint.every=null"});
  EXPECT_EQ(rest.losses.size(), 20 - done);
  expect_same_state("whole", "parts", 20);
}

TEST_F(ResumeTest, AllDamagedIsACheckpointError) {
  run("x", {"train.stop_after=5"});
  fs::resize_file(root_ / "x/checkpoints/step_5/model.safetensors", 10);
  EXPECT_THAT(error_of("x", {}), HasSubstr("none of its checkpoints can be used"));
  EXPECT_EQ(code_, ExitCode::kCheckpoint);
}

TEST_F(ResumeTest, ChangesThatBreakExactnessAreRefused) {
  run("x", {"train.stop_after=5"});
  const std::string message = error_of("x", {"train.seed=8", "optim.lr=0.02", "log.every=3"});
  EXPECT_EQ(code_, ExitCode::kConfig);
  EXPECT_THAT(message, HasSubstr("train.seed: 7 -> 8"));
  EXPECT_THAT(message, HasSubstr("optim.lr: 0.01 -> 0.02"));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("log.every")));
}

TEST_F(ResumeTest, AnotherDatasetIsRefused) {
  run("x", {"train.stop_after=5"});
  dataset_ = testing::make_fake_dataset({12, 9, 15, 11, 9});
  EXPECT_THAT(error_of("x", {}), HasSubstr("the content of the dataset"));
  EXPECT_EQ(code_, ExitCode::kConfig);
}

TEST_F(ResumeTest, AForkMayChangeTheRecipe) {
  run("x", {"train.stop_after=5"});
  const std::string from = (root_ / "x/checkpoints/step_5").string();
  const TrainOutcome fork = run("fork", {"checkpoint.resume=" + from, "optim.lr=0.02"});
  EXPECT_EQ(fork.losses.size(), 15U);
  EXPECT_TRUE(fs::exists(root_ / "fork/checkpoints/step_20"));
  EXPECT_FALSE(fs::exists(root_ / "x/checkpoints/step_20"));
}

TEST_F(ResumeTest, FinishedRunHasNothingToDo) {
  run("x");
  const TrainOutcome again = run("x");
  EXPECT_TRUE(again.losses.empty());
  EXPECT_TRUE(again.finished);
}

TEST_F(ResumeTest, ForeignFolderIsRefusedAndLeftAlone) {
  fs::create_directories(root_ / "x");
  std::ofstream(root_ / "x/thesis.txt") << "precious";
  EXPECT_THAT(error_of("x", {}), HasSubstr("is not empty and holds no checkpoint"));
  EXPECT_EQ(code_, ExitCode::kConfig);
  EXPECT_THAT(error_of("x", {"checkpoint.resume=never"}), HasSubstr("pass --overwrite"));
  EXPECT_TRUE(fs::exists(root_ / "x/thesis.txt"));
}

TEST_F(ResumeTest, OverwriteStartsOverAndKeepsForeignFiles) {
  const TrainOutcome first = run("x");
  std::ofstream(root_ / "x/thesis.txt") << "precious";
  const TrainOutcome again = run("x", {}, true);
  EXPECT_EQ(first.losses, again.losses);
  EXPECT_TRUE(fs::exists(root_ / "x/thesis.txt"));
  EXPECT_EQ(records("x").size(), 20U);
}

TEST_F(ResumeTest, RunThatDiedBeforeItsFirstCheckpointStartsOver) {
  run("x");
  fs::remove_all(root_ / "x/checkpoints");
  fs::remove(root_ / "x/latest");
  const TrainOutcome again = run("x");
  EXPECT_EQ(again.losses.size(), 20U);
  EXPECT_EQ(records("x").size(), 20U);
}

TEST_F(ResumeTest, LongerTrainingContinuesAFinishedRun) {
  run("x");
  const TrainOutcome more = run("x", {"train.steps=25"});
  EXPECT_EQ(more.losses.size(), 5U);
  const TrainOutcome whole = run("whole", {"train.steps=25"});
  EXPECT_EQ(std::vector<double>(whole.losses.end() - 5, whole.losses.end()), more.losses);
}

}  // namespace
}  // namespace longship::train
