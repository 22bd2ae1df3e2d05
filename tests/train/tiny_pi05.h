#pragma once
// Runs of configs/pi05/tiny_test.yaml over the PushT episodes, in a scratch folder of the test.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/log.h"
#include "models/spec.h"
#include "support/paths.h"
#include "train/recipe.h"
#include "train/session.h"
#include "train/trainer.h"

namespace longship::train::testing {

class TinyPi05 : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ =
        longship::testing::scratch_dir(std::string(info->test_suite_name()) + "_" + info->name());
  }
  void TearDown() override {
    log::init(log::Level::kInfo);
    std::filesystem::remove_all(root_);
  }
  /// The recipe of the run `name`.
  Recipe recipe(const std::string& name, const std::vector<std::string>& overrides = {}) {
    const std::filesystem::path source = longship::testing::source_root();
    std::vector<std::string> all = {
        "output_dir=" + (root_ / name).string(),
        "data.datasets.0.path=" + longship::testing::dataset_path("pusht_v30").string(),
        "model.tokenizer=" + (source / "data/tokenizers/pi05_demo.model").string(),
        "train.threads=1"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return load_recipe(source / "configs/pi05/tiny_test.yaml", all, &models::find_family);
  }
  TrainOutcome run(const std::string& name, const std::vector<std::string>& overrides = {}) {
    const Recipe r = recipe(name, overrides);
    TrainOptions options;
    options.quiet = true;
    return train(r, open_dataset(r), options, &models::find_family);
  }
  std::filesystem::path root_;
};

}  // namespace longship::train::testing
