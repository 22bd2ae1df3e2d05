#include "models/groot/state_action.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "base/error.h"
#include "data/golden_arrays.h"
#include "support/expect_error.h"

namespace longship::models {
namespace {

using testing::array;
using ::testing::ElementsAre;
using testing::expect_error;

const std::string kCase = "groot_preprocess/state_action/";
constexpr double kTolerance = 1e-6;

GrootModality golden_modality() {
  return read_groot_modality(testing::golden_path(kCase + "modality_config.json"),
                             "new_embodiment");
}

GrootStatistics golden_statistics() {
  return read_groot_statistics(testing::golden_path(kCase + "statistics.json"), "new_embodiment");
}

/// The numbers of a tensor of either precision.
GrootValues values_of(const io::SafetensorsFile& file, const std::string& name) {
  const io::TensorInfo& info = file.at(name);
  GrootValues out;
  out.rows = info.shape.at(0);
  out.width = info.shape.at(1);
  out.wide = info.dtype == io::DType::kF64;
  if (out.wide) {
    out.data = array<double>(file, name);
  } else {
    const std::vector<float> values = array<float>(file, name);
    out.data.assign(values.begin(), values.end());
  }
  return out;
}

GrootGroups groups_of(const io::SafetensorsFile& file, const std::string& prefix,
                      const std::vector<std::string>& names) {
  GrootGroups out;
  for (const std::string& name : names) out[name] = values_of(file, prefix + name);
  return out;
}

GrootNumbers numbers_of(const nlohmann::json& combo) {
  GrootNumbers out;
  out.use_percentiles = combo.at("use_percentiles");
  out.clip_outliers = combo.at("clip_outliers");
  out.sincos_state = combo.at("apply_sincos_state_encoding");
  out.relative_actions = combo.at("use_relative_action");
  return out;
}

void expect_near(const GrootValues& got, const GrootValues& want, const std::string& what) {
  ASSERT_EQ(got.rows, want.rows) << what;
  ASSERT_EQ(got.width, want.width) << what;
  EXPECT_EQ(got.wide, want.wide) << what;
  for (size_t i = 0; i < want.data.size(); ++i) {
    EXPECT_NEAR(got.data[i], want.data[i], kTolerance) << what << " number " << i;
  }
}

/// Compares `got` with the recorded tensors whose names begin with `prefix`; none may lack or be
/// too many. Returns how many there are.
size_t expect_groups(const GrootGroups& got, const io::SafetensorsFile& want,
                     const std::string& prefix) {
  size_t recorded = 0;
  for (const io::TensorInfo& info : want.tensors()) {
    if (!info.name.starts_with(prefix)) continue;
    ++recorded;
    const auto it = got.find(info.name.substr(prefix.size()));
    if (it == got.end()) {
      ADD_FAILURE() << info.name << " was not computed";
      continue;
    }
    expect_near(it->second, values_of(want, info.name), info.name);
  }
  EXPECT_EQ(got.size(), recorded) << prefix;
  return recorded;
}

TEST(GrootStateAction, EveryComboMatchesTheReference) {
  const auto in = testing::golden_tensors(kCase + "inputs.safetensors");
  const auto want = testing::golden_tensors(kCase + "expected.safetensors");
  const auto combos = testing::golden_json(kCase + "inputs.json").at("combos");
  ASSERT_GE(combos.size(), 4U);
  const GrootModality modality = golden_modality();
  const GrootGroups state = groups_of(in, "state.", modality.state_groups);
  const GrootGroups action = groups_of(in, "action.", modality.action_groups);
  size_t compared = 0;
  for (const auto& [name, combo] : combos.items()) {
    const GrootStateAction processor(modality, golden_statistics(), numbers_of(combo));
    const GrootGroups normalised = processor.apply_action(action, state);
    compared += expect_groups(processor.apply_state(state), want, name + ".state.");
    compared += expect_groups(normalised, want, name + ".action.");
    compared +=
        expect_groups(processor.unapply_action(normalised, state), want, name + ".action_decoded.");
  }
  size_t recorded = 0;
  for (const io::TensorInfo& info : want.tensors()) recorded += !info.name.starts_with("packed.");
  EXPECT_EQ(compared, recorded);
}

TEST(GrootStateAction, PackedVectorsMatchTheReference) {
  const auto in = testing::golden_tensors(kCase + "inputs.safetensors");
  const auto want = testing::golden_tensors(kCase + "expected.safetensors");
  const auto info = testing::golden_json(kCase + "inputs.json");
  const GrootModality modality = golden_modality();
  const GrootStateAction processor(modality, golden_statistics(),
                                   numbers_of(info.at("combos").at("relative")));
  const int64_t state_width = info.at("max_state_dim"), width = info.at("max_action_dim");
  const int64_t horizon = info.at("max_action_horizon");
  std::vector<float> state(static_cast<size_t>(state_width), 7.0F);
  std::vector<float> action(static_cast<size_t>(horizon * width), 7.0F), mask(action);
  const GrootGroups raw = groups_of(in, "state.", modality.state_groups);
  processor.pack_state(processor.apply_state(raw), state, state_width);
  processor.pack_action(
      processor.apply_action(groups_of(in, "action.", modality.action_groups), raw), action, mask,
      width);
  const auto near = [&](const std::vector<float>& got, const std::string& name) {
    const GrootValues values = values_of(want, name);
    ASSERT_EQ(got.size(), values.data.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], values.data[i], kTolerance) << name;
  };
  near(state, "packed.state");
  near(action, "packed.action");
  near(mask, "packed.action_mask");
}

TEST(GrootStateAction, UnpackTakesGroupsApart) {
  const GrootStateAction processor(golden_modality(), golden_statistics(), {});
  const int64_t width = processor.action_width() + 3;
  std::vector<float> rows(static_cast<size_t>(8 * width));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  const GrootGroups groups = processor.unpack_action(rows, width, 5);
  EXPECT_EQ(groups.at("arm").rows, 5);
  EXPECT_EQ(groups.at("arm").at(1, 0), static_cast<double>(width));
  EXPECT_EQ(groups.at("eef").at(0, 0), 5.0);
  EXPECT_EQ(groups.at("other").at(4, 4), static_cast<double>(4 * width + 22));
  std::vector<float> again(rows.size()), mask(rows.size());
  processor.pack_action(groups, again, mask, width);
  EXPECT_EQ(again[static_cast<size_t>(width)], rows[static_cast<size_t>(width)]);
  EXPECT_EQ(again[static_cast<size_t>(width) - 1], 0.0F);
}

// ---- A small robot, for cases by hand.
// -----------------------------------------------------------

GrootModality small_modality(const GrootActionRule& rule, int64_t horizon) {
  GrootModality m;
  m.state_groups = {"arm"};
  m.action_groups = {"arm"};
  m.rules = {rule};
  for (int64_t k = 0; k < horizon; ++k) m.action_offsets.push_back(k);
  return m;
}

GrootGroupStats range(int64_t width, double low, double high, int64_t steps = 1) {
  GrootGroupStats s;
  s.width = width;
  s.steps = steps;
  s.per_step = steps > 1;
  const auto n = static_cast<size_t>(steps * width);
  s.min = s.q01 = std::vector<double>(n, low);
  s.max = s.q99 = std::vector<double>(n, high);
  s.mean = std::vector<double>(n, 0.5 * (low + high));
  s.std = std::vector<double>(n, high - low);
  return s;
}

GrootStatistics small_statistics(int64_t width, int64_t steps) {
  GrootStatistics s;
  s.source = "stats.json";
  s.state["arm"] = range(width, -2, 2);
  s.action["arm"] = range(width, -2, 2);
  s.relative_action["arm"] = range(width, -4, 4, steps);
  return s;
}

GrootNumbers relative_numbers(bool compose = true) {
  GrootNumbers n;
  n.relative_actions = true;
  n.compose_poses = compose;
  return n;
}

TEST(GrootStateAction, TheLastStateRowIsTheReference) {
  const GrootStateAction p(small_modality({true, false, ""}, 2), small_statistics(1, 2),
                           relative_numbers());
  const std::vector<float> states = {1.0F, 0.5F}, actions = {2.5F, -1.5F};
  const GrootGroups state = {{"arm", GrootValues::of(states, 2, 1)}};
  const GrootGroups out = p.apply_action({{"arm", GrootValues::of(actions, 2, 1)}}, state);
  EXPECT_THAT(out.at("arm").data, ElementsAre(0.5, -0.5));  // (a - 0.5) / 4
  EXPECT_THAT(p.unapply_action(out, state).at("arm").data, ElementsAre(2.5, -1.5));
}

TEST(GrootStateAction, SubtractionOfPosesIsASwitch) {
  const std::vector<float> base = {1, 2, 3, 0, 1, 0, -1, 0, 0},
                           target = {2, 2, 3, 1, 0, 0, 0, 1, 0};
  const GrootModality m = small_modality({true, true, ""}, 1);
  const GrootGroups state = {{"arm", GrootValues::of(base, 1, 9)}};
  const GrootGroups action = {{"arm", GrootValues::of(target, 1, 9)}};
  const GrootStateAction isaac(m, small_statistics(9, 1), relative_numbers());
  // R0 = rows (0 1 0), (-1 0 0), (0 0 1): R0^T (1 0 0) = (0 1 0), R0^T I = its transpose.
  std::vector<double> want = {0, 1, 0, 0, -1, 0, 1, 0, 0};
  GrootGroups out = isaac.apply_action(action, state);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(4 * out.at("arm").data[i], want[i], 1e-12) << i;
  }
  const GrootGroups back = isaac.unapply_action(out, state);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(back.at("arm").data[i], target[i], 1e-12) << i;
  }
  const GrootStateAction subtracts(m, small_statistics(9, 1), relative_numbers(false));
  out = subtracts.apply_action(action, state);
  EXPECT_FALSE(out.at("arm").wide);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(4 * out.at("arm").data[i], target[i] - base[i]) << i;
  }
}

TEST(GrootStateAction, RangesPerStepAreUsedStepByStep) {
  GrootStatistics s = small_statistics(1, 2);
  s.relative_action["arm"].max = {4, 12};
  const GrootStateAction p(small_modality({true, false, ""}, 2), s, relative_numbers());
  const std::vector<float> zero = {0.0F}, actions = {2, 2};
  const GrootGroups out = p.apply_action({{"arm", GrootValues::of(actions, 2, 1)}},
                                         {{"arm", GrootValues::of(zero, 1, 1)}});
  EXPECT_THAT(out.at("arm").data, ElementsAre(0.5, -0.25));
}

TEST(GrootStateAction, ThreadsShareOneProcessor) {
  const GrootStateAction p(small_modality({true, false, ""}, 1), small_statistics(1, 1),
                           relative_numbers());
  std::vector<double> got(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < got.size(); ++t) {
    threads.emplace_back([&p, &got, t] {
      for (int i = 0; i < 200; ++i) {
        const std::vector<float> state = {0.0F}, action = {static_cast<float>(t)};
        got[t] = p.apply_action({{"arm", GrootValues::of(action, 1, 1)}},
                                {{"arm", GrootValues::of(state, 1, 1)}})
                     .at("arm")
                     .data[0];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(got, ElementsAre(0, 0.25, 0.5, 0.75));
}

// ---- Broken inputs.
// ------------------------------------------------------------------------------

TEST(GrootStateAction, MissingStatisticsAreNamed) {
  GrootStatistics s = small_statistics(2, 3);
  s.state["arm"].max.clear();
  const GrootModality m = small_modality({true, false, ""}, 3);
  expect_error<DataError>([&] { GrootStateAction(m, s, {}); },
                          {"stats.json", "state.arm", "'max'"});
  s = small_statistics(2, 3);
  s.action.clear();
  expect_error<DataError>([&] { GrootStateAction(m, s, {}); },
                          {"stats.json", "no action statistics", "'arm'"});
  s = small_statistics(2, 3);
  s.relative_action = {{"leg", range(2, 0, 1, 3)}};
  expect_error<DataError>([&] { GrootStateAction(m, s, relative_numbers()); },
                          {"no relative_action statistics", "'arm'", "leg"});
  // Without relative actions they are not needed.
  GrootStateAction(m, s, {});
  s = small_statistics(2, 3);
  s.action["arm"].min[1] = std::numeric_limits<double>::quiet_NaN();
  expect_error<DataError>([&] { GrootStateAction(m, s, {}); }, {"action.arm", "min[1]", "nan"});
}

TEST(GrootStateAction, RelativeStatisticsOfAnotherHorizonAreRefused) {
  expect_error<DataError>(
      [] {
        GrootStateAction(small_modality({true, false, ""}, 5), small_statistics(2, 4),
                         relative_numbers());
      },
      {"stats.json", "relative_action.arm", "4 steps", "a chunk has 5"});
}

TEST(GrootStateAction, ReferencesMustFit) {
  expect_error<DataError>(
      [] {
        GrootStateAction(small_modality({true, false, "leg"}, 2), small_statistics(2, 2),
                         relative_numbers());
      },
      {"relative to the state group 'leg'", "arm"});
  GrootStatistics s = small_statistics(2, 2);
  s.state["arm"] = range(3, 0, 1);
  expect_error<DataError>(
      [&] {
        GrootStateAction(small_modality({true, false, ""}, 2), s, relative_numbers());
      },
      {"has 2 dimensions", "has 3"});
  expect_error<DataError>(
      [] {
        GrootStateAction(small_modality({true, true, ""}, 2), small_statistics(2, 2),
                         relative_numbers());
      },
      {"a pose has 9 dimensions"});
}

TEST(GrootStateAction, ValuesAreChecked) {
  const GrootStateAction p(small_modality({true, false, ""}, 2), small_statistics(2, 2),
                           relative_numbers());
  std::vector<float> four = {0, 1, 2, 3};
  const GrootGroups state = {{"arm", GrootValues::of({four.data(), 2}, 1, 2)}};
  expect_error<DataError>([&] { p.apply_state({}); }, {"state.arm", "no values"});
  expect_error<DataError>(
      [&] {
        p.apply_state({{"arm", GrootValues::of(four, 1, 4)}});
      },
      {"state.arm", "1 x 4", "rows of 2"});
  expect_error<DataError>(
      [&] {
        p.apply_action({{"arm", GrootValues::of({four.data(), 2}, 1, 2)}}, state);
      },
      {"action.arm", "1 rows", "2 steps"});
  expect_error<DataError>(
      [&] {
        p.apply_action({{"arm", GrootValues::of(four, 2, 2)}}, {});
      },
      {"state.arm", "no values"});
  four[3] = std::numeric_limits<float>::quiet_NaN();
  expect_error<DataError>(
      [&] {
        p.apply_action({{"arm", GrootValues::of(four, 2, 2)}}, state);
      },
      {"action.arm[1] at row 1 is nan"});
  expect_error<DataError>(
      [&] {
        p.apply_state({{"arm", GrootValues::of(std::span(four).subspan(2), 1, 2)}});
      },
      {"state.arm[1] at row 0 is nan"});
}

TEST(GrootStateAction, APoseWithoutDirectionIsRefused) {
  const GrootStateAction p(small_modality({true, true, ""}, 1), small_statistics(9, 1),
                           relative_numbers());
  const std::vector<float> good = {0, 0, 0, 1, 0, 0, 0, 1, 0}, zero = {0, 0, 0, 0, 0, 0, 0, 1, 0},
                           parallel = {0, 0, 0, 1, 0, 0, 2, 0, 0};
  const GrootGroups state = {{"arm", GrootValues::of(good, 1, 9)}};
  for (const auto& bad : {zero, parallel}) {
    expect_error<DataError>(
        [&] {
          p.apply_action({{"arm", GrootValues::of(bad, 1, 9)}}, state);
        },
        {"action.arm at row 0", "no direction"});
    expect_error<DataError>(
        [&] {
          p.apply_action({{"arm", GrootValues::of(good, 1, 9)}},
                         {{"arm", GrootValues::of(bad, 1, 9)}});
        },
        {"action.arm at row 0, its reference"});
  }
}

TEST(GrootStateAction, NumbersAreNeverDropped) {
  const GrootStateAction p(small_modality({}, 2), small_statistics(3, 2), {});
  const std::vector<float> six(6);
  const GrootGroups groups = {{"arm", GrootValues::of(six, 2, 3)}};
  std::vector<float> out(4), mask(4);
  expect_error<ShapeError>([&] { p.pack_action(groups, out, mask, 2); }, {"action.arm", "2 x 2"});
  out.resize(3);
  mask.resize(3);
  expect_error<ShapeError>([&] { p.pack_action(groups, out, mask, 3); }, {"action.arm", "1 x 3"});
}

TEST(GrootStateAction, SinesHaveNoWayBack) {
  GrootModality m = small_modality({}, 1);
  m.sincos_state = {"arm"};
  GrootNumbers n;
  n.sincos_state = true;
  const GrootStateAction p(m, small_statistics(2, 1), n);
  EXPECT_EQ(p.state_width(), 4);
  const std::vector<float> two = {0.25F, -1.0F};
  const GrootGroups out = p.apply_state({{"arm", GrootValues::of(two, 1, 2)}});
  EXPECT_THAT(out.at("arm").data,
              ElementsAre(std::sin(0.25F), std::sin(-1.0F), std::cos(0.25F), std::cos(-1.0F)));
  expect_error<ConfigError>([&] { p.unapply_state(out); }, {"state.arm"});
  const GrootStateAction plain(m, small_statistics(2, 1), {});
  const GrootGroups raw =
      plain.unapply_state(plain.apply_state({{"arm", GrootValues::of(two, 1, 2)}}));
  EXPECT_THAT(raw.at("arm").data, ElementsAre(0.25, -1.0));
}

}  // namespace
}  // namespace longship::models
