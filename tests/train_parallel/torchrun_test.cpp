// The program under torchrun, as a user starts it.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../dist/ranks.h"
#include "base/fs.h"
#include "support/paths.h"
#include "support/process.h"
#include "train/checkpoint.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

longship::testing::ProcessResult torchrun(const fs::path& run_dir, int64_t ranks,
                                          const std::vector<std::string>& more) {
  const fs::path program = longship::testing::source_root() / ".venv/bin/torchrun";
  std::vector<std::string> argv = {program.string(),
                                   "--nproc-per-node",
                                   std::to_string(ranks),
                                   "--master-port",
                                   std::to_string(dist::free_port()),
                                   "--no-python"};
  std::vector<std::string> words = {
      "train",
      "configs/pi05/tiny_test.yaml",
      "output_dir=" + run_dir.string(),
      "data.datasets.0.path=" + longship::testing::dataset_path("pusht_v30").string(),
      "train.threads=1",
      "data.workers=1",
      "train.steps=6",
      "train.micro_batch=2",
      "checkpoint.every=3"};
  words.insert(words.end(), more.begin(), more.end());
  for (const std::string& word : longship::testing::longship(words)) argv.push_back(word);
  return longship::testing::run(argv);
}

bool have_torchrun() {
  return fs::exists(longship::testing::source_root() / ".venv/bin/torchrun");
}

TEST(ParallelTorchrun, TrainsResumesAndSaysWhatItDoes) {
  if (!have_torchrun()) GTEST_SKIP() << "no .venv/bin/torchrun";
  const fs::path root = longship::testing::scratch_dir("parallel_torchrun");
  const fs::path run = root / "run";
  const auto first = torchrun(run, 2, {"parallel.strategy=zero1", "train.stop_after=4"});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  EXPECT_THAT(first.output, HasSubstr("zero1: process 0 of 2, started by torchrun"));
  EXPECT_THAT(first.output, HasSubstr("8 samples (2 processes x 2 x 2)"));
  EXPECT_THAT(first.output, HasSubstr("step 4/6"));
  // Rank 1 speaks in its own file.
  EXPECT_EQ(first.output.find("process 1 of 2"), std::string::npos);
  EXPECT_THAT(read_file(run / "train.rank1.log", 1 << 20), HasSubstr("process 1 of 2"));
  const auto second = torchrun(run, 2, {"parallel.strategy=ddp"});
  ASSERT_EQ(second.exit_code, 0) << second.output;
  EXPECT_THAT(second.output, HasSubstr("at step 4"));
  EXPECT_EQ(CheckpointStore(run).newest_valid(), 6);
  std::ifstream in(run / "metrics.jsonl");
  int64_t lines = 0;
  for (std::string line; std::getline(in, line); ++lines) {
    const auto record = nlohmann::json::parse(line);
    EXPECT_EQ(record["world_size"], 2);
    EXPECT_GT(record["comm_mb"].get<double>(), 0);
    EXPECT_GE(record["comm_exposed_ms"].get<double>(), 0);
    EXPECT_GE(record["slowest_ms"].get<double>(), record["fastest_ms"].get<double>());
  }
  EXPECT_EQ(lines, 6);
  fs::remove_all(root);
}

TEST(ParallelTorchrun, SeveralProcessesNeedAStrategy) {
  if (!have_torchrun()) GTEST_SKIP() << "no .venv/bin/torchrun";
  const fs::path root = longship::testing::scratch_dir("parallel_torchrun_none");
  const auto result = torchrun(root / "run", 2, {});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("parallel.strategy: none is for one process, but 2 were"));
  EXPECT_FALSE(fs::exists(root / "run"));
  fs::remove_all(root);
}

}  // namespace
}  // namespace longship::train
