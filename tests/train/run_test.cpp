// What a run writes, how it is interrupted, and what it does with numbers that are not finite.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "fake_family.h"
#include "io/safetensors.h"
#include "io/tensor_io.h"
#include "io/tfevents.h"
#include "support/paths.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/run_folder.h"
#include "train/session.h"
#include "train/trainer.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using testing::fake_families;
using testing::fake_recipe;
using ::testing::HasSubstr;

class RunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::set_bad_steps({});
    run_ =
        longship::testing::scratch_dir(
            std::string("run_") + ::testing::UnitTest::GetInstance()->current_test_info()->name()) /
        "run";
  }
  void TearDown() override {
    testing::set_bad_steps({});
    log::init(log::Level::kInfo);
    fs::remove_all(run_.parent_path());
  }
  TrainOutcome run(std::vector<std::string> overrides = {}) {
    TrainOptions options;
    options.quiet = true;
    options.command = "longship train fake.yaml";
    return train(fake_recipe(run_.string(), overrides), dataset_, options, fake_families());
  }
  std::string non_finite_error(std::vector<std::string> overrides) {
    try {
      run(std::move(overrides));
    } catch (const NonFiniteError& error) {
      EXPECT_EQ(error.code(), ExitCode::kNonFinite);
      return error.what();
    }
    return "";
  }
  std::vector<nlohmann::json> records() {
    std::vector<nlohmann::json> out;
    std::ifstream in(run_ / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }
  std::shared_ptr<const data::Dataset> dataset_ = testing::make_fake_dataset();
  fs::path run_;
};

TEST_F(RunTest, WritesTheWholeRunFolder) {
  const TrainOutcome outcome = run({"log.tensorboard=true"});
  EXPECT_TRUE(outcome.finished);
  for (const char* name : {"config.yaml", "train.log", "metrics.jsonl", "loss.svg",
                           "latest/model.safetensors", "latest/config.json", "latest/config.yaml",
                           "latest/stats.json", "latest/state/optimizer.r0000-of-0001.safetensors",
                           "latest/state/trainer.json", "latest/state/manifest.json"}) {
    EXPECT_TRUE(fs::exists(run_ / name)) << name;
  }
  EXPECT_EQ(CheckpointStore(run_).steps(), (std::vector<int64_t>{15, 20}));  // keep_last 2
  bool found = false;
  for (const auto& entry : fs::directory_iterator(run_ / "tensorboard")) {
    for (const auto& scalar : io::read_scalars(entry.path()))
      found = found || (scalar.tag == "train/loss" && scalar.step == 20);
  }
  EXPECT_TRUE(found);
}

TEST_F(RunTest, TheLossFalls) {
  const TrainOutcome outcome =
      run({"train.steps=300", "optim.lr=0.05", "optim.schedule={name: constant}",
           "checkpoint.every=null", "log.every=100"});
  const auto mean = [&](size_t from, size_t to) {
    double sum = 0;
    for (size_t i = from; i < to; ++i) sum += outcome.losses[i];
    return sum / static_cast<double>(to - from);
  };
  EXPECT_LT(mean(250, 300), 0.8 * mean(0, 50));
}

TEST_F(RunTest, MetricsHaveTheirKeysAndValues) {
  run({"log.every=5"});
  const auto all = records();
  ASSERT_EQ(all.size(), 5U);  // 1, 5, 10, 15, 20
  EXPECT_EQ(all[0]["step"], 1);
  EXPECT_EQ(all[4]["step"], 20);
  for (const auto& r : all) {
    for (const char* key : {"step",
                            "loss",
                            "grad_norm",
                            "lr",
                            "samples_per_s",
                            "data_wait_ms",
                            "step_time_ms",
                            "epoch",
                            "skipped_steps",
                            "num_samples",
                            "loss_half",
                            "data_queue",
                            "data_queue_capacity",
                            "data_starved",
                            "data_blocked",
                            "data_use_fetch",
                            "data_use_decode",
                            "data_use_transform",
                            "data_use_collate",
                            "data_use_pin"}) {
      EXPECT_TRUE(r.contains(key)) << key;
    }
    EXPECT_LE(r["data_queue"].get<double>(), r["data_queue_capacity"].get<double>());
    EXPECT_GT(r["data_use_fetch"].get<double>() + r["data_use_transform"].get<double>(), 0);
    EXPECT_NEAR(r["loss_half"].get<double>(), 0.5 * r["loss"].get<double>(), 1e-6);
  }
  EXPECT_EQ(all[0]["lr"], 0.0);  // warm-up from zero
  EXPECT_EQ(all[4]["num_samples"], 160);
  EXPECT_NEAR(all[4]["epoch"].get<double>(), 160.0 / 47.0, 1e-9);  // 47 training samples
}

TEST_F(RunTest, RecordsAreMeansOfTheirWindow) {
  const TrainOutcome outcome = run({"log.every=5"});
  double sum = 0;
  for (size_t i = 1; i < 5; ++i) sum += outcome.losses[i];
  EXPECT_DOUBLE_EQ(records()[1]["loss"].get<double>(), sum / 4);
}

TEST_F(RunTest, ExportedWeightsAreTheAverageAndTheStateHasTheRawOnes) {
  run({"optim.ema=0.5"});
  const auto exported = io::load_tensors(run_ / "latest/model.safetensors");
  const auto state = io::load_tensors(run_ / "latest/state/optimizer.r0000-of-0001.safetensors");
  EXPECT_TRUE(exported.at("net.weight").equal(state.at("ema.net.weight")));
  EXPECT_FALSE(exported.at("net.weight").equal(state.at("weights.net.weight")));
  EXPECT_EQ(state.count("exp_avg.net.dead"), 0U);
}

TEST_F(RunTest, Bf16ExportsBf16AndKeepsFp32Masters) {
  run({"train.dtype=bf16"});
  const auto exported = io::load_tensors(run_ / "latest/model.safetensors");
  const auto state = io::load_tensors(run_ / "latest/state/optimizer.r0000-of-0001.safetensors");
  EXPECT_EQ(exported.at("net.weight").scalar_type(), at::kBFloat16);
  EXPECT_EQ(state.at("weights.net.weight").scalar_type(), at::kFloat);
  EXPECT_TRUE(exported.at("net.weight").equal(state.at("weights.net.weight").to(at::kBFloat16)));
}

TEST_F(RunTest, FrozenParametersStayAsTheyWere) {
  run({"model.freeze_bias=true"});
  const auto exported = io::load_tensors(run_ / "latest/model.safetensors");
  EXPECT_EQ(exported.at("net.bias").abs().max().item<float>(), 0.0F);
}

TEST_F(RunTest, StartsFromWeights) {
  run({"train.stop_after=5"});
  const fs::path weights = run_.parent_path() / "start.safetensors";
  fs::copy_file(run_ / "latest/model.safetensors", weights);
  fs::remove_all(run_);
  run({"model.checkpoint=" + weights.string(), "optim.schedule={name: constant}", "optim.lr=0",
       "optim.weight_decay=0"});
  EXPECT_TRUE(io::load_tensors(weights)
                  .at("net.weight")
                  .equal(io::load_tensors(run_ / "latest/model.safetensors").at("net.weight")));
}

TEST_F(RunTest, StatisticsReadBackExactly) {
  run({"train.stop_after=5"});
  const auto stats = stats_from_json(run_ / "latest/stats.json");
  EXPECT_EQ(stats.at("action").q99, (std::vector<double>{2, 2}));
  EXPECT_EQ(stats.at("observation.state").count, 55);
}

TEST_F(RunTest, NonFiniteLossStopsAndNamesStepAndSamples) {
  testing::set_bad_steps({6});
  const std::string message = non_finite_error({});
  EXPECT_THAT(message, HasSubstr("step 7: the loss is nan (micro-batch 1 of 2, samples "));
  EXPECT_THAT(message, HasSubstr("step_6"));
  EXPECT_THAT(message, HasSubstr("train.on_nonfinite=skip"));
  EXPECT_EQ(CheckpointStore(run_).newest_valid(), 6);
  EXPECT_EQ(trainer_state_from(run_ / "checkpoints/step_6").num_updates, 6);
}

TEST_F(RunTest, InfiniteGradientWithFiniteLossIsFound) {
  testing::set_bad_steps({-6});
  const std::string message = non_finite_error({});
  EXPECT_THAT(message, HasSubstr("step 7: the gradients are not finite"));
  EXPECT_THAT(message, HasSubstr("samples "));
}

// A skipped step must be as if the optimizer had never seen it: weights, moments, average and
// schedule.
TEST_F(RunTest, SkippedStepLeavesEverythingAsItWas) {
  testing::set_bad_steps({6, 7});
  run({"train.on_nonfinite=skip", "optim.ema=0.9", "train.stop_after=8", "checkpoint.every=2",
       "checkpoint.keep_last=10"});
  const auto before =
      io::load_tensors(run_ / "checkpoints/step_6/state/optimizer.r0000-of-0001.safetensors");
  const auto after =
      io::load_tensors(run_ / "checkpoints/step_8/state/optimizer.r0000-of-0001.safetensors");
  for (const auto& [name, tensor] : before) EXPECT_TRUE(tensor.equal(after.at(name))) << name;
  const TrainerState state = trainer_state_from(run_ / "checkpoints/step_8");
  EXPECT_EQ(state.num_updates, 6);
  EXPECT_EQ(state.skipped_steps, 2);
  EXPECT_EQ(state.num_samples, 64);
  const auto all = records();
  EXPECT_TRUE(all[6]["loss"].is_null());
  EXPECT_EQ(all[7]["skipped_steps"], 2);
  EXPECT_THAT(read_file(run_ / "train.log", 1 << 20),
              HasSubstr("the step is skipped (2 of at most 10)"));
}

TEST_F(RunTest, TooManySkippedStepsStop) {
  testing::set_bad_steps({3, 5, 8});
  const std::string message =
      non_finite_error({"train.on_nonfinite=skip", "train.max_skipped_steps=2"});
  EXPECT_THAT(message, HasSubstr("step 9"));
  EXPECT_THAT(message, HasSubstr("2 steps were skipped already and train.max_skipped_steps is 2"));
}

TEST_F(RunTest, UnwritableOutputFolderIsAConfigError) {
  fs::create_directories(run_.parent_path());
  std::ofstream(run_) << "a file";
  EXPECT_THROW(run(), ConfigError);
}

// A training in its own process, as a fresh start of the program: this binary again, running
// ChildProcess.Train.
pid_t start_child(const fs::path& folder, const std::string& every, int64_t delay_ms) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setenv("LS_CHILD_RUN", folder.c_str(), 1);
  ::setenv("LS_CHILD_EVERY", every.c_str(), 1);
  ::setenv("LS_CHILD_DELAY_MS", std::to_string(delay_ms).c_str(), 1);
  ::execl("/proc/self/exe", "child", "--gtest_filter=ChildProcess.DISABLED_Train",
          "--gtest_also_run_disabled_tests", nullptr);
  ::_exit(98);
}

std::vector<std::string> child_overrides(const std::string& every) {
  return {"checkpoint.every=" + every, "train.steps=25", "data.workers=1"};
}

TEST(ChildProcess, DISABLED_Train) {
  if (std::getenv("LS_CHILD_RUN") == nullptr) GTEST_SKIP() << "started by other tests";
  testing::set_step_delay_ms(std::stoll(std::getenv("LS_CHILD_DELAY_MS")));
  TrainOptions options;
  options.quiet = true;
  options.command = "longship train fake.yaml";
  const Recipe recipe =
      fake_recipe(std::getenv("LS_CHILD_RUN"), child_overrides(std::getenv("LS_CHILD_EVERY")));
  const TrainOutcome outcome =
      train(recipe, testing::make_fake_dataset(), options, fake_families());
  ::_exit(outcome.interrupted ? 130 : 0);
}

int64_t num_lines(const fs::path& file) {
  std::ifstream in(file);
  int64_t n = 0;
  for (std::string line; std::getline(in, line);) ++n;
  return n;
}

// Until the child has written `lines` records; false when it ended before.
bool wait_for_records(const fs::path& file, int64_t lines, pid_t child) {
  for (int i = 0; i < 6000; ++i) {
    if (num_lines(file) >= lines) return true;
    if (::waitpid(child, nullptr, WNOHANG) != 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// SIGTERM in the middle: the step ends, a checkpoint is written, and the run goes on from there to
// the same end.
TEST_F(RunTest, SignalSavesAndTheRunResumes) {
  const pid_t child = start_child(run_, "null", 20);
  ASSERT_TRUE(wait_for_records(run_ / "metrics.jsonl", 3, child));
  ::kill(child, SIGTERM);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  const auto saved = CheckpointStore(run_).newest_valid();
  ASSERT_TRUE(saved.has_value());
  EXPECT_LT(*saved, 25);
  EXPECT_THAT(read_file(run_ / "train.log", 1 << 20),
              HasSubstr("resume with: longship train fake.yaml"));
  const TrainOutcome rest = run(child_overrides("null"));
  EXPECT_EQ(static_cast<int64_t>(rest.losses.size()), 25 - *saved);
  const auto interrupted = io::load_tensors(run_ / "latest/model.safetensors");
  run_ = run_.parent_path() / "whole";
  run(child_overrides("null"));
  const auto whole = io::load_tensors(run_ / "latest/model.safetensors");
  EXPECT_TRUE(interrupted.at("net.weight").equal(whole.at("net.weight")));
}

// kill -9 while checkpoints are written at every step: the same command goes on and ends the same.
TEST_F(RunTest, KillNineAndTheSameCommandEndTheSame) {
  for (int round = 0; round < 3; ++round) {
    const pid_t child = start_child(run_, "1", 1);
    const int64_t target = num_lines(run_ / "metrics.jsonl") + 2;
    if (!wait_for_records(run_ / "metrics.jsonl", target, child)) break;  // reached the end
    std::this_thread::sleep_for(std::chrono::milliseconds(3 + 4 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  run(child_overrides("1"));
  const auto killed = io::load_tensors(run_ / "latest/model.safetensors");
  run_ = run_.parent_path() / "whole";
  run(child_overrides("1"));
  const auto whole = io::load_tensors(run_ / "latest/model.safetensors");
  EXPECT_TRUE(killed.at("net.weight").equal(whole.at("net.weight")));
}

TEST(Metrics, ConsoleLineReads) {
  MetricsRecord r;
  r.step = 10;
  r.loss = 0.81234;
  r.grad_norm = 3.1;
  r.lr = 2e-4;
  r.samples_per_s = 52.13;
  r.data_wait_ms = 0.31;
  EXPECT_EQ(to_console_line(r, 300, 80),
            "step 10/300  loss 0.8123  grad_norm 3.1  lr 2.00e-04  52.1 samples/s  data wait 0.3 "
            "ms  ETA 1 min 20 s");
  r.pipeline = PipelineRecord{3.21, 4, 0.1, 0.5, {{"fetch", 0.01}, {"decode", 0.3}}};
  EXPECT_EQ(to_console_line(r, 10, 0),
            "step 10/10  loss 0.8123  grad_norm 3.1  lr 2.00e-04  52.1 samples/s  data wait 0.3 "
            "ms  queue 3.2/4  workers 31 %");
  r.pipeline.reset();
  r.skipped_steps = 2;
  EXPECT_THAT(to_console_line(r, 300, 80), HasSubstr("skipped 2"));
}

TEST(Metrics, CutLastLineIsDroppedOnResume) {
  const fs::path folder = longship::testing::scratch_dir("metrics_cut");
  std::ofstream(folder / "metrics.jsonl")
      << "{\"step\":1,\"loss\":2.0}\n{\"step\":2,\"loss\":1.5}\n{\"step\":3,\"lo";
  const MetricsLog log(folder, 10, false);
  EXPECT_EQ(log.history().size(), 2U);
  EXPECT_EQ(read_file(folder / "metrics.jsonl", 1 << 20),
            "{\"step\":1,\"loss\":2.0}\n{\"step\":2,\"loss\":1.5}\n");
}

}  // namespace
}  // namespace longship::train
