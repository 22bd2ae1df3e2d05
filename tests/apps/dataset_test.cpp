// longship dataset as a person uses it, over every damaged or awkward dataset and through every
// command.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "../data/broken_case.h"
#include "base/fs.h"
#include "base/json.h"
#include "data/lerobot/lerobot_dataset.h"
#include "io/safetensors.h"
#include "support/paths.h"
#include "support/process.h"

namespace longship::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr const char* kRecipe = "tests/apps/two_cameras.yaml";

ProcessResult dataset(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "dataset");
  return run(longship(arguments));
}

// The output holds the log, too; the document begins at the first line that is one.
nlohmann::json json_of(const std::string& output) {
  const size_t begin =
      output.rfind("\n{\n") == std::string::npos ? output.find("{\n") : output.rfind("\n{\n");
  return parse_json_text(output.substr(begin, output.rfind('}') - begin + 1), "output");
}

// Cases that this program answers otherwise than the catalogue, in the whole check and in the
// quick one that each start of training runs.
std::string outcome_of(const BrokenCase& broken, bool quick) {
  // A question of the model's slots, not of the data: train answers it.
  if (broken.id == "camera-names-not-the-models") return "ok";
  // "Only with the deep check."
  if (quick && (broken.id == "camera-frozen" || broken.id == "camera-black")) return "ok";
  return broken.outcome;
}

void expect_answer(const BrokenCase& broken, bool quick) {
  std::vector<std::string> arguments = {"validate", broken.root.string(), "--json"};
  if (quick) arguments.emplace_back("--quick");
  const ProcessResult result = dataset(arguments);
  const std::string outcome = outcome_of(broken, quick);
  EXPECT_EQ(result.exit_code, outcome == "error" ? 3 : 0) << result.output;
  const nlohmann::json json = json_of(result.output);
  std::map<std::string, int64_t> count;
  std::string text;
  for (const auto& finding : json.at("findings")) {
    // The writer of the v3.0 base overflows the std of pictures: right in every v3.0 case.
    if (finding.at("code") == "image-std" && broken.id != "stats-image-std-overflowed") continue;
    ++count[finding.at("severity")];
    text += finding.dump() + "\n";
  }
  EXPECT_EQ(count["ERROR"] > 0, outcome == "error") << text;
  if (outcome == "warn") {
    EXPECT_GT(count["WARN"], 0) << text;
  } else if (outcome == "info") {
    EXPECT_EQ(count["WARN"], 0) << text;
    EXPECT_GT(count["INFO"], 0) << text;
  } else if (outcome == "ok") {
    EXPECT_TRUE(text.empty()) << text;
  }
  if (outcome == broken.outcome) {
    for (const std::string& word : broken.mentions) EXPECT_THAT(text, HasSubstr(word));
  }
}

class DatasetCase : public ::testing::TestWithParam<std::string> {};

TEST_P(DatasetCase, IsAnsweredAsTheCatalogueSays) {
  const BrokenCase broken = build_broken_case(GetParam());
  expect_answer(broken, false);
  expect_answer(broken, true);
  fs::remove_all(broken.root);
}

// Faults stop training before any weight is made.
TEST_P(DatasetCase, StopsTheStartOfTrainingOrDoesNot) {
  const BrokenCase broken = build_broken_case(GetParam());
  if (outcome_of(broken, true) != "error") {
    fs::remove_all(broken.root);
    GTEST_SKIP() << "no fault; the tests of training run on sound data";
  }
  const ProcessResult result =
      run(longship({"train", kRecipe, "data.datasets.0.path=" + broken.root.string(),
                    "output_dir=" + scratch_dir("start_" + broken.id).string() + "/run"}));
  EXPECT_EQ(result.exit_code, 3) << result.output;
  for (const std::string& word : broken.mentions) EXPECT_THAT(result.output, HasSubstr(word));
  EXPECT_THAT(result.output, HasSubstr("cannot be used"));
  fs::remove_all(broken.root);
}

INSTANTIATE_TEST_SUITE_P(Cases, DatasetCase, ::testing::ValuesIn(broken_case_names()),
                         longship::testing::broken_test_name);

TEST(DatasetHelp, ListsEveryCommandAndEachExplainsItself) {
  const ProcessResult group = dataset({"--help"});
  EXPECT_EQ(group.exit_code, 0);
  for (const auto& [command, word] :
       std::map<std::string, std::string>{{"validate", "--strict"},
                                          {"stats", "--delta-mask"},
                                          {"convert", "--out"},
                                          {"split", "--episodes"},
                                          {"merge", "paths"},
                                          {"repair", "--drop-episodes"},
                                          {"show", "--pictures"},
                                          {"dump", "--samples"}}) {
    EXPECT_THAT(group.output, HasSubstr(command));
    const ProcessResult result = dataset({command, "--help"});
    EXPECT_EQ(result.exit_code, 0) << command;
    EXPECT_THAT(result.output, HasSubstr(word));
  }
  EXPECT_EQ(dataset({}).exit_code, 2);
  EXPECT_EQ(dataset({"validate"}).exit_code, 2);
}

TEST(DatasetValidate, StrictCountsWarnings) {
  const BrokenCase broken = build_broken_case("counters-wrong-frames");
  EXPECT_EQ(dataset({"validate", broken.root.string()}).exit_code, 0);
  const ProcessResult strict = dataset({"validate", broken.root.string(), "--strict"});
  EXPECT_EQ(strict.exit_code, 3);
  EXPECT_THAT(strict.output, HasSubstr("WARN counters meta/info.json: total_frames is 30"));
  EXPECT_THAT(strict.output, HasSubstr("28 frames, 56 pictures decoded"));
}

TEST(DatasetStats, WritesTheFormatOfTheDataset) {
  const fs::path out = scratch_dir("dataset_stats") / "stats.json";
  const ProcessResult result =
      dataset({"stats", dataset_path("pusht_v21").string(), "--pixels", "--out", out.string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json stats = parse_json_file(out);
  EXPECT_EQ(stats.at("action").at("count").at(0), 2652);
  EXPECT_EQ(stats.at("observation.image").at("mean").at(0).at(0).size(), 1u);
  const ProcessResult wrong =
      dataset({"stats", dataset_path("pusht_v21").string(), "--delta-mask", "2"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.output, HasSubstr("--horizon"));
}

TEST(DatasetWriters, ConvertSplitMergeAndRepairGiveSoundDatasets) {
  const fs::path scratch = scratch_dir("dataset_writers");
  const std::string source = dataset_path("broken/base_v21").string();
  EXPECT_EQ(dataset({"convert", source, "--out", (scratch / "v30").string()}).exit_code, 0);
  EXPECT_EQ(dataset({"split", source, "--episodes", "0,2-2", "--out", (scratch / "a").string()})
                .exit_code,
            0);
  EXPECT_EQ(
      dataset({"split", source, "--episodes", "1", "--out", (scratch / "b").string()}).exit_code,
      0);
  const ProcessResult merged = dataset({"merge", (scratch / "a").string(), (scratch / "b").string(),
                                        "--out", (scratch / "ab").string()});
  EXPECT_EQ(merged.exit_code, 0);
  EXPECT_THAT(merged.output, HasSubstr("3 episodes, 28 frames"));
  const BrokenCase broken = build_broken_case("rows-reversed-in-episode");
  const ProcessResult repaired =
      dataset({"repair", broken.root.string(), "--out", (scratch / "mended").string()});
  EXPECT_EQ(repaired.exit_code, 0) << repaired.output;
  EXPECT_THAT(repaired.output, HasSubstr("mended: episode 1: rows sorted by frame_index"));
  for (const char* name : {"v30", "a", "b", "ab", "mended"}) {
    const ProcessResult checked = dataset({"validate", (scratch / name).string(), "--strict"});
    EXPECT_EQ(checked.exit_code, 0) << name << "\n" << checked.output;
  }
  // Nothing is left behind, and nothing that exists is touched.
  for (const auto& entry : fs::directory_iterator(scratch)) {
    EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr("partial")));
  }
  const ProcessResult again = dataset({"convert", source, "--out", (scratch / "v30").string()});
  EXPECT_EQ(again.exit_code, 3);
  EXPECT_THAT(again.output, HasSubstr("v30: exists already"));
  const ProcessResult none =
      dataset({"split", source, "--episodes", "7", "--out", (scratch / "none").string()});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.output, HasSubstr("there is no episode 7"));
}

TEST(DatasetShow, DrawsOneEpisode) {
  const fs::path out = scratch_dir("dataset_show") / "episode.svg";
  const std::string source = dataset_path("two_cam_v30").string();
  ASSERT_EQ(dataset({"show", source, "--episode", "2", "--out", out.string()}).exit_code, 0);
  const std::string svg = read_file(out, 100 << 20);
  EXPECT_THAT(svg, HasSubstr("observation.images.cam_high"));
  EXPECT_THAT(svg, HasSubstr("left_forearm_roll"));
  size_t pictures = 0;
  for (size_t at = svg.find("data:image/png;base64,iVBOR"); at != std::string::npos;
       at = svg.find("data:image/png;base64,iVBOR", at + 1)) {
    ++pictures;
  }
  EXPECT_EQ(pictures, 16u);
  EXPECT_EQ(dataset({"show", source, "--episode", "88", "--out", out.string()}).exit_code, 2);
  EXPECT_EQ(dataset({"show", source, "--out", "picture.gif"}).exit_code, 2);
}

TEST(DatasetDump, HoldsWhatTheTrainerSees) {
  const fs::path out = scratch_dir("dataset_dump") / "samples.safetensors";
  const ProcessResult result =
      dataset({"dump", kRecipe, "--samples", "0,27", "--out", out.string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto file = io::SafetensorsFile::open(out);
  const auto source = data::open_lerobot(dataset_path("broken/base_v21"));
  data::WindowSpec windows;
  windows.columns["action"] = {0, 1, 2, 3, 4};
  windows.cameras["observation.images.top"] = {0};
  for (const int64_t id : {0, 27}) {
    const std::string prefix = std::to_string(id) + "/";
    const data::RawSample sample = source->get(id, windows);
    const auto& action = sample.columns.at("action");
    const io::TensorInfo& values = file.at(prefix + "columns/action");
    EXPECT_EQ(values.shape, (std::vector<int64_t>{5, 6}));
    EXPECT_EQ(std::memcmp(file.data(values), action.values.data(), values.num_bytes()), 0);
    const io::TensorInfo& pad = file.at(prefix + "columns/action.is_pad");
    EXPECT_EQ(std::memcmp(file.data(pad), action.is_pad.data(), pad.num_bytes()), 0);
    const io::TensorInfo& frames = file.at(prefix + "frames/observation.images.top");
    EXPECT_EQ(frames.shape, (std::vector<int64_t>{1, 48, 64, 3}));
    EXPECT_EQ(std::memcmp(file.data(frames), sample.cameras.begin()->second.frames[0]->rgb.data(),
                          frames.num_bytes()),
              0);
    EXPECT_THAT(file.metadata().at(prefix + "prompt"), HasSubstr(", State: "));
    EXPECT_EQ(file.metadata().at(prefix + "task"), sample.task);
    bool has_model = false;
    for (const io::TensorInfo& info : file.tensors()) {
      has_model = has_model || info.name.starts_with(prefix + "model/");
    }
    EXPECT_TRUE(has_model);
  }
  const ProcessResult plain = dataset({"dump", dataset_path("two_cam_v30").string(), "--samples",
                                       "5", "--horizon", "3", "--out", out.string()});
  EXPECT_EQ(plain.exit_code, 0) << plain.output;
  EXPECT_EQ(io::SafetensorsFile::open(out).at("5/columns/action").shape,
            (std::vector<int64_t>{3, 14}));
  for (const char* samples : {"28", "-1", "x"}) {
    const ProcessResult wrong =
        dataset({"dump", kRecipe, "--samples=" + std::string(samples), "--out", out.string()});
    EXPECT_EQ(wrong.exit_code, 2) << samples << wrong.output;
    EXPECT_THAT(wrong.output, HasSubstr("--samples"));
  }
}

// Windows in seconds, as the official reader takes them: any order, beyond the episode, none.
TEST(DatasetDump, OffsetsInSeconds) {
  const fs::path out = scratch_dir("dataset_dump_offsets") / "samples.safetensors";
  const std::string root = dataset_path("broken/base_v21").string();  // 10 fps
  const auto dump = [&](const std::string& offsets) {
    return dataset(
        {"dump", root, "--samples", "0,5", "--out", out.string(), "--offsets=" + offsets});
  };
  const ProcessResult result = dump("action=0.2,0,-0.1,0.2");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto file = io::SafetensorsFile::open(out);
  data::WindowSpec windows;
  windows.columns["action"] = {2, 0, -1, 2};
  const auto expected = data::open_lerobot(root)->get(0, windows).columns.at("action");
  const io::TensorInfo& values = file.at("0/columns/action");
  ASSERT_EQ(values.shape, (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(std::memcmp(file.data(values), expected.values.data(), values.num_bytes()), 0);
  const io::TensorInfo& pad = file.at("0/columns/action.is_pad");
  EXPECT_EQ(std::memcmp(file.data(pad), expected.is_pad.data(), 4), 0);
  EXPECT_EQ(expected.is_pad, (std::vector<uint8_t>{0, 0, 1, 0}));

  const ProcessResult beyond = dump("observation.images.top=15");
  EXPECT_EQ(beyond.exit_code, 0) << beyond.output;
  EXPECT_THAT(
      beyond.output,
      HasSubstr("observation.images.top: 2 of 2 samples lie outside the episode at every offset"));
  EXPECT_EQ(dump("action=").exit_code, 0);
  const auto without = io::SafetensorsFile::open(out);
  for (const io::TensorInfo& info : without.tensors()) {
    EXPECT_FALSE(info.name.starts_with("0/columns/action")) << info.name;
  }
  const std::pair<const char*, const char*> wrong[] = {{"action=0,0.05", "0.05"},
                                                       {"action=0,x", "'x' is no number"},
                                                       {"action", "seconds"},
                                                       {"actions=0", "it has action"}};
  for (const auto& [offsets, words] : wrong) {
    const ProcessResult refused = dump(offsets);
    EXPECT_EQ(refused.exit_code, 2) << offsets << refused.output;
    EXPECT_THAT(refused.output, HasSubstr("--offsets"));
    EXPECT_THAT(refused.output, HasSubstr(words));
  }
}

}  // namespace
}  // namespace longship::testing
