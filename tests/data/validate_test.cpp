// The whole check over every damaged or awkward dataset, and over damage that the catalogue lacks.

#include "data/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fs.h"
#include "base/json.h"
#include "data/broken_case.h"
#include "data/lerobot/picture_watch.h"
#include "data/lerobot/write/dataset_writer.h"
#include "support/paths.h"

namespace longship::data {
namespace {

namespace fs = std::filesystem;
using testing::dataset_path;
using ::testing::HasSubstr;
using testing::scratch_dir;

std::string lines(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& finding : findings) out += format_finding(finding) + "\n";
  return out;
}

// Right in every v3.0 case, since the writer of the base overflows the std of pictures.
std::vector<Finding> relevant(std::vector<Finding> findings, const std::string& id) {
  if (id == "stats-image-std-overflowed") return findings;
  std::erase_if(findings, [](const Finding& finding) { return finding.code == "image-std"; });
  return findings;
}

std::vector<Finding> of_code(const std::vector<Finding>& findings, const std::string& code) {
  std::vector<Finding> out;
  std::copy_if(findings.begin(), findings.end(), std::back_inserter(out),
               [&](const Finding& finding) { return finding.code == code; });
  return out;
}

// A copy that may be changed.
fs::path copy_of(const std::string& dataset, const std::string& name) {
  const fs::path root = scratch_dir(name) / "set";
  fs::copy(dataset_path(dataset), root, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    fs::permissions(entry.path(), fs::perms::owner_all, fs::perm_options::add);
  }
  return root;
}

TEST(ValidateDataset, SoundDatasetsHaveNoErrorAndEveryPictureIsDecoded) {
  for (const auto& [name, frames] : std::map<std::string, int64_t>{{"pusht_v21", 2652},
                                                                   {"two_cam_v30", 2 * 790},
                                                                   {"broken/base_v21", 56},
                                                                   {"broken/base_v30", 56}}) {
    const Validation result = validate_dataset(dataset_path(name));
    EXPECT_EQ(result.num_decoded, frames) << name;
    for (const Finding& finding : result.findings) {
      EXPECT_THAT((std::set<std::string>{"image-std", "constant-column"}),
                  ::testing::Contains(finding.code))
          << name << ": " << format_finding(finding);
    }
  }
}

TEST(ValidateDataset, ThreadsDoNotChangeTheFindings) {
  const testing::BrokenCase broken = testing::build_broken_case("camera-frozen");
  ValidateOptions one, many;
  one.threads = 1;
  many.threads = 4;
  EXPECT_EQ(lines(validate_dataset(broken.root, one).findings),
            lines(validate_dataset(broken.root, many).findings));
}

// A byte flip inside the stream of one video: it opens, but a picture in the middle is damaged.
TEST(ValidateDataset, DamagedPacketIsFoundWithItsPlace) {
  const fs::path root = copy_of("pusht_v21", "damaged_packet");
  const fs::path video = root / "videos/chunk-000/observation.image/episode_000003.mp4";
  std::string bytes = read_file(video, 100 << 20);
  const size_t begin = bytes.find("mdat") + 8 + (bytes.size() / 2);
  ASSERT_LT(begin + 400, bytes.size());
  for (size_t i = 0; i < 300; ++i) bytes[begin + i] = static_cast<char>(0xff);
  std::ofstream(video, std::ios::binary) << bytes;
  const Validation result = validate_dataset(root);
  const auto damaged = of_code(result.findings, "frame-damaged");
  ASSERT_FALSE(damaged.empty()) << lines(result.findings);
  EXPECT_THAT(damaged.front().place, HasSubstr("observation.image, episode 3, frame "));
  EXPECT_EQ(damaged.front().severity, Severity::kError);
  // The start check reads no pixels.
  EXPECT_TRUE(of_code(check_dataset(root), "frame-damaged").empty());
}

TEST(ValidateDataset, FilesThatNothingUsesAreNamed) {
  const fs::path root = copy_of("broken/base_v21", "unused_files");
  fs::copy_file(root / "data/chunk-000/episode_000000.parquet",
                root / "data/chunk-000/episode_000077.parquet");
  const auto unused = of_code(validate_dataset(root).findings, "unused-file");
  ASSERT_EQ(unused.size(), 1u);
  EXPECT_EQ(unused[0].place, "data/chunk-000/episode_000077.parquet");
  EXPECT_EQ(unused[0].severity, Severity::kInfo);
}

TEST(ValidateDataset, TaskTextsAreJudged) {
  const fs::path root = copy_of("broken/base_v21", "task_texts");
  std::ofstream(root / "meta/tasks.jsonl", std::ios::app)
      << "{\"task_index\": 7, \"task\": \"  \"}\n{\"task_index\": 8, \"task\": \"  \"}\n";
  const std::vector<Finding> findings = validate_dataset(root).findings;
  EXPECT_EQ(of_code(findings, "task-empty").size(), 2u);
  EXPECT_EQ(of_code(findings, "task-double").size(), 1u);
  EXPECT_EQ(of_code(findings, "task-unused").size(), 2u);
}

TEST(ValidateDataset, StoredStatisticsAreComparedWithRowsAndPictures) {
  const fs::path root = copy_of("two_cam_v30", "stats_differ");
  auto stats = parse_ordered_json_text(read_file(root / "meta/stats.json", 10 << 20), "stats.json");
  stats["action"]["mean"][3] = stats["action"]["mean"][3].get<double>() + 0.5;
  stats["phase"]["max"][0] = 90;
  stats["observation.images.cam_high"]["mean"][1][0][0] = 90.0;  // of 255
  std::ofstream(root / "meta/stats.json") << stats.dump();
  const auto differ = of_code(validate_dataset(root).findings, "stats-differ");
  const std::string text = lines(differ);
  EXPECT_EQ(differ.size(), 3u) << text;
  EXPECT_THAT(text, HasSubstr("action[3]: mean of meta/stats.json is"));
  EXPECT_THAT(text, HasSubstr("phase[0]: max of meta/stats.json is 90, the rows say 7"));
  EXPECT_THAT(text, HasSubstr("observation.images.cam_high channel 1"));
}

TEST(ValidateDataset, JsonHasTheSameFields) {
  const testing::BrokenCase broken = testing::build_broken_case("counters-wrong-frames");
  const Validation result = validate_dataset(broken.root);
  const auto json = parse_json_text(validation_json(broken.root, result), "output");
  EXPECT_EQ(json.at("findings").size(), result.findings.size());
  EXPECT_EQ(json.at("errors"), 0);
  EXPECT_EQ(json.at("warnings"), result.count(Severity::kWarn));
  EXPECT_EQ(json.at("format"), "v3.0");
  EXPECT_EQ(json.at("frames"), 28);
  for (const char* field : {"severity", "code", "place", "fact", "expected", "cure"}) {
    EXPECT_TRUE(json.at("findings").at(0).contains(field)) << field;
  }
}

TEST(PictureWatch, TellsFrozenBlackAndFlatPicturesFromLiveOnes) {
  const int64_t height = 64, width = 80;
  const auto picture = [&](int seed, int level) {
    std::vector<uint8_t> rgb(static_cast<size_t>(height * width * 3));
    for (size_t i = 0; i < rgb.size(); ++i) {
      rgb[i] = static_cast<uint8_t>(level + (static_cast<int>(i) * 7 + seed) % 3);
    }
    return rgb;
  };
  lerobot::PictureWatch live(height, width), frozen(height, width), black(height, width),
      flat(height, width);
  for (int k = 0; k < 20; ++k) {
    std::vector<uint8_t> scene = picture(0, 40);
    // An object of 12x12 pixels walks through the picture.
    for (int y = 20; y < 32; ++y) {
      for (int x = 0; x < 12; ++x) scene[static_cast<size_t>((y * width + 3 * k + x) * 3)] = 200;
    }
    live.add(scene);
    frozen.add(k < 4 ? scene : picture(k % 3, 40));  // noise of a codec
    black.add(picture(k, 0));
    flat.add(picture(k, 150));
  }
  EXPECT_EQ(live.longest(), 1);
  EXPECT_EQ(live.num_black() + live.num_flat(), 0);
  EXPECT_EQ(frozen.longest(), 16);
  EXPECT_EQ(frozen.longest_begin(), 4);
  EXPECT_EQ(black.num_black(), 20);
  EXPECT_EQ(black.num_flat(), 0);
  EXPECT_EQ(flat.num_flat(), 20);
}

// Cases that this reader answers otherwise than the catalogue.
const std::map<std::string, std::string>& own_answers() {
  static const std::map<std::string, std::string> answers = {
      // A question of the model's camera slots, not of the data: train answers it.
      {"camera-names-not-the-models", "ok"},
  };
  return answers;
}

class ValidateCase : public ::testing::TestWithParam<std::string> {};

TEST_P(ValidateCase, IsAnsweredAsTheCatalogueSays) {
  const testing::BrokenCase broken = testing::build_broken_case(GetParam());
  const auto own = own_answers().find(broken.id);
  const std::string outcome = own == own_answers().end() ? broken.outcome : own->second;
  const std::vector<Finding> findings = relevant(validate_dataset(broken.root).findings, broken.id);
  const std::string text = lines(findings);
  if (outcome == "ok") {
    EXPECT_TRUE(findings.empty()) << text;
  } else {
    ASSERT_FALSE(findings.empty()) << "nothing was found";
    Severity worst = Severity::kInfo;
    for (const Finding& finding : findings) worst = std::max(worst, finding.severity);
    EXPECT_EQ(severity_name(worst), outcome == "error"  ? std::string("ERROR")
                                    : outcome == "warn" ? std::string("WARN")
                                                        : std::string("INFO"))
        << text;
    if (own == own_answers().end()) {
      for (const std::string& word : broken.mentions) EXPECT_THAT(text, HasSubstr(word));
    }
  }
  // Whatever opening finds, the whole check finds as well.
  const std::string whole = lines(validate_dataset(broken.root).findings);
  for (const Finding& finding : check_dataset(broken.root)) {
    EXPECT_THAT(whole, HasSubstr(format_finding(finding)));
  }
  for (const Finding& finding : findings) {
    EXPECT_FALSE(finding.code.empty() || finding.place.empty() || finding.fact.empty()) << text;
  }
  fs::remove_all(broken.root);
}

INSTANTIATE_TEST_SUITE_P(Cases, ValidateCase, ::testing::ValuesIn(testing::broken_case_names()),
                         longship::testing::broken_test_name);

}  // namespace
}  // namespace longship::data
