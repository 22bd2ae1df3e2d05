// Whole runs of the program: training, interruption, resume, evaluation, parity.
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "io/safetensors.h"
#include "support/paths.h"
#include "support/process.h"

namespace longship::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::vector<std::string> train_arguments(const fs::path& run,
                                         std::vector<std::string> overrides = {}) {
  std::vector<std::string> arguments = {"train", "tests/apps/two_cameras.yaml",
                                        "output_dir=" + run.string()};
  arguments.insert(arguments.end(), overrides.begin(), overrides.end());
  return arguments;
}

/// step -> loss, as written; the last line of a step counts.
std::map<int64_t, std::string> losses(const fs::path& run) {
  std::map<int64_t, std::string> out;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto entry = nlohmann::json::parse(line);
    if (entry.contains("loss"))
      out[entry["step"].get<int64_t>()] = entry["loss"].dump() + " " + entry["grad_norm"].dump();
  }
  return out;
}

bool same_tensors(const fs::path& a, const fs::path& b) {
  const auto left = io::SafetensorsFile::open(a);
  const auto right = io::SafetensorsFile::open(b);
  if (left.tensors().size() != right.tensors().size()) return false;
  for (const auto& info : left.tensors()) {
    const auto* other = right.find(info.name);
    if (other == nullptr || other->num_bytes() != info.num_bytes()) return false;
    if (std::memcmp(left.data(info), right.data(*other), info.num_bytes()) != 0) return false;
  }
  return true;
}

TEST(CliTrain, LeavesACompleteRunFolder) {
  const fs::path run_folder = scratch_dir("complete") / "run";
  const ProcessResult result = run(longship(train_arguments(run_folder)));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  for (const char* name : {"config.yaml", "train.log", "metrics.jsonl", "loss.svg", "latest"}) {
    EXPECT_TRUE(fs::exists(run_folder / name)) << name;
  }
  EXPECT_FALSE(fs::is_empty(run_folder / "tensorboard"));
  EXPECT_TRUE(fs::exists(run_folder / "checkpoints/step_20/model.safetensors"));
  EXPECT_TRUE(fs::exists(run_folder / "checkpoints/step_20/config.json"));
  EXPECT_TRUE(fs::exists(run_folder / "checkpoints/step_15"));
  EXPECT_FALSE(fs::exists(run_folder / "checkpoints/step_10")) << "keep_last is 2";
  EXPECT_EQ(losses(run_folder).size(), 20u);
  EXPECT_EQ(run(longship({"inspect", run_folder.string()})).exit_code, 0);
}

TEST(CliTrain, TenPlusTenStepsEqualTwentyBitForBit) {
  const fs::path folder = scratch_dir("ten_plus_ten");
  ASSERT_EQ(run(longship(train_arguments(folder / "whole"))).exit_code, 0);
  const ProcessResult first =
      run(longship(train_arguments(folder / "parts", {"train.stop_after=10"})));
  ASSERT_EQ(first.exit_code, 0) << first.output;
  const ProcessResult second = run(longship(train_arguments(folder / "parts", {"data.workers=3"})));
  ASSERT_EQ(second.exit_code, 0) << second.output;
  EXPECT_EQ(losses(folder / "whole"), losses(folder / "parts"));
  EXPECT_EQ(losses(folder / "parts").size(), 20u);
  EXPECT_TRUE(same_tensors(folder / "whole/checkpoints/step_20/model.safetensors",
                           folder / "parts/checkpoints/step_20/model.safetensors"));
}

TEST(CliTrain, OrderDoesNotDependOnWorkers) {
  const fs::path folder = scratch_dir("workers");
  ASSERT_EQ(run(longship(train_arguments(folder / "none", {"data.workers=0", "train.steps=8"})))
                .exit_code,
            0);
  ASSERT_EQ(run(longship(train_arguments(folder / "three", {"data.workers=3", "train.steps=8"})))
                .exit_code,
            0);
  EXPECT_EQ(losses(folder / "none"), losses(folder / "three"));
}

TEST(CliTrain, TerminationSavesAndSaysHowToResume) {
  const fs::path run_folder = scratch_dir("sigterm") / "run";
  const std::vector<std::string> endless = {"train.steps=100000", "checkpoint.every=100000",
                                            "optim.schedule.decay_steps=100000"};
  Process child(longship(train_arguments(run_folder, endless)));
  for (int i = 0; i < 500 && losses(run_folder).size() < 3; ++i) ::usleep(50000);
  child.send(SIGTERM);
  const ProcessResult result = child.wait();
  EXPECT_EQ(result.exit_code, 130) << result.output;
  EXPECT_THAT(result.output, HasSubstr("resume"));
  ASSERT_TRUE(fs::exists(run_folder / "latest/model.safetensors"));
  const int64_t saved = losses(run_folder).rbegin()->first;
  std::vector<std::string> more = endless;
  more.push_back("train.stop_after=" + std::to_string(saved + 2));
  const ProcessResult resumed = run(longship(train_arguments(run_folder, more)));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(losses(run_folder).rbegin()->first, saved + 2);
}

TEST(CliTrain, KillAtAnyMomentLeavesAGoodCheckpoint) {
  const fs::path folder = scratch_dir("kill");
  ASSERT_EQ(run(longship(train_arguments(folder / "whole", {"checkpoint.every=1"}))).exit_code, 0);
  const fs::path run_folder = folder / "killed";
  int kills = 0;
  for (int attempt = 0; attempt < 6; ++attempt) {
    Process child(longship(train_arguments(run_folder, {"checkpoint.every=1"})));
    const size_t before = losses(run_folder).size();
    for (int i = 0; i < 400 && losses(run_folder).size() < std::min<size_t>(before + 2, 20); ++i)
      ::usleep(10000);
    ::usleep(static_cast<useconds_t>(3000 * attempt));
    child.send(SIGKILL);
    if (child.wait().signal == SIGKILL) ++kills;
  }
  EXPECT_GE(kills, 3);
  const ProcessResult last = run(longship(train_arguments(run_folder, {"checkpoint.every=1"})));
  ASSERT_EQ(last.exit_code, 0) << last.output;
  EXPECT_TRUE(same_tensors(folder / "whole/checkpoints/step_20/model.safetensors",
                           run_folder / "checkpoints/step_20/model.safetensors"));
}

TEST(CliTrain, CorruptNewestCheckpointFallsBackToTheOneBefore) {
  const fs::path run_folder = scratch_dir("fallback") / "run";
  ASSERT_EQ(run(longship(train_arguments(run_folder, {"train.stop_after=10"}))).exit_code, 0);
  const fs::path weights = run_folder / "checkpoints/step_10/model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) / 2);
  const ProcessResult result = run(longship(train_arguments(run_folder)));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("step_10"));
  EXPECT_THAT(result.output, HasSubstr("step_5"));
}

TEST(CliEval, CorruptCheckpoint) {
  const fs::path run_folder = scratch_dir("eval_corrupt") / "run";
  ASSERT_EQ(run(longship(train_arguments(run_folder, {"train.steps=2"}))).exit_code, 0);
  const fs::path checkpoint = run_folder / "checkpoints/step_2";
  fs::resize_file(checkpoint / "model.safetensors", 1000);
  const ProcessResult result =
      run(longship({"eval", "open-loop", "--checkpoint", checkpoint.string()}));
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.output, HasSubstr("model.safetensors"));
}

TEST(CliEval, ReportsBothBaselinesAndDrawsAPicture) {
  const fs::path folder = scratch_dir("eval");
  ASSERT_EQ(run(longship(train_arguments(folder / "run", {"train.steps=2"}))).exit_code, 0);
  const ProcessResult result =
      run(longship({"eval", "open-loop", "--checkpoint", (folder / "run").string(), "--episodes",
                    "last:1", "--draws", "2", "--out", (folder / "out").string()}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  std::ifstream file(folder / "out/open_loop.json");
  const auto report = nlohmann::json::parse(file);
  EXPECT_FALSE(report.empty());
  std::ifstream picture(folder / "out/open_loop.svg");
  std::string start(200, '\0');
  picture.read(start.data(), 200);
  EXPECT_THAT(start, HasSubstr("<svg"));
}

TEST(CliTrain, UnwritableOutputFolder) {
  const ProcessResult result = run(longship(train_arguments("/proc/longship_run")));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("/proc/longship_run"));
}

TEST(CliParity, PassesOnTheReferenceCasesAndFailsOnAChangedOne) {
  const fs::path folder = scratch_dir("parity");
  const ProcessResult good = run(longship({"parity", golden_path("pi05/tiny_two_cameras").string(),
                                           "--json", (folder / "r.json").string()}));
  EXPECT_EQ(good.exit_code, 0) << good.output;
  EXPECT_THAT(good.output, HasSubstr("PASS"));
  EXPECT_TRUE(fs::exists(folder / "r.json"));
  const fs::path changed = folder / "changed";
  fs::copy(golden_path("pi05/tiny_train"), changed, fs::copy_options::recursive);
  fs::copy_file(golden_path("pi05/tiny_two_cameras/expected.safetensors"),
                changed / "expected.safetensors", fs::copy_options::overwrite_existing);
  const ProcessResult bad = run(longship({"parity", changed.string()}));
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.output, HasSubstr("FAIL"));
}

}  // namespace
}  // namespace longship::testing
