// Wrong input: one message that names the thing, and the documented exit code.
#include <algorithm>

#include "../data/broken_case.h"
#include "support/paths.h"
#include "support/process.h"

namespace longship::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr const char* kRecipe = "tests/apps/two_cameras.yaml";

ProcessResult train(const std::string& run_name, std::vector<std::string> overrides) {
  std::vector<std::string> arguments = {"train", kRecipe,
                                        "output_dir=" + scratch_dir(run_name).string() + "/run"};
  arguments.insert(arguments.end(), overrides.begin(), overrides.end());
  return run(longship(arguments));
}

ProcessResult train_on(const std::string& case_name, std::vector<std::string> overrides = {}) {
  overrides.push_back("data.datasets.0.path=" + build_broken_case(case_name).root.string());
  return train(case_name, overrides);
}

TEST(CliHelp, EverySubcommandExplainsItself) {
  for (const auto& [command, word] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--help"}, "Exit codes"},
           {{"train", "--help"}, "output_dir"},
           {{"eval", "open-loop", "--help"}, "--draws"},
           {{"inspect", "--help"}, "safetensors"},
           {{"parity", "--help"}, "--json"}}) {
    const ProcessResult result = run(longship(command));
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.output, HasSubstr(word));
  }
}

TEST(CliHelp, VersionNamesTheLibraries) {
  const ProcessResult result = run(longship({"--version"}));
  EXPECT_EQ(result.exit_code, 0);
  for (const char* name :
       {"longship 0.", "LibTorch 2.11", "CUDA", "Arrow", "FFmpeg", "SentencePiece"}) {
    EXPECT_THAT(result.output, HasSubstr(name));
  }
}

TEST(CliUsage, UnknownSubcommandAndMissingArgumentAreUsageErrors) {
  EXPECT_EQ(run(longship({"trian"})).exit_code, 2);
  EXPECT_EQ(run(longship({})).exit_code, 2);
  EXPECT_EQ(run(longship({"train"})).exit_code, 2);
}

TEST(CliConfig, MissingRecipe) {
  const ProcessResult result = run(longship({"train", "configs/no_such.yaml"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("configs/no_such.yaml"));
}

TEST(CliConfig, UnknownKeyNamesTheNearest) {
  const ProcessResult result = train("unknown_key", {"optim.lerning_rate=1e-4"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("lerning_rate"));
  const ProcessResult near = train("near_key", {"train.stepz=4"});
  EXPECT_EQ(near.exit_code, 2);
  EXPECT_THAT(near.output, HasSubstr("did you mean"));
  EXPECT_THAT(near.output, HasSubstr("steps"));
}

TEST(CliConfig, WrongTypeAndRangeAreListedTogether) {
  const ProcessResult result = train("wrong_type", {"train.steps=many", "optim.eps=-1"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("steps"));
  EXPECT_THAT(result.output, HasSubstr("many"));
  EXPECT_THAT(result.output, HasSubstr("eps"));
}

TEST(CliData, UnreadablePath) {
  const ProcessResult result = train("no_dataset", {"data.datasets.0.path=/no/such/dataset"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.output, HasSubstr("/no/such/dataset"));
}

TEST(CliData, EmptyFolderNamesInfoJsonInTrainAndInspect) {
  const fs::path empty = scratch_dir("empty_dataset");
  const ProcessResult trained = train("empty_run", {"data.datasets.0.path=" + empty.string()});
  EXPECT_EQ(trained.exit_code, 3);
  EXPECT_THAT(trained.output, HasSubstr("info.json"));
  const ProcessResult inspected = run(longship({"inspect", empty.string()}));
  EXPECT_EQ(inspected.exit_code, 3);
  EXPECT_THAT(inspected.output, HasSubstr("info.json"));
}

TEST(CliData, InspectOfNothing) {
  const ProcessResult result = run(longship({"inspect", "/no/such/thing"}));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.output, HasSubstr("/no/such/thing"));
}

TEST(CliData, MissingVideoNamesTheFile) {
  const ProcessResult result = train_on("missing-video");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.output, HasSubstr(".mp4"));
}

TEST(CliData, EveryMissingFileIsListed) {
  const ProcessResult result = train_on("missing-three-files");
  EXPECT_EQ(result.exit_code, 3);
  const std::string& text = result.output;
  EXPECT_GE(std::count(text.begin(), text.end(), '\n'), 3);
}

TEST(CliData, ActionWiderThanTheModel) {
  const ProcessResult result = train_on("action-of-40-numbers");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.output, HasSubstr("40"));
  EXPECT_THAT(result.output, HasSubstr("12"));
}

TEST(CliData, ActionDimensionThatContradictsTheRecipe) {
  const ProcessResult result = train("wrong_action_dim", {"model.action_dim=7"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.output, HasSubstr("7"));
  EXPECT_THAT(result.output, HasSubstr("6"));
}

TEST(CliData, NanNamesColumnEpisodeAndFrame) {
  const ProcessResult result = train_on("nan-in-action");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.output, HasSubstr("action[2]"));
  EXPECT_THAT(result.output, HasSubstr("episode 1"));
  EXPECT_THAT(result.output, HasSubstr("frame 3"));
}

TEST(CliData, PromptLongerThanTheTokenLimit) {
  const ProcessResult result = train_on("task-very-long");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.output, HasSubstr("token"));
  EXPECT_THAT(result.output, HasSubstr("96"));
}

TEST(CliData, UnknownCameraListsBothSides) {
  const ProcessResult result =
      train("no_camera", {"data.cameras.base_0_rgb=observation.images.front"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("observation.images.front"));
  EXPECT_THAT(result.output, HasSubstr("observation.images.top"));
}

TEST(CliWeights, CorruptSafetensorsInInspectAndTrain) {
  const fs::path folder = scratch_dir("corrupt");
  const fs::path file = folder / "model.safetensors";
  fs::copy_file(golden_path("pi05/tiny_train/weights.safetensors"), file);
  fs::resize_file(file, fs::file_size(file) - 100);
  const ProcessResult inspected = run(longship({"inspect", file.string()}));
  EXPECT_EQ(inspected.exit_code, 4);
  EXPECT_THAT(inspected.output, HasSubstr(file.string()));
  const ProcessResult trained = train("corrupt_start", {"model.checkpoint=" + file.string()});
  EXPECT_EQ(trained.exit_code, 4);
  EXPECT_THAT(trained.output, HasSubstr(file.string()));
}

TEST(CliWeights, WeightsOfOtherSizesListEveryTensor) {
  const ProcessResult result =
      train("other_sizes",
            {"model.checkpoint=" + golden_path("pi05/tiny_train/weights.safetensors").string()});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.output, HasSubstr("lm_head.weight"));
  EXPECT_THAT(result.output, HasSubstr("800"));
  EXPECT_THAT(result.output, HasSubstr("101"));
}

TEST(CliDevice, CudaOnAMachineWithoutIt) {
  const ProcessResult result = train("no_cuda", {"train.device=cuda:7"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.output, HasSubstr("cuda:7"));
}

TEST(CliParity, FolderWithoutCase) {
  const fs::path folder = scratch_dir("no_case");
  const ProcessResult result = run(longship({"parity", folder.string()}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("case.json"));
}

}  // namespace
}  // namespace longship::testing
