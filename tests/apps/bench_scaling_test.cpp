// longship bench scaling: a recipe on GPUs that nobody has to own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/paths.h"
#include "support/process.h"

namespace longship {
namespace {

using testing::longship;
using testing::ProcessResult;
using testing::run;

TEST(BenchScaling, EveryStrategyOnEveryNumberOfGpus) {
  const auto root = testing::scratch_dir("bench_scaling");
  const auto file = root / "scaling.json";
  const ProcessResult result =
      run(longship({"bench", "scaling", "configs/pi05/full.yaml", "model.action_dim=14", "--gpus",
                    "8,64", "--step-ms", "477.6", "--json", file.string()}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, ::testing::HasSubstr("64 hsdp"));
  std::ifstream in(file);
  const auto report = nlohmann::json::parse(in);
  EXPECT_THAT(report.dump(), ::testing::HasSubstr("zero1"));
  std::filesystem::remove_all(root);
}

TEST(BenchScaling, RefusesNumbersThatDoNotFit) {
  const ProcessResult result = run(longship(
      {"bench", "scaling", "configs/pi05/full.yaml", "model.action_dim=14", "--gpus", "12"}));
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_THAT(result.output, ::testing::HasSubstr("12"));
}

}  // namespace
}  // namespace longship
