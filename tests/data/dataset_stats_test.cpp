// Statistics against those of the reference (float64 over all rows, numpy's quantiles).

#include "data/lerobot/dataset_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "data/broken_case.h"
#include "data/lerobot/lerobot_dataset.h"
#include "data/stats.h"
#include "support/paths.h"

namespace longship::data::lerobot {
namespace {

using longship::testing::dataset_path;
using ::testing::HasSubstr;

std::map<std::string, FullStats> by_name(const StatsResult& result) {
  std::map<std::string, FullStats> out;
  for (const FeatureResult& feature : result.features) out[feature.name] = feature.stats;
  return out;
}

std::vector<double> part(const FullStats& stats, const std::string& name) {
  if (name == "min") return stats.min;
  if (name == "max") return stats.max;
  if (name == "mean") return stats.mean;
  if (name == "std") return stats.std;
  for (size_t q = 0; q < kQuantileNames.size(); ++q) {
    if (name == kQuantileNames[q]) return stats.quantiles[q];
  }
  return {};
}

class StatsOf : public ::testing::TestWithParam<const char*> {};

TEST_P(StatsOf, AreExact) {
  const auto expected =
      parse_json_file(dataset_path(std::string("expected/") + GetParam()) / "stats.json");
  StatsRequest request;
  request.pixels = true;
  const StatsResult result = dataset_stats(dataset_path(GetParam()), request);
  EXPECT_TRUE(result.exact);
  const auto stats = by_name(result);
  for (const char* source : {"from_rows", "from_video"}) {
    for (const auto& [feature, entry] : expected.at(source).items()) {
      ASSERT_TRUE(stats.contains(feature)) << feature;
      for (const auto& [name, values] : entry.items()) {
        if (name == "count") {
          EXPECT_EQ(stats.at(feature).count, values.get<int64_t>());
          continue;
        }
        if (name == "pixels") continue;
        const std::vector<double> found = part(stats.at(feature), name);
        ASSERT_EQ(found.size(), values.size()) << feature << " " << name;
        for (size_t d = 0; d < found.size(); ++d) {
          const double want = values[d].get<double>();
          EXPECT_NEAR(found[d], want, 1e-11 + 1e-11 * std::abs(want))
              << feature << " " << name << " " << d;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Datasets, StatsOf, ::testing::Values("pusht_v21", "two_cam_v30"));

TEST(DatasetStats, ThreadsGiveTheSameBits) {
  StatsRequest request;
  request.threads = 1;
  const std::string one = stats_json(dataset_stats(dataset_path("pusht_v21"), request));
  request.threads = 5;
  EXPECT_EQ(stats_json(dataset_stats(dataset_path("pusht_v21"), request)), one);
  request.memory_bytes = 0;
  const std::string sketched = stats_json(dataset_stats(dataset_path("pusht_v21"), request));
  request.threads = 2;
  EXPECT_EQ(stats_json(dataset_stats(dataset_path("pusht_v21"), request)), sketched);
}

TEST(DatasetStats, SketchKeepsItsBound) {
  StatsRequest request;
  const auto exact = by_name(dataset_stats(dataset_path("pusht_v21"), request));
  request.memory_bytes = 0;
  const StatsResult result = dataset_stats(dataset_path("pusht_v21"), request);
  EXPECT_FALSE(result.exact);
  for (const auto& [name, stats] : by_name(result)) {
    EXPECT_EQ(stats.mean, exact.at(name).mean) << name;
    EXPECT_EQ(stats.std, exact.at(name).std) << name;
    EXPECT_EQ(stats.min, exact.at(name).min) << name;
    EXPECT_EQ(stats.max, exact.at(name).max) << name;
    for (size_t q = 0; q < 5; ++q) {
      for (size_t d = 0; d < stats.mean.size(); ++d) {
        const double want = exact.at(name).quantiles[q][d];
        EXPECT_NEAR(stats.quantiles[q][d], want, std::abs(want) * 0x1p-12 + 1e-37)
            << name << " " << kQuantileNames[q];
      }
    }
  }
}

TEST(ValueSketch, HoldsForEverySizeAndSign) {
  std::vector<double> values;
  ValueSketch sketch, a, b;
  for (uint64_t i = 0; i < 20000; ++i) {
    // Sizes from 1e-30 to 1e30.
    const double size = std::pow(10.0, static_cast<double>(i % 61) - 30);
    const double value =
        size * (1 + static_cast<double>(i * 2654435761U % 1000) / 1000) * (i % 2 == 0 ? 1 : -1);
    values.push_back(static_cast<double>(static_cast<float>(value)));
    sketch.add(value);
    (i % 3 == 0 ? a : b).add(value);
  }
  std::sort(values.begin(), values.end());
  b.merge(a);
  for (int64_t rank = 0; rank < 20000; rank += 97) {
    const double want = values[static_cast<size_t>(rank)];
    EXPECT_NEAR(sketch.at_rank(rank), want, std::abs(want) * 0x1p-12) << rank;
    EXPECT_EQ(b.at_rank(rank), sketch.at_rank(rank));
  }
}

// The definition, written out: chunks of every frame, clamped to the episode, minus the state.
std::vector<float> chunk_rows(const Dataset& dataset, int64_t horizon,
                              const std::vector<bool>& mask) {
  WindowSpec windows;
  windows.columns["observation.state"] = {0};
  for (int64_t h = 0; h < horizon; ++h) windows.columns["action"].push_back(h);
  std::vector<float> rows;
  for (int64_t id = 0; id < dataset.size(); ++id) {
    const RawSample sample = dataset.get_columns(id, windows);
    const std::vector<float>& state = sample.columns.at("observation.state").values;
    const WindowValues& action = sample.columns.at("action");
    for (size_t i = 0; i < action.values.size(); ++i) {
      const size_t d = i % static_cast<size_t>(action.width);
      rows.push_back(action.values[i] - (d < mask.size() && mask[d] ? state[d] : 0.0F));
    }
  }
  return rows;
}

TEST(DatasetStats, RelativeChunksAreThoseOfTheDefinitionAndOfOpenpi) {
  const auto dataset = open_lerobot(dataset_path("two_cam_v30"));
  StatsRequest request;
  request.horizon = 16;
  request.delta_mask = parse_delta_mask("6,-1,6,-1");
  ASSERT_EQ(request.delta_mask.size(), 14u);
  const auto stats = by_name(dataset_stats(dataset_path("two_cam_v30"), request)).at("action");
  const std::vector<float> rows = chunk_rows(*dataset, 16, request.delta_mask);
  const FeatureStats want = exact_stats(rows, 14, "definition");
  RunningStats openpi(14);
  for (size_t i = 0; i < rows.size(); i += 16 * 14 * 32) {
    openpi.update(std::span(rows).subspan(i, std::min<size_t>(16 * 14 * 32, rows.size() - i)));
  }
  const FeatureStats estimate = openpi.result();
  EXPECT_EQ(stats.count, 16 * 790);
  for (size_t d = 0; d < 14; ++d) {
    EXPECT_EQ(stats.min[d], want.min[d]);
    EXPECT_EQ(stats.max[d], want.max[d]);
    EXPECT_NEAR(stats.mean[d], want.mean[d], 1e-12);
    EXPECT_NEAR(stats.std[d], want.std[d], 1e-12);
    EXPECT_NEAR(stats.quantiles[0][d], want.q01[d], 1e-12);
    EXPECT_NEAR(stats.quantiles[4][d], want.q99[d], 1e-12);
    // openpi's quantiles are edges of 5000 bins, and counts move to other bins with every batch
    // that widens the range: a check of what is measured, not of the last digits.
    const double bin = (want.max[d] - want.min[d]) / 5000;
    EXPECT_NEAR(stats.quantiles[0][d], estimate.q01[d], 100 * bin + 1e-9) << d;
    EXPECT_NEAR(stats.quantiles[4][d], estimate.q99[d], 100 * bin + 1e-9) << d;
  }
}

TEST(DatasetStats, NonFiniteRowsAreLeftOutAndCounted) {
  const auto broken = longship::testing::build_broken_case("nan-in-action");
  const auto stats = by_name(dataset_stats(broken.root, {})).at("action");
  EXPECT_EQ(stats.count, 27);
  EXPECT_EQ(stats.skipped, 1);
  for (const double value : stats.mean) EXPECT_TRUE(std::isfinite(value));
}

TEST(DatasetStats, WrongRequestsNameTheOption) {
  const auto expect = [](StatsRequest request, const char* text) {
    try {
      dataset_stats(dataset_path("broken/base_v21"), request);
      ADD_FAILURE() << "no error about " << text;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  };
  StatsRequest request;
  request.columns = {"acton"};
  expect(request, "--columns");
  request = {};
  request.delta_mask = {true};
  expect(request, "give --horizon");
  request.horizon = 4;
  request.delta_mask = std::vector<bool>(7, true);
  expect(request, "has 7 dimensions, 'action' has 6");
  EXPECT_THROW(parse_delta_mask("6,,1"), ConfigError);
  EXPECT_THROW(parse_delta_mask("x"), ConfigError);
  EXPECT_THROW(parse_delta_mask("0"), ConfigError);
}

}  // namespace
}  // namespace longship::data::lerobot
