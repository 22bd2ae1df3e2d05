// The recorded robot of tests/golden/groot_preprocess/state_action as a dataset, read with a
// recipe's settings: its groups, statistics, pictures and slot through GrootTransform.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/config/load.h"
#include "base/config/yaml.h"
#include "data/augment/albumentations.h"
#include "data/golden_arrays.h"
#include "data/image/patches.h"
#include "groot_toy_tokens.h"
#include "models/groot/transform.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;
using testing::array;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::toy_tokens;

const std::string kCase = "groot_preprocess/state_action/";
constexpr const char* kTag = "new_embodiment";
constexpr double kTolerance = 1e-6;
constexpr int64_t kHorizon = 5;

/// Where groups lie in the robot's columns: not in the order in which the model reads them.
const std::vector<std::string> kStateColumns = {"eef", "gripper", "arm", "joints", "pose"};
const std::vector<std::string> kActionColumns = {"other", "base", "eef", "arm", "gripper"};

struct Slice {
  int64_t begin = 0, end = 0;
};
using Slices = std::map<std::string, Slice>;

Slices slices_of(const io::SafetensorsFile& in, const std::string& kind,
                 const std::vector<std::string>& order) {
  Slices out;
  int64_t at = 0;
  for (const std::string& group : order) {
    const int64_t width = in.at(fmt::format("{}.{}", kind, group)).shape.at(1);
    out[group] = {at, at + width};
    at += width;
  }
  return out;
}

int64_t width_of(const Slices& slices) {
  int64_t width = 0;
  for (const auto& [name, slice] : slices) width = std::max(width, slice.end);
  return width;
}

data::FeatureStats statistics_of(const nlohmann::json& groups, const Slices& slices) {
  data::FeatureStats out;
  const auto column = [&](const char* statistic) {
    std::vector<double> values(static_cast<size_t>(width_of(slices)));
    for (const auto& [name, slice] : slices) {
      const auto part = groups.at(name).at(statistic).get<std::vector<double>>();
      std::copy(part.begin(), part.end(), values.begin() + slice.begin);
    }
    return values;
  };
  out.min = column("min");
  out.max = column("max");
  out.mean = column("mean");
  out.std = column("std");
  out.q01 = column("q01");
  out.q99 = column("q99");
  return out;
}

data::ImagePtr picture_of(const io::SafetensorsFile& file, const std::string& name) {
  const io::TensorInfo& info = file.at(name);
  auto image = std::make_shared<data::Image>();
  image->height = info.shape.at(0);
  image->width = info.shape.at(1);
  image->rgb = array<uint8_t>(file, name);
  return image;
}

/// One episode of kHorizon frames: the recorded state and pictures in all of them, row t of the
/// recorded chunk in frame t. The folder has Isaac's files.
class Robot : public testing::FakeDataset {
 public:
  explicit Robot(const fs::path& folder) {
    const auto in = testing::golden_tensors(kCase + "inputs.safetensors");
    const auto info = testing::golden_json(kCase + "inputs.json");
    const auto statistics = testing::golden_json(kCase + "statistics.json").at(kTag);
    state_slices = slices_of(in, "state", kStateColumns);
    action_slices = slices_of(in, "action", kActionColumns);
    root_path = folder;
    add_column("observation.state", width_of(state_slices), nullptr);
    add_column("action", width_of(action_slices), nullptr);
    for (const char* view : {"front", "wrist"}) {
      add_camera(std::string("observation.images.") + view, 20, 30);
      pictures[std::string("observation.images.") + view] =
          picture_of(in, std::string("image.") + view);
    }
    add_episode(kHorizon);
    task_list = {info.at("text").get<std::string>()};
    stats_map["observation.state"] = statistics_of(statistics.at("state"), state_slices);
    stats_map["action"] = statistics_of(statistics.at("action"), action_slices);
    state_ = rows_of(in, "state", state_slices, 1);
    action_ = rows_of(in, "action", action_slices, kHorizon);
    fs::create_directories(folder / "meta");
    std::ofstream(folder / "meta/modality.json") << modality();
    std::ofstream(folder / "meta/relative_stats_5.json") << statistics.at("relative_action");
  }

  data::RawSample get_columns(int64_t id, const data::WindowSpec& windows) const override {
    data::RawSample sample;
    sample.sample_id = id;
    sample.frame = id;
    sample.task = task_list.front();
    for (const auto& [name, offsets] : windows.columns) {
      const bool is_state = name == "observation.state";
      const std::vector<float>& rows = is_state ? state_ : action_;
      data::WindowValues& values = sample.columns[name];
      values.num_offsets = static_cast<int64_t>(offsets.size());
      values.width = columns.at(name).width;
      for (const int64_t offset : offsets) {
        const int64_t row = is_state ? 0 : std::clamp<int64_t>(id + offset, 0, kHorizon - 1);
        const auto first = rows.begin() + row * values.width;
        values.values.insert(values.values.end(), first, first + values.width);
        values.is_pad.push_back(0);
      }
    }
    return sample;
  }
  data::RawSample get(int64_t id, const data::WindowSpec& windows) const override {
    data::RawSample sample = get_columns(id, windows);
    for (const auto& [name, offsets] : windows.cameras) {
      sample.cameras[name].frames.assign(offsets.size(), pictures.at(name));
      sample.cameras[name].is_pad.assign(offsets.size(), 0);
    }
    return sample;
  }

  Slices state_slices, action_slices;
  std::map<std::string, data::ImagePtr> pictures;  // by camera

 private:
  static std::vector<float> rows_of(const io::SafetensorsFile& in, const std::string& kind,
                                    const Slices& slices, int64_t rows) {
    const int64_t width = width_of(slices);
    std::vector<float> out(static_cast<size_t>(rows * width));
    for (const auto& [name, slice] : slices) {
      const std::vector<float> values = array<float>(in, fmt::format("{}.{}", kind, name));
      const int64_t part = slice.end - slice.begin;
      for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(values.begin() + r * part, part, out.begin() + r * width + slice.begin);
      }
    }
    return out;
  }

  /// The recorded configuration as a dataset's modality.json says it.
  nlohmann::ordered_json modality() const {
    const auto config = testing::golden_json(kCase + "modality_config.json").at(kTag);
    nlohmann::ordered_json out;
    for (const auto& group : config.at("state").at("modality_keys")) {
      const Slice slice = state_slices.at(group);
      out["state"][std::string(group)] = {{"start", slice.begin}, {"end", slice.end}};
    }
    const auto& action = config.at("action");
    for (size_t i = 0; i < action.at("modality_keys").size(); ++i) {
      const std::string group = action.at("modality_keys")[i];
      nlohmann::ordered_json entry = action.at("action_configs")[i];
      entry["start"] = action_slices.at(group).begin;
      entry["end"] = action_slices.at(group).end;
      out["action"][group] = entry;
    }
    for (const auto& view : config.at("video").at("modality_keys")) {
      const std::string name = view;
      out["video"][name] = {{"original_key", "observation.images." + name}};
    }
    return out;
  }

  std::vector<float> state_, action_;
};

/// Patches so small that the towers' processors leave pictures of 16 x 16 as they are.
int64_t patch_of(GrootVersion version) {
  return version == GrootVersion::kN17 ? 1 : 2;
}

/// A recipe's `model:` section with the recorded settings of a combo.
GrootConfig recipe_of(GrootVersion version, const std::string& combo) {
  const auto info = testing::golden_json(kCase + "inputs.json");
  const auto& switches = info.at("combos").at(combo);
  const auto config = testing::golden_json(kCase + "modality_config.json").at(kTag);
  std::vector<std::string> mean_std;
  for (const char* kind : {"state", "action"}) {
    for (const auto& group : config.at(kind).at("mean_std_embedding_keys")) {
      mean_std.push_back(group);
    }
  }
  nlohmann::json model = {
      {"family", version == GrootVersion::kN17 ? "groot_n17" : "groot_n16"},
      {"embodiment", kTag},
      {"max_state_dim", info.at("max_state_dim")},
      {"max_action_dim", info.at("max_action_dim")},
      {"action_horizon", info.at("max_action_horizon")},
      {"shortest_edge", info.at("shortest_image_edge")},
      {"crop_fraction", info.at("crop_fraction")},
      {"use_percentiles", switches.at("use_percentiles")},
      {"clip_outliers", switches.at("clip_outliers")},
      {"relative_actions", switches.at("use_relative_action")},
      {"mean_std_groups", mean_std},
      {"vision_config", {{"patch_size", patch_of(version)}}},
  };
  if (switches.at("apply_sincos_state_encoding")) {
    model["sincos_state_groups"] = config.at("state").at("sin_cos_embedding_keys");
  }
  GrootConfig out(version);
  config::load(config::parse_yaml_text(model.dump(), "recipe.yaml"), out);
  out.data.horizon = kHorizon;
  return out;
}

std::unique_ptr<GrootBatch> batch_of(const GrootTransform& transform, const Robot& robot,
                                     int64_t id = 0,
                                     std::optional<data::TrainDraw> draw = std::nullopt) {
  data::RawSample sample = robot.get(id, transform.windows());
  sample.draw = draw;
  std::vector<std::unique_ptr<Transform::Item>> items;
  items.push_back(transform.prepare(sample));
  auto batch = transform.collate(items);
  return std::unique_ptr<GrootBatch>(dynamic_cast<GrootBatch*>(batch.release()));
}

std::vector<float> numbers(const at::Tensor& tensor) {
  const at::Tensor t = tensor.contiguous();
  return {t.const_data_ptr<float>(), t.const_data_ptr<float>() + t.numel()};
}

std::vector<double> recorded(const io::SafetensorsFile& file, const std::string& name) {
  if (file.at(name).dtype == io::DType::kF64) return array<double>(file, name);
  const std::vector<float> values = array<float>(file, name);
  return {values.begin(), values.end()};
}

void expect_near(const std::vector<float>& got, const std::vector<double>& want,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], kTolerance) << what << " number " << i;
  }
}

/// The recorded groups of a combo behind each other in the order of the model, in rows of `width`.
std::vector<double> packed(const io::SafetensorsFile& want, const std::string& prefix,
                           const std::vector<std::string>& groups, int64_t rows, int64_t width) {
  std::vector<double> out(static_cast<size_t>(rows * width), 0.0);
  int64_t at = 0;
  for (const std::string& group : groups) {
    const io::TensorInfo& info = want.at(prefix + group);
    const std::vector<double> values = recorded(want, info.name);
    for (int64_t r = 0; r < info.shape[0]; ++r) {
      std::copy_n(values.begin() + r * info.shape[1], info.shape[1], out.begin() + r * width + at);
    }
    at += info.shape[1];
  }
  return out;
}

class RecordedRobot : public ::testing::TestWithParam<GrootVersion> {
 protected:
  RecordedRobot()
      : robot_(testing::scratch_dir("groot_robot")),
        want_(testing::golden_tensors(kCase + "expected.safetensors")),
        info_(testing::golden_json(kCase + "inputs.json")) {
    const auto config = testing::golden_json(kCase + "modality_config.json").at(kTag);
    state_groups_ = config.at("state").at("modality_keys").get<std::vector<std::string>>();
    action_groups_ = config.at("action").at("modality_keys").get<std::vector<std::string>>();
  }
  ~RecordedRobot() override { fs::remove_all(robot_.root_path); }

  GrootConfig recipe(const std::string& combo) const { return recipe_of(GetParam(), combo); }

  /// The pictures as the family's vision tower reads them.
  std::vector<float> patches_of(const std::vector<data::Image>& pictures) const {
    const int64_t patch = patch_of(GetParam());
    std::vector<float> out;
    for (const data::Image& picture : pictures) {
      const int64_t count = data::patch_grid(picture.height, picture.width, patch, 2).count();
      const bool is_n17 = GetParam() == GrootVersion::kN17;
      std::vector<float> rows(static_cast<size_t>(count * 3 * patch * patch * (is_n17 ? 2 : 1)));
      if (is_n17) {
        data::merge_block_patches(picture, patch, 2, 2, rows);
      } else {
        data::raster_patches(picture, patch, 2, rows);
      }
      out.insert(out.end(), rows.begin(), rows.end());
    }
    return out;
  }

  Robot robot_;
  io::SafetensorsFile want_;
  nlohmann::json info_;
  std::vector<std::string> state_groups_, action_groups_;
};

TEST_P(RecordedRobot, NumbersOfEveryComboMatchTheReference) {
  const int64_t state_width = info_.at("max_state_dim"), width = info_.at("max_action_dim");
  const int64_t horizon = info_.at("max_action_horizon");
  for (const auto& [combo, switches] : info_.at("combos").items()) {
    const GrootTransform t(recipe(combo), robot_, toy_tokens);
    const auto b = batch_of(t, robot_);
    expect_near(numbers(b->state), packed(want_, combo + ".state.", state_groups_, 1, state_width),
                combo + " state");
    expect_near(numbers(b->actions),
                packed(want_, combo + ".action.", action_groups_, horizon, width),
                combo + " action");
    expect_near(numbers(b->action_mask), recorded(want_, "packed.action_mask"), combo + " mask");
    // And back, from what was clipped and rounded to fp32.
    const at::Tensor raw = t.denormalise_actions(b->actions, b.get());
    const int64_t column_width = width_of(robot_.action_slices);
    ASSERT_EQ(raw.sizes(), (std::vector<int64_t>{1, kHorizon, column_width}));
    for (const auto& [group, slice] : robot_.action_slices) {
      const std::string name = combo + ".action_decoded." + group;
      expect_near(numbers(raw[0].narrow(1, slice.begin, slice.end - slice.begin)),
                  recorded(want_, name), name);
    }
  }
}

TEST_P(RecordedRobot, PackedBatchMatchesTheReference) {
  const GrootTransform t(recipe("relative"), robot_, toy_tokens);
  const auto b = batch_of(t, robot_);
  expect_near(numbers(b->state), recorded(want_, "packed.state"), "packed.state");
  expect_near(numbers(b->actions), recorded(want_, "packed.action"), "packed.action");
  expect_near(numbers(b->action_mask), recorded(want_, "packed.action_mask"), "packed.action_mask");
  EXPECT_EQ(b->embodiment.const_data_ptr<int64_t>()[0], info_.at("embodiment_id").get<int64_t>());
  const std::string text = info_.at("packed_text");
  EXPECT_THAT(t.prompt(robot_.get(0, t.windows())), HasSubstr(text.substr(text.rfind('|') + 1)));
}

TEST_P(RecordedRobot, PicturesStandInTheOrderOfTheModalityFile) {
  const data::Image first = *picture_of(want_, "packed.image0"),
                    second = *picture_of(want_, "packed.image1");
  ASSERT_NE(first.rgb, second.rgb);
  GrootConfig c = recipe("relative");
  const GrootTransform t(c, robot_, toy_tokens);
  EXPECT_THAT(t.views(), ElementsAre(std::pair{"wrist", "observation.images.wrist"},
                                     std::pair{"front", "observation.images.front"}));
  const auto b = batch_of(t, robot_);
  EXPECT_THAT(b->pictures, ElementsAre(2));
  EXPECT_EQ(numbers(b->patches), patches_of({first, second}));
  // The recipe's order comes first.
  c.data.cameras = {{"a", "observation.images.front"}, {"b", "observation.images.wrist"}};
  EXPECT_EQ(numbers(batch_of(GrootTransform(c, robot_, toy_tokens), robot_)->patches),
            patches_of({second, first}));
}

// Upstream replays the draw of a sample's first picture for all others.
TEST_P(RecordedRobot, ViewsOfASampleShareOneDraw) {
  const GrootConfig c = recipe("relative");
  const data::TrainDraw key{5, 7};
  data::AlbumentationsConfig chain;
  chain.shortest_edge = c.shortest_edge;
  chain.crop_fraction = c.crop_fraction;
  const auto changed = [&](const std::string& view, int64_t id) {
    return data::train_picture(*robot_.pictures.at("observation.images." + view), chain,
                               data::draw_albumentations(chain, key, id));
  };
  const GrootTransform t(c, robot_, toy_tokens);
  const std::vector<float> zero = numbers(batch_of(t, robot_, 0, key)->patches);
  EXPECT_EQ(zero, patches_of({changed("wrist", 0), changed("front", 0)}));
  EXPECT_EQ(numbers(batch_of(t, robot_, 3, key)->patches),
            patches_of({changed("wrist", 3), changed("front", 3)}));
  EXPECT_NE(changed("wrist", 0).rgb, changed("wrist", 3).rgb) << "another sample, another draw";
  // One scene in both views stays one scene.
  robot_.pictures["observation.images.front"] = robot_.pictures.at("observation.images.wrist");
  const std::vector<float> same = numbers(batch_of(t, robot_, 0, key)->patches);
  const auto half = same.begin() + static_cast<std::ptrdiff_t>(same.size() / 2);
  EXPECT_TRUE(std::equal(same.begin(), half, half, same.end()));
}

// Without Isaac's file the statistics are computed. The robot has one whole chunk, so minimum,
// maximum and mean are its relative numbers, which the reference recorded as normalised ones.
TEST_P(RecordedRobot, RelativeStatisticsAreThoseOfTheReference) {
  const GrootTransform with_file(recipe("relative_noclip"), robot_, toy_tokens);
  EXPECT_EQ(with_file.own_stats().size(), 3U);
  for (const auto& [key, stats] : with_file.own_stats()) {
    EXPECT_THAT(stats.source, EndsWith("relative_stats_5.json")) << key;
  }
  fs::remove(robot_.root_path / "meta/relative_stats_5.json");
  const GrootTransform computed(recipe("relative_noclip"), robot_, toy_tokens);
  const auto own = computed.own_stats();
  ASSERT_EQ(own.size(), 3U);
  const auto relative =
      testing::golden_json(kCase + "statistics.json").at(kTag).at("relative_action");
  const std::map<std::string, std::string> references = {
      {"arm", "arm"}, {"eef", "eef"}, {"other", "arm"}};
  int64_t compared = 0;
  for (const auto& [group, reference] : references) {
    const Slice a = robot_.action_slices.at(group), s = robot_.state_slices.at(reference);
    const std::string key =
        fmt::format("action[{}:{}] {} observation.state[{}:{}] by step horizon(5)", a.begin, a.end,
                    group == "eef" ? "as a pose of" : "minus", s.begin, s.end);
    ASSERT_TRUE(own.contains(key)) << key;
    const data::FeatureStats& stats = own.at(key);
    EXPECT_EQ(stats.count, 1);
    EXPECT_THAT(stats.source, Not(HasSubstr("relative_stats")));
    const std::vector<double> normal = recorded(want_, "relative_noclip.action." + group);
    const auto low = relative.at(group).at("min").get<std::vector<std::vector<double>>>();
    const auto high = relative.at(group).at("max").get<std::vector<std::vector<double>>>();
    const auto width = static_cast<size_t>(a.end - a.begin);
    ASSERT_EQ(stats.min.size(), normal.size());
    for (size_t i = 0; i < normal.size(); ++i) {
      const double l = low[i / width][i % width], h = high[i / width][i % width];
      if (std::abs(h - l) <= 1e-8 + 1e-5 * std::abs(l)) continue;  // recorded as 0
      ++compared;
      const double value = (normal[i] + 1) / 2 * (h - l) + l;
      for (const auto* statistic : {&stats.min, &stats.max, &stats.mean}) {
        EXPECT_NEAR((*statistic)[i], value, kTolerance) << group << " number " << i;
      }
    }
  }
  EXPECT_GE(compared, 90);
}

INSTANTIATE_TEST_SUITE_P(Both, RecordedRobot,
                         ::testing::Values(GrootVersion::kN16, GrootVersion::kN17),
                         [](const auto& test) {
                           return test.param == GrootVersion::kN17 ? "n17" : "n16";
                         });

}  // namespace
}  // namespace longship::models
