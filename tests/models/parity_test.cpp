#include "models/parity.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "io/tensor_io.h"
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

/// The case without its training runs.
void drop_trajectories(const fs::path& folder) {
  for (const char* file : {"train.json", "train_loongforge.json", "train.safetensors"}) {
    fs::remove(folder / file);
  }
  edit_case(folder, [](nlohmann::json& doc) {
    doc["trajectories"] = nlohmann::json::object();
    doc.erase("files");
  });
}

/// Adds a tensor to one of the case's files.
void add_tensor(const fs::path& path, const std::string& name) {
  std::map<std::string, at::Tensor> tensors = io::load_tensors(path);
  tensors[name] = at::tensor({1.0F, 2.0F});
  io::save_tensors(path, {tensors.begin(), tensors.end()});
}

const ParityRow* row_of(const ParityReport& report, const std::string& name) {
  for (const ParityRow& row : report.rows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

/// `name` is the only row that fails, because nothing is compared with it.
void expect_only_unknown(const ParityReport& report, const std::string& name) {
  EXPECT_FALSE(report.pass());
  const ParityRow* row = row_of(report, name);
  ASSERT_NE(row, nullptr) << format_report(report);
  EXPECT_FALSE(row->pass);
  EXPECT_FALSE(row->produced);
  EXPECT_NE(format_report(report).find("FAIL (not compared)"), std::string::npos);
  for (const ParityRow& other : report.rows) EXPECT_TRUE(other.pass || &other == row) << other.name;
}

TEST(ParityRun, RequiredNameThatTheCaseLacksFails) {
  const fs::path folder = copy_case("required");
  drop_trajectories(folder);
  edit_case(folder, [](nlohmann::json& doc) { doc["required"].push_back("act.nowhere"); });
  const ParityReport report = run_parity_case(folder, {}, testing::plain_optimizer);
  EXPECT_FALSE(report.pass());
  EXPECT_NE(format_report(report).find("required, but expected.safetensors does not hold it"),
            std::string::npos);
}

TEST(ParityRun, RecordedArrayThatNobodyKnowsFails) {
  for (const char* file : {"expected", "sample"}) {
    const fs::path folder = copy_case(std::string("unknown_") + file);
    drop_trajectories(folder);
    add_tensor(folder / (std::string(file) + ".safetensors"), "act.of_a_later_recorder");
    expect_only_unknown(run_parity_case(folder, {}, testing::plain_optimizer),
                        "act.of_a_later_recorder");
  }
}

TEST(ParityRun, RecordedNumberThatNobodyKnowsFails) {
  const fs::path folder = copy_case("unknown_number");
  drop_trajectories(folder);
  nlohmann::json doc = nlohmann::json::parse(std::ifstream(folder / "expected.json"));
  doc["more"]["entropy"] = 0.5;
  std::ofstream(folder / "expected.json") << doc.dump();
  expect_only_unknown(run_parity_case(folder, {}, testing::plain_optimizer),
                      "expected.json:more.entropy");
}

TEST(ParityRun, FileThatNobodyReadsFails) {
  const fs::path folder = copy_case("unknown_file");
  drop_trajectories(folder);
  fs::copy_file(folder / "sample.safetensors", folder / "expected_b1.safetensors");
  expect_only_unknown(run_parity_case(folder, {}, testing::plain_optimizer),
                      "expected_b1.safetensors");
}

TEST(ParityRun, InputThatNobodyReadsFails) {
  const fs::path folder = copy_case("unknown_input");
  drop_trajectories(folder);
  add_tensor(folder / "inputs.safetensors", "b0.depth");
  const ParityReport report = run_parity_case(folder, {}, testing::plain_optimizer);
  ASSERT_EQ(report.rows.size(), 1U);
  EXPECT_FALSE(report.pass());
  EXPECT_NE(report.rows.front().note.find("nobody reads the tensor 'b0.depth'"), std::string::npos)
      << report.rows.front().note;
}

TEST(ParityRun, WeightsBehindTheStepsAreJudged) {
  const fs::path folder = copy_case("weights");
  std::map<std::string, at::Tensor> weights = io::load_tensors(folder / "train.safetensors");
  const std::string name = "after20.action_out_proj.weight";
  weights.at(name) = weights.at(name).mul(1.01);
  io::save_tensors(folder / "train.safetensors", {weights.begin(), weights.end()});
  const ParityReport report = run_parity_case(folder, {}, testing::plain_optimizer);
  const ParityRow* row = row_of(report, "train.safetensors:" + name);
  ASSERT_NE(row, nullptr);
  EXPECT_FALSE(row->pass);
  EXPECT_NEAR(row->rel_error, 0.0099, 1e-4);
  for (const ParityRow& other : report.rows) EXPECT_TRUE(other.pass || &other == row) << other.name;
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
  drop_trajectories(folder);
  edit_case(folder, [](nlohmann::json& doc) { doc["tolerance"]["grads"] = 1e-12; });
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
  drop_trajectories(folder);
  const ParityReport report = run_parity_case(folder, {}, testing::plain_optimizer);
  const nlohmann::json doc = nlohmann::json::parse(reports_json({report}, {}));
  EXPECT_TRUE(doc.at("pass").get<bool>());
  EXPECT_EQ(doc.at("cases").at(0).at("case"), "tiny_train");
  EXPECT_GT(doc.at("cases").at(0).at("rows").size(), 120u);
}

// Every element stays or becomes a neighbour, and all three happen.
TEST(ParityMoved, ElementsBecomeNeighbours) {
  at::Tensor value = at::empty({3000}, at::kFloat);
  float* x = value.mutable_data_ptr<float>();
  for (int64_t i = 0; i < 3000; ++i) x[i] = 1.0F + 1e-4F * static_cast<float>(i + 1);
  x[7] = -x[7];
  const at::Tensor moved = parity_moved(value, 1, "weight");
  const float* y = moved.const_data_ptr<float>();
  int64_t down = 0, up = 0;
  for (int64_t i = 0; i < 3000; ++i) {
    if (y[i] == x[i]) continue;
    EXPECT_EQ(y[i], std::nextafter(x[i], y[i] > x[i] ? 10.0F : -10.0F)) << i;
    (y[i] > x[i] ? up : down) += 1;
  }
  for (const int64_t count : {down, up, 3000 - down - up}) EXPECT_NEAR(count, 1000, 150);
}

TEST(ParityMoved, IsDrawnByMemberAndName) {
  const at::Tensor value = at::tensor(std::vector<float>(64, 1.1F));
  const at::Tensor moved = parity_moved(value, 1, "a");
  EXPECT_TRUE(at::equal(moved, parity_moved(value, 1, "a")));
  EXPECT_FALSE(at::equal(moved, parity_moved(value, 2, "a")));
  EXPECT_FALSE(at::equal(moved, parity_moved(value, 1, "b")));
  EXPECT_TRUE(at::equal(value, parity_moved(value, 0, "a")));
  EXPECT_TRUE(at::equal(moved, parity_moved({{"a", value}}, 1, "").at("a")));
}

TEST(ParityMoved, EveryTypeMovesByItsOwnSpacing) {
  for (const auto& [dtype, spacing] :
       {std::pair{at::kDouble, 0x1p-52}, {at::kHalf, 0x1p-10}, {at::kBFloat16, 0x1p-7}}) {
    const at::Tensor value = at::tensor(std::vector<double>(64, 1.5)).to(dtype);
    const at::Tensor moved = parity_moved(value, 1, "a");
    EXPECT_EQ(moved.scalar_type(), dtype);
    EXPECT_EQ(parity_error(moved, value, 1.0).first, spacing) << at::toString(dtype);
  }
  const at::Tensor whole = at::tensor({1, 2, 3});
  EXPECT_TRUE(at::equal(parity_moved(whole, 1, "a"), whole));
}

/// A small fit whose loss has the mean of `frozen` after `growth` more steps of the logistic map at
/// each training step: every one of them doubles a difference.
class MadeUpAdapter : public ParityAdapter {
 public:
  explicit MadeUpAdapter(int64_t growth, float start = 0.2F) : growth_(growth), start_(start) {}

  std::map<std::string, at::Tensor> forward() override { return {}; }
  std::map<std::string, at::Tensor> sample() override { return {}; }
  void move_inputs(uint64_t member) override {
    input_ = parity_moved(kInput, member, "input");
    members.push_back(member);
  }
  std::vector<ParamInfo> begin_trajectory(const std::string&, const std::string&) override {
    step_ = 0;
    weight_ = at::tensor({0.7F, -0.9F, 0.3F}).requires_grad_(true);
    frozen_ = at::empty({16}, at::kFloat);
    for (int64_t i = 0; i < 16; ++i) {
      frozen_.mutable_data_ptr<float>()[i] = start_ + 0.041F * static_cast<float>(i);
    }
    return {{"weight", weight_, ParamRole::kTrainable}, {"frozen", frozen_, ParamRole::kFrozen}};
  }
  at::Tensor train_loss(int64_t) override {
    at::Tensor z = frozen_;
    for (int64_t i = 0; i < growth_ * step_; ++i) z = z.mul(4).mul(z.neg().add(1));
    ++step_;
    return input_.mul(weight_).sum().sub(1).pow(2).add(z.mean());
  }
  ParityTolerance low_precision_tolerance() const override { return {}; }

  std::vector<uint64_t> members;  // of every run, and the way back

 private:
  const at::Tensor kInput = at::tensor({0.3F, 0.6F, -1.1F});
  int64_t growth_, step_ = 0;
  float start_;
  at::Tensor input_ = kInput, weight_, frozen_;
};

/// A recording of `reference` in a folder of its own, and how others are compared with it.
struct MadeUpCase {
  static constexpr int64_t kSteps = 17;

  MadeUpCase(const std::string& name, MadeUpAdapter reference, double loss_factor = 1) {
    c.folder = longship::testing::scratch_dir(name);
    c.family = "made_up";
    c.name = name;
    c.tolerance.train = 1e-4;
    c.trajectories = {{"train.json", "a recipe"}};
    recipe.schedule = "cosine_with_warmup_openpi";
    recipe.peak_lr = 3e-3;
    recipe.warmup_steps = 2;
    recipe.decay_steps = kSteps;
    recipe.weight_decay = 0.1;
    recipe.clip_norm = 100;
    const auto optimizer =
        testing::plain_optimizer(reference.begin_trajectory("train.json", ""), recipe);
    doc["recipe"] = {{"schedule", recipe.schedule}, {"peak_lr", recipe.peak_lr},
                     {"warmup_steps", 2},           {"decay_steps", kSteps},
                     {"weight_decay", 0.1},         {"clip", 100}};
    for (int64_t step = 0; step < kSteps; ++step) {
      at::Tensor loss = reference.train_loss(0);
      loss.backward();
      doc["steps"].push_back(
          {{"loss", loss_factor * loss.item<double>()}, {"lr", optimizer->lr(step)}});
      optimizer->step(step);
    }
  }
  ~MadeUpCase() { fs::remove_all(c.folder); }

  ParityReport report(MadeUpAdapter& ours,
                      const ParityOptimizerFactory& optimizer = testing::plain_optimizer) const {
    std::ofstream(c.folder / "train.json") << doc.dump();
    return run_parity_case(c, ours, {}, optimizer);
  }

  ParityCase c;
  ParityRecipe recipe;
  nlohmann::json doc;
};

/// A recording with gradient norms and, of the trained weight, sum, norm and first values.
struct MadeUpDetails : MadeUpCase {
  explicit MadeUpDetails(const std::string& name) : MadeUpCase(name, MadeUpAdapter(0)) {
    MadeUpAdapter reference(0);
    const std::vector<ParamInfo> parameters = reference.begin_trajectory("train.json", "");
    const auto optimizer = testing::plain_optimizer(parameters, recipe);
    for (int64_t step = 0; step < kSteps; ++step) {
      reference.train_loss(0).backward();
      doc["steps"][static_cast<size_t>(step)]["grad_norm"] = optimizer->step(step);
    }
    const at::Tensor weight = parameters.front().tensor.detach().to(at::kDouble);
    doc["sum_and_l2_after17"]["weight"] = {weight.sum().item<double>(),
                                           weight.norm().item<double>()};
  }
  ParityReport report_of_own() const {
    MadeUpAdapter ours(0);
    return report(ours);
  }
};

TEST(ParityTraining, NormsAndWeightsAreRows) {
  const MadeUpDetails made("details");
  const ParityReport report = made.report_of_own();
  EXPECT_TRUE(report.pass()) << format_report(report);
  EXPECT_EQ(report.rows.size(), 2U * MadeUpCase::kSteps + 1);
  EXPECT_NE(row_of(report, "train.json step 16 grad_norm"), nullptr);
  EXPECT_NE(row_of(report, "train.json:sum_and_l2_after17 weight"), nullptr);
}

TEST(ParityTraining, WrongNormFailsAlone) {
  MadeUpDetails made("details_norm");
  nlohmann::json& norm = made.doc["steps"][3]["grad_norm"];
  norm = norm.get<double>() * 1.001;
  const ParityReport report = made.report_of_own();
  for (const ParityRow& row : report.rows) {
    EXPECT_EQ(row.pass, row.name != "train.json step 3 grad_norm") << row.name;
  }
}

TEST(ParityTraining, WrongWeightFailsAlone) {
  for (const size_t number : {size_t{0}, size_t{1}}) {
    MadeUpDetails made("details_weight");
    nlohmann::json& value = made.doc["sum_and_l2_after17"]["weight"][number];
    value = value.get<double>() + 1e-2;
    const ParityReport report = made.report_of_own();
    for (const ParityRow& row : report.rows) {
      EXPECT_EQ(row.pass, row.name != "train.json:sum_and_l2_after17 weight") << row.name;
    }
  }
}

TEST(ParityTraining, WhatNobodyComparesFails) {
  MadeUpDetails made("details_unknown");
  made.doc["moments_after17"] = {{"weight", {0.5, 0.5}}};
  made.doc["recipe"]["ema_decay"] = 0.99;
  made.doc["steps"][2]["entropy"] = 0.5;
  made.doc["sum_and_l2_after17"]["nowhere"] = {0.5, 0.5};
  made.doc["steps"][2]["loss_fp64"] = 0.5;  // says how the recording was made
  made.doc["max_abs_weight_diff_fp32_fp64"] = {{"20", 1e-5}};
  const ParityReport report = made.report_of_own();
  std::set<std::string> failed;
  for (const ParityRow& row : report.rows) {
    if (!row.pass) failed.insert(row.name);
  }
  EXPECT_EQ(failed, (std::set<std::string>{
                        "train.json:moments_after17", "train.json:recipe.ema_decay",
                        "train.json step *.entropy", "train.json:sum_and_l2_after17 nowhere"}));
}

TEST(ParityRounding, NoMemberRunsWhereEveryStepPasses) {
  const MadeUpCase made("rounding_none", MadeUpAdapter(0));
  MadeUpAdapter ours(0);
  const ParityReport report = made.report(ours);
  EXPECT_TRUE(report.pass()) << format_report(report);
  EXPECT_EQ(report.num_by_rounding(), 0);
  EXPECT_EQ(ours.members, std::vector<uint64_t>{0});
  EXPECT_EQ(format_report(report).find("rounding alone"), std::string::npos);
}

TEST(ParityRounding, WrongDecayOfAWellConditionedRunFails) {
  const MadeUpCase made("rounding_decay", MadeUpAdapter(0));
  MadeUpAdapter ours(0);
  const ParityReport report =
      made.report(ours, [](std::vector<ParamInfo> parameters, ParityRecipe recipe) {
        recipe.weight_decay = 0;
        return testing::plain_optimizer(std::move(parameters), recipe);
      });
  EXPECT_FALSE(report.pass());
  EXPECT_EQ(ours.members, (std::vector<uint64_t>{0, 1, 2, 3, 4, 0}));
  const ParityRow& last = report.rows.back();
  EXPECT_FALSE(last.pass);
  EXPECT_DOUBLE_EQ(last.tolerance, 1e-4);
  ASSERT_TRUE(last.rounding.has_value());
  EXPECT_LT(last.rounding->spread, 1e-6);
  EXPECT_GT(last.rounding->spread, 0);
  EXPECT_NE(format_report(report).find("FAIL (rounding alone moves this run by"),
            std::string::npos);
}

// The recording starts one rounding step away.
TEST(ParityRounding, IllConditionedRunPassesAndSaysBy) {
  const MadeUpCase made("rounding_ill", MadeUpAdapter(1, std::nextafter(0.2F, 1.0F)));
  MadeUpAdapter ours(1);
  const ParityReport report = made.report(ours);
  EXPECT_TRUE(report.pass()) << format_report(report);
  EXPECT_GT(report.num_by_rounding(), 0);
  double spread = 0;
  for (size_t k = 0; k < report.rows.size(); ++k) {
    const ParityRow& row = report.rows[k];
    EXPECT_EQ(row.rounding.has_value(), row.rel_error > 1e-4) << k;
    if (k <= 8) {
      EXPECT_FALSE(row.rounding.has_value()) << k;
    }
    if (!row.rounding) {
      EXPECT_DOUBLE_EQ(row.tolerance, 1e-4);
      continue;
    }
    EXPECT_DOUBLE_EQ(row.rounding->case_tolerance, 1e-4);
    EXPECT_DOUBLE_EQ(row.tolerance, std::max(1e-4, ParityRounding::kFactor * row.rounding->spread));
    EXPECT_GE(row.rounding->spread, spread) << "of all steps up to here";
    spread = row.rounding->spread;
  }
  const std::string text = format_report(report);
  EXPECT_NE(text.find("pass (rounding alone moves this run by"), std::string::npos) << text;
  EXPECT_NE(text.find("the case asks for 1.0e-04"), std::string::npos) << text;
  EXPECT_NE(text.find("not within the case's tolerance"), std::string::npos) << text;
  const nlohmann::json doc = nlohmann::json::parse(reports_json({report}, {}));
  EXPECT_EQ(doc.at("pass_by_rounding"), report.num_by_rounding());
  const nlohmann::json& rows = doc.at("cases").at(0).at("rows");
  EXPECT_TRUE(rows.at(0).at("rounding_spread").is_null());
  const auto by = std::find_if(rows.begin(), rows.end(), [](const nlohmann::json& row) {
    return !row.at("rounding_spread").is_null();
  });
  ASSERT_NE(by, rows.end());
  EXPECT_EQ(by->at("case_tolerance"), 1e-4);
  EXPECT_GT(by->at("rounding_spread").get<double>(), 0);
}

TEST(ParityRounding, ErrorBeyondRoundingFails) {
  const MadeUpCase made("rounding_error", MadeUpAdapter(1), 1.02);
  MadeUpAdapter ours(1);
  const ParityReport report = made.report(ours);
  for (const ParityRow& row : report.rows) EXPECT_FALSE(row.pass) << row.name;
  EXPECT_LT(report.rows.back().tolerance, 0.02);
}

TEST(ParityRounding, RunThatRoundingMovesTooFarIsUnusable) {
  const MadeUpCase made("rounding_cap", MadeUpAdapter(2, std::nextafter(0.2F, 1.0F)));
  MadeUpAdapter ours(2);
  const ParityReport report = made.report(ours);
  EXPECT_FALSE(report.pass());
  EXPECT_EQ(report.num_by_rounding(), 0);
  const ParityRow& last = report.rows.back();
  EXPECT_DOUBLE_EQ(last.tolerance, 1e-4);
  ASSERT_TRUE(last.rounding.has_value());
  EXPECT_GT(last.rounding->spread, ParityRounding::kLargestSpread);
  EXPECT_NE(last.note.find("unusable"), std::string::npos);
}

TEST(ParityRounding, WrongLearningRateStaysWrong) {
  MadeUpCase made("rounding_lr", MadeUpAdapter(1, std::nextafter(0.2F, 1.0F)));
  for (nlohmann::json& step : made.doc["steps"]) {
    step["lr"] = 2 * step["lr"].get<double>() + 1e-3;
  }
  MadeUpAdapter ours(1);
  const ParityReport report = made.report(ours);
  EXPECT_EQ(report.num_by_rounding(), 0);
  for (const ParityRow& row : report.rows) EXPECT_FALSE(row.pass) << row.name;
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
