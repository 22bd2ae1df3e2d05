// longship checkpoint verify | consolidate | reshard | diff, as a person uses them.
#include <sys/mount.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/fs.h"
#include "support/paths.h"
#include "support/process.h"

namespace longship::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// One finished run for all tests of this file, with an average.
const fs::path& finished_run() {
  static const fs::path folder = [] {
    const fs::path run_folder = scratch_dir("checkpoint_commands_run") / "run";
    const ProcessResult result =
        run(longship({"train", "tests/apps/two_cameras.yaml", "output_dir=" + run_folder.string(),
                      "train.steps=10", "checkpoint.every=5", "optim.ema=0.9"}));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return run_folder;
  }();
  return folder;
}

ProcessResult checkpoint(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "checkpoint");
  return run(longship(arguments));
}

std::string bytes_of(const fs::path& file) {
  return read_file(file, uint64_t{1} << 30);
}

void flip_last_byte(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const int byte = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
}

TEST(CliCheckpoint, VerifySoundAndDamaged) {
  const fs::path folder = scratch_dir("checkpoint_verify");
  fs::copy(finished_run(), folder / "run",
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const ProcessResult sound = checkpoint({"verify", (folder / "run").string()});
  EXPECT_EQ(sound.exit_code, 0) << sound.output;
  EXPECT_THAT(sound.output, HasSubstr("step_5: sound; step 5"));
  EXPECT_THAT(sound.output, HasSubstr("step_10: sound; step 10"));
  EXPECT_THAT(sound.output, HasSubstr("state of 1 rank"));
  flip_last_byte(folder / "run/checkpoints/step_10/state/optimizer.r0000-of-0001.safetensors");
  const ProcessResult damaged = checkpoint({"verify", (folder / "run").string()});
  EXPECT_EQ(damaged.exit_code, 4);
  EXPECT_THAT(damaged.output, HasSubstr("step_5: sound"));
  EXPECT_THAT(damaged.output, HasSubstr("step_10: NOT sound"));
  EXPECT_THAT(damaged.output,
              HasSubstr("optimizer.r0000-of-0001.safetensors does not match its SHA-256"));
  const ProcessResult json = checkpoint({"verify", "--json", (folder / "run/latest").string()});
  EXPECT_EQ(json.exit_code, 4);
  const auto report = nlohmann::json::parse(json.output);
  ASSERT_EQ(report.size(), 1U);
  EXPECT_EQ(report[0]["sound"], false);
  EXPECT_EQ(report[0]["step"], 10);
  EXPECT_EQ(report[0]["world_size"], 1);
  EXPECT_EQ(report[0]["faults"].size(), 1U);
  EXPECT_EQ(checkpoint({"verify", (folder / "nothing").string()}).exit_code, 4);
  // Training goes on from the one before.
  const ProcessResult resumed = run(
      longship({"train", "tests/apps/two_cameras.yaml", "output_dir=" + (folder / "run").string(),
                "train.steps=10", "checkpoint.every=5", "optim.ema=0.9"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("is not used: the content of"));
  EXPECT_EQ(
      checkpoint({"diff", (folder / "run/latest").string(), (finished_run() / "latest").string()})
          .exit_code,
      0);
}

TEST(CliCheckpoint, ReshardedOnesResumeToTheSameEnd) {
  const fs::path folder = scratch_dir("checkpoint_reshard");
  const fs::path source = finished_run() / "checkpoints/step_5";
  const fs::path target = folder / "run/checkpoints/step_5";
  const ProcessResult made =
      checkpoint({"reshard", source.string(), "--world", "3", "--out", target.string()});
  ASSERT_EQ(made.exit_code, 0) << made.output;
  EXPECT_TRUE(fs::exists(target / "state/optimizer.r0002-of-0003.safetensors"));
  const ProcessResult twice =
      checkpoint({"reshard", source.string(), "--world", "3", "--out", target.string()});
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_THAT(twice.output, HasSubstr("exists already"));
  EXPECT_EQ(checkpoint({"reshard", source.string(), "--world", "0", "--out", "x"}).exit_code, 2);
  EXPECT_EQ(checkpoint({"verify", target.string()}).exit_code, 0);
  const ProcessResult same = checkpoint({"diff", source.string(), target.string()});
  EXPECT_EQ(same.exit_code, 0) << same.output;
  EXPECT_THAT(same.output, HasSubstr(" equal"));
  // The run goes on from what three ranks would have written.
  fs::copy_file(finished_run() / "config.yaml", folder / "run/config.yaml");
  const ProcessResult resumed = run(
      longship({"train", "tests/apps/two_cameras.yaml", "output_dir=" + (folder / "run").string(),
                "train.steps=10", "checkpoint.every=5", "optim.ema=0.9"}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("resumed from"));
  for (const char* file : {"model.safetensors", "state/optimizer.r0000-of-0001.safetensors"}) {
    EXPECT_TRUE(bytes_of(folder / "run/latest" / file) ==
                bytes_of(finished_run() / "latest" / file))
        << file;
  }
}

TEST(CliCheckpoint, ConsolidateAndDiff) {
  const fs::path folder = scratch_dir("checkpoint_consolidate");
  const fs::path newest = finished_run() / "latest";
  const fs::path file = folder / "w.safetensors";
  const ProcessResult made =
      checkpoint({"consolidate", finished_run().string(), "--out", file.string()});
  ASSERT_EQ(made.exit_code, 0) << made.output;
  EXPECT_TRUE(bytes_of(file) == bytes_of(newest / "model.safetensors"));
  EXPECT_EQ(checkpoint({"consolidate", newest.string(), "--out", file.string()}).exit_code, 2);
  EXPECT_EQ(checkpoint({"diff", file.string(), newest.string()}).exit_code, 0);
  const ProcessResult masters = checkpoint({"consolidate", newest.string(), "--out",
                                            (folder / "masters").string(), "--values", "weights"});
  ASSERT_EQ(masters.exit_code, 0) << masters.output;
  EXPECT_EQ(run(longship({"inspect", (folder / "masters").string()})).exit_code, 0);
  const ProcessResult differs = checkpoint({"diff", file.string(), (folder / "masters").string()});
  EXPECT_EQ(differs.exit_code, 1);
  EXPECT_THAT(differs.output, HasSubstr("differs in"));
  EXPECT_THAT(differs.output, HasSubstr("by at most"));
  const ProcessResult json = checkpoint(
      {"diff", "--json", newest.string(), (finished_run() / "checkpoints/step_5").string()});
  EXPECT_EQ(json.exit_code, 1);
  const auto report = nlohmann::json::parse(json.output);
  EXPECT_EQ(report["equal"], false);
  EXPECT_GT(report["counts"]["differs"].get<int64_t>(), 0);
  EXPECT_GT(report["tensors"].size(), 10U);
  EXPECT_EQ(checkpoint({"diff", file.string(), (folder / "no.safetensors").string()}).exit_code, 4);
  EXPECT_EQ(checkpoint({"diff", file.string()}).exit_code, 2);
  EXPECT_EQ(checkpoint({"consolidate", newest.string(), "--out", (folder / "x").string(), "--dtype",
                        "fp12"})
                .exit_code,
            2);
}

TEST(CliCheckpoint, HelpNamesTheExitCodes) {
  for (const char* command : {"verify", "consolidate", "reshard", "diff"}) {
    const ProcessResult help = checkpoint({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.output, HasSubstr("Exit codes: 0 "));
  }
}

/// A file system of a few megabytes, where this user may mount one.
class SmallDisk {
 public:
  explicit SmallDisk(fs::path folder, const std::string& size) : folder_(std::move(folder)) {
    fs::create_directories(folder_);
    mounted_ = ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }

 private:
  fs::path folder_;
  bool mounted_ = false;
};

// A disk that is really full, metrics and charts included, until something else is deleted.
TEST(CliCheckpoint, TrainingSurvivesAFullDisk) {
  const fs::path folder = scratch_dir("checkpoint_full_disk");
  const uintmax_t one = [] {
    uintmax_t bytes = 0;
    for (const auto& e : fs::recursive_directory_iterator(finished_run() / "checkpoints/step_10")) {
      if (e.is_regular_file()) bytes += e.file_size();
    }
    return bytes;
  }();
  const SmallDisk disk(folder / "disk", std::to_string(2 * one + (12 << 20)));
  if (!disk.mounted()) GTEST_SKIP() << "this user may not mount a small file system";
  const fs::path run_folder = folder / "disk/run";
  const fs::path ballast = folder / "disk/ballast";
  std::vector<std::string> arguments = {
      "train",          "tests/apps/two_cameras.yaml", "output_dir=" + run_folder.string(),
      "train.steps=60", "checkpoint.every=3",          "optim.ema=0.9",
      "log.every=1",    "checkpoint.keep_last=1",      "optim.schedule.decay_steps=60"};
  Process child(longship(arguments));
  ASSERT_TRUE(child.wait_for_output("checkpoint ", 120)) << child.output();
  {
    // The last byte is taken.
    std::ofstream out(ballast, std::ios::binary);
    const std::string piece(4096, 'x');
    while (out.write(piece.data(), static_cast<std::streamsize>(piece.size())) && out.flush()) {
    }
  }
  ASSERT_TRUE(child.wait_for_output("could not save the checkpoint", 120)) << child.output();
  fs::remove(ballast);
  const ProcessResult result = child.wait();
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("training goes on"));
  EXPECT_EQ(checkpoint({"verify", run_folder.string()}).exit_code, 0);
  EXPECT_TRUE(fs::exists(run_folder / "checkpoints/step_60"));
  // Not one record is lost.
  std::ifstream metrics(run_folder / "metrics.jsonl");
  int64_t lines = 0;
  for (std::string line; std::getline(metrics, line);) {
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
    ++lines;
  }
  EXPECT_EQ(lines, 60);
}

}  // namespace
}  // namespace longship::testing
