// Every value and every picture that the official library returned, through Dataset::get.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/json.h"
#include "data/lerobot/lerobot_dataset.h"
#include "io/safetensors.h"
#include "support/paths.h"

namespace longship::data {
namespace {

using io::DType;
using io::SafetensorsFile;
using io::TensorInfo;

std::vector<double> numbers(const SafetensorsFile& file, const TensorInfo& info) {
  std::vector<double> out(static_cast<size_t>(info.numel()));
  const std::byte* bytes = file.data(info);
  for (size_t i = 0; i < out.size(); ++i) {
    const std::byte* at = bytes + i * static_cast<size_t>(io::dtype_bytes(info.dtype));
    const auto load = [at]<class T>(T value) {
      std::memcpy(&value, at, sizeof value);
      return static_cast<double>(value);
    };
    switch (info.dtype) {
      case DType::kF32:
        out[i] = load(float{});
        break;
      case DType::kI64:
        out[i] = load(int64_t{});
        break;
      case DType::kI32:
        out[i] = load(int32_t{});
        break;
      case DType::kU16:
        out[i] = load(uint16_t{});
        break;
      case DType::kU8:
      case DType::kBool:
        out[i] = load(uint8_t{});
        break;
      default:
        throw std::runtime_error("dtype of " + info.name);
    }
  }
  return out;
}

struct Expected {
  nlohmann::json samples;
  SafetensorsFile tensors;
  std::unique_ptr<Dataset> dataset;

  explicit Expected(const std::string& name)
      : samples(parse_json_file(testing::dataset_path("expected/" + name) / "samples.json")),
        tensors(SafetensorsFile::open(testing::dataset_path("expected/" + name) /
                                      "samples.safetensors")),
        dataset(open_lerobot(testing::dataset_path(name))) {}

  WindowSpec windows(const std::string& window) const {
    WindowSpec spec;
    std::set<std::string> cameras;
    for (const auto& camera : samples["cameras"]) cameras.insert(camera.get<std::string>());
    for (const auto& [key, offsets] : samples["windows"][window]["offsets"].items()) {
      auto& target = cameras.contains(key) ? spec.cameras : spec.columns;
      target[key] = offsets.get<std::vector<int64_t>>();
    }
    // Without a window the library gives the frame itself.
    if (window != "sparse") {
      for (const std::string& camera : cameras)
        spec.cameras.emplace(camera, std::vector<int64_t>{0});
    }
    if (window == "obs1_act50") {
      for (const TensorInfo& info : tensors.tensors()) {
        const std::string prefix = window + "/";
        if (!info.name.starts_with(prefix) || info.name.ends_with("_is_pad") ||
            info.name.ends_with(".frame_ref")) {
          continue;
        }
        spec.columns.emplace(info.name.substr(prefix.size()), std::vector<int64_t>{0});
      }
    }
    return spec;
  }
};

class ExpectedTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(ExpectedTest, EveryValueIsEqual) {
  const auto& [name, window] = GetParam();
  const Expected expected(name);
  const WindowSpec spec = expected.windows(window);
  ASSERT_EQ(expected.dataset->size(), expected.samples["num_frames"].get<int64_t>());
  std::map<std::string, std::vector<double>> values;
  for (const auto& [key, offsets] : spec.columns) {
    for (const std::string suffix : {"", "_is_pad"}) {
      const TensorInfo* info = expected.tensors.find(window + "/" + key + suffix);
      if (info != nullptr) values[key + suffix] = numbers(expected.tensors, *info);
    }
  }
  int64_t num_compared = 0;
  for (size_t s = 0; s < expected.samples["samples"].size(); ++s) {
    const auto& place = expected.samples["samples"][s];
    const RawSample sample = expected.dataset->get_columns(place["index"].get<int64_t>(), spec);
    EXPECT_EQ(sample.episode, place["episode"].get<int64_t>());
    EXPECT_EQ(sample.frame, place["frame"].get<int64_t>());
    EXPECT_EQ(sample.task, expected.samples["tasks"][s].get<std::string>());
    EXPECT_EQ(expected.dataset->task_of(sample.sample_id), sample.task);
    for (const auto& [key, got] : sample.columns) {
      const size_t count = got.values.size();
      ASSERT_EQ(values[key].size(), count * expected.samples["samples"].size()) << key;
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(static_cast<double>(got.values[i]), values[key][s * count + i])
            << key << " sample " << s << " number " << i;
      }
      num_compared += static_cast<int64_t>(count);
      if (!values.contains(key + "_is_pad")) continue;
      for (size_t i = 0; i < got.is_pad.size(); ++i) {
        ASSERT_EQ(got.is_pad[i], values[key + "_is_pad"][s * got.is_pad.size() + i]) << key;
      }
    }
    if (values.contains("timestamp")) {
      EXPECT_EQ(sample.timestamp_s, values["timestamp"][s]);
    }
  }
  EXPECT_GT(num_compared, 100);
}

TEST_P(ExpectedTest, EveryPictureIsEqualBitForBit) {
  const auto& [name, window] = GetParam();
  const Expected expected(name);
  const WindowSpec spec = expected.windows(window);
  int64_t num_compared = 0;
  for (size_t s = 0; s < expected.samples["samples"].size(); ++s) {
    const auto index = expected.samples["samples"][s]["index"].get<int64_t>();
    const RawSample sample = expected.dataset->get(index, spec);
    for (const auto& [camera, got] : sample.cameras) {
      const TensorInfo& frames = expected.tensors.at("frames/" + camera);
      const std::vector<double> refs =
          numbers(expected.tensors, expected.tensors.at(window + "/" + camera + ".frame_ref"));
      const size_t picture_bytes = static_cast<size_t>(frames.numel() / frames.shape[0]);
      const TensorInfo* pads = expected.tensors.find(window + "/" + camera + "_is_pad");
      for (size_t o = 0; o < got.frames.size(); ++o) {
        if (pads != nullptr) {
          ASSERT_EQ(got.is_pad[o], numbers(expected.tensors, *pads)[s * got.frames.size() + o]);
        }
        const double ref = refs[s * got.frames.size() + o];
        if (ref < 0) continue;  // not stored
        const Image& image = *got.frames[o];
        ASSERT_EQ(image.height, frames.shape[1]);
        ASSERT_EQ(image.width, frames.shape[2]);
        ASSERT_EQ(image.rgb.size(), picture_bytes);
        const std::byte* want =
            expected.tensors.data(frames) + static_cast<size_t>(ref) * picture_bytes;
        ASSERT_EQ(std::memcmp(image.rgb.data(), want, picture_bytes), 0)
            << camera << " sample " << s << " offset number " << o;
        ++num_compared;
      }
    }
  }
  if (window != "sparse") {
    EXPECT_GT(num_compared, 20);
  }
}

std::string test_name(const ::testing::TestParamInfo<ExpectedTest::ParamType>& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param);
}

INSTANTIATE_TEST_SUITE_P(
    Datasets, ExpectedTest,
    ::testing::Combine(::testing::Values("pusht_v30", "pusht_v21", "two_cam_v30"),
                       ::testing::Values("hist2_act16", "obs1_act50", "sparse")),
    test_name);

// Pictures that the windows do not reach are stored too: all of them by dataset index.
class StoredPictureTest : public ::testing::TestWithParam<std::string> {};

TEST_P(StoredPictureTest, IsEqualBitForBit) {
  const Expected expected(GetParam());
  for (const std::string& camera : expected.dataset->cameras()) {
    const TensorInfo& frames = expected.tensors.at("frames/" + camera);
    const std::vector<double> index =
        numbers(expected.tensors, expected.tensors.at("frames/" + camera + ".index"));
    const size_t picture_bytes = static_cast<size_t>(frames.numel() / frames.shape[0]);
    WindowSpec spec;
    spec.cameras[camera] = {0};
    for (size_t i = 0; i < index.size(); ++i) {
      const RawSample sample = expected.dataset->get(static_cast<int64_t>(index[i]), spec);
      ASSERT_EQ(std::memcmp(sample.cameras.at(camera).frames[0]->rgb.data(),
                            expected.tensors.data(frames) + i * picture_bytes, picture_bytes),
                0)
          << camera << " " << index[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Datasets, StoredPictureTest,
                         ::testing::Values("pusht_v30", "pusht_v21", "two_cam_v30"));

class StoredStatsTest : public ::testing::TestWithParam<std::string> {};

void expect_near(const std::vector<double>& got, const nlohmann::json& want,
                 const std::string& what) {
  const nlohmann::json flat = want.flatten();
  ASSERT_EQ(got.size(), flat.size()) << what;
  // flatten() sorts its keys as text; walk the nested arrays instead.
  std::vector<double> numbers;
  const std::function<void(const nlohmann::json&)> walk = [&](const nlohmann::json& value) {
    if (value.is_array()) {
      for (const auto& item : value) walk(item);
    } else {
      numbers.push_back(value.is_boolean() ? value.get<bool>() : value.get<double>());
    }
  };
  walk(want);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], numbers[i], 1e-12 * std::max(1.0, std::abs(numbers[i]))) << what;
  }
}

TEST_P(StoredStatsTest, AreTheLibrarysExceptItsOverflownStd) {
  const auto dataset = open_lerobot(testing::dataset_path(GetParam()));
  const nlohmann::json all =
      parse_json_file(testing::dataset_path("expected/" + GetParam()) / "stats.json");
  const nlohmann::json& library = all["library"];
  ASSERT_EQ(dataset->stats().size(), library.size());
  for (const auto& [name, stats] : dataset->stats()) {
    ASSERT_TRUE(library.contains(name)) << name;
    const nlohmann::json& want = library[name];
    expect_near(stats.min, want["min"], name + " min");
    expect_near(stats.max, want["max"], name + " max");
    expect_near(stats.mean, want["mean"], name + " mean");
    EXPECT_EQ(stats.count, want["count"][0].get<int64_t>()) << name;
    if (want.contains("q01")) {
      expect_near(stats.q01, want["q01"], name + " q01");
      expect_near(stats.q99, want["q99"], name + " q99");
    } else {
      EXPECT_TRUE(stats.q01.empty() && stats.q99.empty()) << name;
    }
    const bool wrong = all["library_std_is_wrong"].contains(name);
    if (wrong) {
      EXPECT_TRUE(stats.std.empty()) << name;
    }
    if (!stats.std.empty()) expect_near(stats.std, want["std"], name + " std");
    const Feature* feature = dataset->find_feature(name);
    ASSERT_NE(feature, nullptr);
    if (feature->dtype == "float32") {
      EXPECT_FALSE(stats.std.empty()) << name;
    }
  }
}

TEST_P(StoredStatsTest, ColumnValuesAreTheRows) {
  const auto dataset = open_lerobot(testing::dataset_path(GetParam()));
  const nlohmann::json all =
      parse_json_file(testing::dataset_path("expected/" + GetParam()) / "stats.json");
  for (const std::string name : {"action", "observation.state", "timestamp"}) {
    const std::vector<float> values = dataset->column_values(name);
    const auto width = static_cast<size_t>(dataset->find_feature(name)->width());
    ASSERT_EQ(values.size(), static_cast<size_t>(dataset->size()) * width);
    const nlohmann::json& want = all["from_rows"][name];
    for (size_t d = 0; d < width; ++d) {
      double sum = 0, low = values[d], high = values[d];
      for (size_t i = d; i < values.size(); i += width) {
        sum += values[i];
        low = std::min(low, static_cast<double>(values[i]));
        high = std::max(high, static_cast<double>(values[i]));
      }
      EXPECT_EQ(low, want["min"][d].get<double>());
      EXPECT_EQ(high, want["max"][d].get<double>());
      EXPECT_NEAR(sum / static_cast<double>(dataset->size()), want["mean"][d].get<double>(), 1e-9);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Datasets, StoredStatsTest,
                         ::testing::Values("pusht_v30", "pusht_v21", "two_cam_v30"));

}  // namespace
}  // namespace longship::data
