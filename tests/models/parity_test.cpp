#include "models/parity.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/spec.h"
#include "models/tiny_case.h"
#include "support/paths.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;

fs::path copy_case(const std::string& name) {
  const fs::path target = longship::testing::scratch_dir(name);
  fs::copy(longship::testing::golden_path("pi05/tiny_train"), target,
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  for (const auto& entry : fs::recursive_directory_iterator(target)) {
    fs::permissions(entry.path(), fs::perms::owner_all, fs::perm_options::add);
  }
  return target;
}

nlohmann::json edit_case(const fs::path& folder, const std::function<void(nlohmann::json&)>& edit) {
  std::ifstream in(folder / "case.json");
  nlohmann::json doc = nlohmann::json::parse(in);
  in.close();
  edit(doc);
  std::ofstream(folder / "case.json") << doc.dump();
  return doc;
}

TEST(ParityError, IsRelativeToTheLargestReferenceValue) {
  const at::Tensor ref = at::tensor({1.0f, -4.0f}), ours = at::tensor({1.02f, -4.0f});
  const auto [absolute, relative] = parity_error(ours, ref, 1e-6);
  EXPECT_NEAR(absolute, 0.02, 1e-6);
  EXPECT_NEAR(relative, 0.005, 1e-6);
  EXPECT_NEAR(parity_error(ours, ref, 8.0).second, 0.0025, 1e-6);
  EXPECT_TRUE(std::isinf(parity_error(at::tensor({NAN, 0.0f}), ref, 1e-6).second));
}

TEST(ParityMatch, IsAGlob) {
  EXPECT_TRUE(parity_match("grad.*", "grad.a.weight"));
  EXPECT_TRUE(parity_match("*_loss", "action_loss"));
  EXPECT_FALSE(parity_match("loss", "loss_elem"));
  EXPECT_TRUE(parity_match("b?.loss", "b1.loss"));
  EXPECT_FALSE(parity_match("b?.loss", "b.loss"));
}

TEST(ParityCase, FolderWithoutCaseJsonIsAUsageError) {
  try {
    read_parity_case(longship::testing::golden_path("pi05/preprocess"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfig);
    EXPECT_NE(std::string(e.what()).find("case.json"), std::string::npos);
  }
}

TEST(ParityCase, ReadsTolerancesAndLists) {
  const ParityCase c = read_parity_case(longship::testing::golden_path("pi05/tiny_train"));
  EXPECT_EQ(c.family, "pi05");
  EXPECT_DOUBLE_EQ(c.tolerance.loss, 2e-6);
  EXPECT_EQ(c.trajectories.size(), 2u);
  EXPECT_EQ(c.zero_grads.size(), 4u);
}

TEST(ParityRun, RequiredNameThatIsNotProducedFails) {
  const fs::path folder = copy_case("required");
  edit_case(folder, [](nlohmann::json& doc) {
    doc["required"].push_back("act.stream0.layer0.norm1");
    doc["trajectories"] = nlohmann::json::object();
  });
  const ParityReport report = run_parity_case(folder, {}, testing::plain_optimizer);
  EXPECT_FALSE(report.pass());
  EXPECT_NE(format_report(report).find("FAIL (not produced)"), std::string::npos);
}

TEST(ParityRun, MissingTrajectoryFileFails) {
  const fs::path folder = copy_case("trajectory");
  edit_case(folder, [](nlohmann::json& doc) {
    doc["trajectories"] = {{"train_other.json", "a recipe"}};
  });
  const ParityReport report = run_parity_case(folder, {}, testing::plain_optimizer);
  EXPECT_FALSE(report.pass());
  EXPECT_NE(format_report(report).find("the file is missing"), std::string::npos);
}

TEST(ParityRun, TighterToleranceThanRoundingFails) {
  const fs::path folder = copy_case("tight");
  edit_case(folder, [](nlohmann::json& doc) {
    doc["tolerance"]["grads"] = 1e-12;
    doc["trajectories"] = nlohmann::json::object();
  });
  EXPECT_FALSE(run_parity_case(folder, {}, testing::plain_optimizer).pass());
}

TEST(ParityRun, UnknownFamilyIsAFailedCaseWithItsName) {
  const fs::path folder = copy_case("family");
  edit_case(folder, [](nlohmann::json& doc) { doc["family"] = "octo"; });
  const ParityReport report = run_parity_case(folder, {}, testing::plain_optimizer);
  EXPECT_FALSE(report.pass());
  EXPECT_NE(report.rows.at(0).note.find("octo"), std::string::npos);
}

TEST(ParityRun, JsonSaysPassPerCaseAndRow) {
  const fs::path folder = copy_case("json");
  edit_case(folder, [](nlohmann::json& doc) { doc["trajectories"] = nlohmann::json::object(); });
  const ParityReport report = run_parity_case(folder, {}, testing::plain_optimizer);
  const nlohmann::json doc = nlohmann::json::parse(reports_json({report}, {}));
  EXPECT_TRUE(doc.at("pass").get<bool>());
  EXPECT_EQ(doc.at("cases").at(0).at("case"), "tiny_train");
  EXPECT_GT(doc.at("cases").at(0).at("rows").size(), 120u);
}

TEST(Registry, UnknownFamilyGetsASuggestion) {
  EXPECT_EQ(find_family("pi05").name(), "pi05");
  try {
    find_family("pi0.5");
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("pi05"), std::string::npos);
  }
}

}  // namespace
}  // namespace longship::models
