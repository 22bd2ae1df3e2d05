// longship bench data: what it reports and what it refuses.
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/paths.h"
#include "support/process.h"

namespace longship {
namespace {

using ::testing::HasSubstr;
using testing::longship;
using testing::ProcessResult;
using testing::run;

nlohmann::json report_of(std::vector<std::string> arguments, const std::string& name) {
  const std::string file = (testing::scratch_dir(name) / "report.json").string();
  arguments.insert(arguments.begin(), {"bench", "data"});
  arguments.insert(arguments.end(), {"--json", file, "--seconds", "0.2", "--windows", "2"});
  const ProcessResult result = run(longship(arguments));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("samples/s"));
  std::ifstream in(file);
  return nlohmann::json::parse(in);
}

void expect_runs(const nlohmann::json& report, const std::vector<int64_t>& threads) {
  ASSERT_EQ(report["runs"].size(), threads.size());
  for (size_t i = 0; i < threads.size(); ++i) {
    const nlohmann::json& one = report["runs"][i];
    EXPECT_EQ(one["threads"], threads[i]);
    EXPECT_EQ(one["windows"].size(), 2u);
    EXPECT_GT(one["samples_per_s"].get<double>(), 0);
    EXPECT_GT(one["cpu_us_per_sample"].get<double>(), 0);
    EXPECT_GT(one["stages"]["decode"]["cpu_us"].get<double>(), 0);
    EXPECT_GE(one["pictures"]["decoded"].get<double>(), one["pictures"]["read"].get<double>());
  }
  EXPECT_GT(report["peak_rss_mb"].get<double>(), 0);
}

TEST(BenchData, AFolderIsMeasuredWithoutAModel) {
  const auto report = report_of(
      {testing::dataset_path("pusht_v30").string(), "--threads", "0,2", "--batch", "8"}, "folder");
  EXPECT_EQ(report["mode"], "dataset");
  EXPECT_EQ(report["batch"], 8);
  EXPECT_EQ(report["cameras"], 1);
  EXPECT_EQ(report["windows"]["columns"]["action"], 50);
  expect_runs(report, {0, 2});
  for (const auto& one : report["runs"]) {
    // 8 of 2652 samples rarely share a picture.
    EXPECT_NEAR(one["pictures"]["read"].get<double>(), 1, 0.05);
    EXPECT_LT(one["pictures"]["decoded"].get<double>(), 1.7) << "groups of two";
  }
}

TEST(BenchData, ARecipeIsMeasuredThroughItsModel) {
  const auto report = report_of({"tests/apps/two_cameras.yaml", "--threads", "1"}, "recipe");
  EXPECT_EQ(report["mode"], "model");
  EXPECT_EQ(report["family"], "pi05");
  EXPECT_EQ(report["batch"], 2) << "the micro-batch";
  EXPECT_EQ(report["cameras"], 2);
  expect_runs(report, {1});
  EXPECT_GT(report["runs"][0]["stages"]["transform"]["cpu_us"].get<double>(), 0);
  EXPECT_GT(report["runs"][0]["stages"]["collate"]["cpu_us"].get<double>(), 0);
}

TEST(BenchData, DatasetOnlyTakesTheRecipesDataset) {
  const auto report = report_of(
      {"tests/apps/two_cameras.yaml", "--dataset-only", "--threads", "1", "--chunk", "5"}, "only");
  EXPECT_EQ(report["mode"], "dataset");
  EXPECT_EQ(report["windows"]["columns"]["action"], 5);
}

TEST(BenchData, WhatItRefuses) {
  const std::string set = testing::dataset_path("pusht_v30").string();
  const auto refused = [](const std::vector<std::string>& arguments, int code,
                          const std::string& text) {
    const ProcessResult result = run(longship(arguments));
    EXPECT_EQ(result.exit_code, code) << result.output;
    EXPECT_THAT(result.output, HasSubstr(text));
  };
  refused({"bench", "data", set, "--threads", "-1"}, 2, "--threads: -1");
  refused({"bench", "data", set, "--seconds", "0"}, 2, "--seconds: 0");
  refused({"bench", "data", set, "--batch", "0"}, 2, "--batch: 0");
  refused({"bench", "data", set, "train.steps=2"}, 2, "a dataset folder takes no changes");
  refused({"bench", "data", "no_such.yaml"}, 2, "no_such.yaml");
  refused({"bench", "data", testing::scratch_dir("empty_set").string()}, 3, "meta/info.json");
}

TEST(BenchData, NvdecWithoutItsDriverIsRefusedBeforeAnythingIsRead) {
  std::vector<std::string> command =
      longship({"bench", "data", "tests/apps/two_cameras.yaml", "data.decoder=nvdec"});
  command.insert(command.begin(), {"/usr/bin/env", "CUDA_VISIBLE_DEVICES="});
  const ProcessResult result = run(command);
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_THAT(result.output, HasSubstr("data.decoder: nvdec does not work on this machine"));
}

}  // namespace
}  // namespace longship
