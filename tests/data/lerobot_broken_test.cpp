// Every damaged or awkward dataset of tests/data_sets/broken: found with the right words, or read
// exactly.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "base/error.h"
#include "data/broken_case.h"
#include "data/checks.h"
#include "data/lerobot/lerobot_dataset.h"
#include "support/paths.h"

namespace longship::data {
namespace {

using testing::BrokenCase;

// Cases that this reader answers otherwise than the catalogue: a clear refusal where reading would
// be better still, or no finding where only decoding every picture would give one. Value: the
// outcome here.
const std::map<std::string, std::string>& own_answers() {
  static const std::map<std::string, std::string> answers = {
      // Opening decodes no pictures.
      {"camera-black", "ok"},
      {"camera-frozen", "ok"},
      // A question of the model's camera slots, not of the data.
      {"camera-names-not-the-models", "ok"},
  };
  return answers;
}

Severity severity_of(const std::string& outcome) {
  return outcome == "error"  ? Severity::kError
         : outcome == "warn" ? Severity::kWarn
                             : Severity::kInfo;
}

// The official writer of v3.0 overflows the std of pictures, so this finding is right in every v3.0
// case.
std::vector<Finding> relevant(std::vector<Finding> findings, const std::string& id) {
  if (id == "stats-image-std-overflowed") return findings;
  std::erase_if(findings, [](const Finding& finding) { return finding.code == "image-std"; });
  return findings;
}

std::string lines(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& finding : findings) out += format_finding(finding) + "\n";
  return out;
}

void expect_state(const Dataset& dataset, const BrokenCase& broken) {
  // Bases hold state[t][d] = 100 * episode + t + d / 10 and action = state + 0.01.
  if (broken.id == "types-action-int64" || broken.id == "action-of-40-numbers") return;
  WindowSpec windows;
  windows.columns["observation.state"] = {0};
  windows.columns["action"] = {0};
  for (int64_t id = 0; id < dataset.size(); ++id) {
    const RawSample sample = dataset.get_columns(id, windows);
    const auto base = static_cast<double>(100 * sample.episode + sample.frame);
    const std::vector<float>& state = sample.columns.at("observation.state").values;
    const std::vector<float>& action = sample.columns.at("action").values;
    for (size_t d = 0; d < state.size(); ++d) {
      if (broken.id == "state-constant-column" && d == 3) continue;
      ASSERT_NEAR(state[d], base + 0.1 * static_cast<double>(d), 1e-3) << "sample " << id;
    }
    for (size_t d = 0; d < action.size(); ++d) {
      ASSERT_NEAR(action[d], base + 0.1 * static_cast<double>(d) + 0.01, 2e-3) << "sample " << id;
    }
  }
}

void expect_bar_codes(const Dataset& dataset) {
  WindowSpec windows;
  const std::vector<std::string> cameras = dataset.cameras();
  for (const std::string& camera : cameras) windows.cameras[camera] = {0};
  for (int64_t id = 0; id < dataset.size(); ++id) {
    const RawSample sample = dataset.get(id, windows);
    for (const std::string& camera : cameras) {
      const testing::BarCode code = testing::read_bar_code(*sample.cameras.at(camera).frames[0]);
      ASSERT_EQ(code.frame, sample.frame) << camera << " sample " << id;
      ASSERT_EQ(code.episode, sample.episode) << camera << " sample " << id;
      ASSERT_EQ(code.camera, camera.ends_with("wrist") ? 1 : 0) << camera << " sample " << id;
    }
  }
}

class BrokenCaseTest : public ::testing::TestWithParam<std::string> {};

TEST_P(BrokenCaseTest, IsAnsweredAsTheCatalogueSays) {
  const BrokenCase broken = testing::build_broken_case(GetParam());
  const auto own = own_answers().find(broken.id);
  const std::string outcome = own == own_answers().end() ? broken.outcome : own->second;
  const std::vector<Finding> findings = relevant(check_dataset(broken.root), broken.id);
  const std::string text = lines(findings);
  if (outcome == "ok") {
    EXPECT_TRUE(findings.empty()) << text;
  } else {
    Severity worst = Severity::kInfo;
    for (const Finding& finding : findings) worst = std::max(worst, finding.severity);
    ASSERT_FALSE(findings.empty()) << "nothing was found";
    EXPECT_EQ(worst, severity_of(outcome)) << text;
  }
  if (outcome == "error") {
    try {
      open_lerobot(broken.root);
      ADD_FAILURE() << "opened in spite of\n" << text;
    } catch (const DataError& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      if (own == own_answers().end()) {
        for (const std::string& word : broken.mentions) {
          EXPECT_THAT(error.what(), ::testing::HasSubstr(word));
        }
      } else {
        EXPECT_THAT(error.what(), ::testing::AnyOf(::testing::HasSubstr("observation.images.top"),
                                                   ::testing::HasSubstr("observation.state")));
      }
    }
  } else {
    if (own == own_answers().end()) {
      for (const std::string& word : broken.mentions) {
        EXPECT_THAT(text, ::testing::HasSubstr(word));
      }
    }
    const auto dataset = open_lerobot(broken.root);
    if (broken.samples >= 0) {
      EXPECT_EQ(dataset->size(), broken.samples);
    }
    if (broken.bar_codes_exact) expect_bar_codes(*dataset);
    if (broken.bar_codes_exact && dataset->find_feature("observation.state") != nullptr &&
        dataset->find_feature("observation.state")->width() == 6) {
      expect_state(*dataset, broken);
    }
  }
  std::filesystem::remove_all(broken.root);
}

INSTANTIATE_TEST_SUITE_P(Cases, BrokenCaseTest, ::testing::ValuesIn(testing::broken_case_names()),
                         longship::testing::broken_test_name);

TEST(BrokenCaseDepth, IsRefusedAsAColourCamera) {
  const BrokenCase broken = testing::build_broken_case("depth-ffv1-gray16-mkv");
  const auto dataset = open_lerobot(broken.root);
  WindowSpec windows;
  windows.cameras["observation.images.top"] = {0};
  try {
    dataset->get(13, windows);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("episode 1, frame 1, camera"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("depth"));
  }
  std::filesystem::remove_all(broken.root);
}

TEST(BrokenCaseRanges, TrueOwnerOfTheRowsIsNamed) {
  const BrokenCase broken = testing::build_broken_case("v30-row-ranges-permuted");
  EXPECT_THAT(lines(check_dataset(broken.root)),
              ::testing::HasSubstr("episode 0: declared length 12, but it claims rows 12..18 (7 "
                                   "rows, which belong to episode 1 by column episode_index)"));
  std::filesystem::remove_all(broken.root);
}

TEST(BrokenCaseCatalogue, IsWhole) {
  EXPECT_EQ(testing::broken_case_names().size(), 119u);
  for (const auto& [id, outcome] : own_answers()) {
    EXPECT_THAT(testing::broken_case_names(), ::testing::Contains(id));
  }
}

}  // namespace
}  // namespace longship::data
