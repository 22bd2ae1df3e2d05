#pragma once
// Arrays of a golden case as plain vectors, and an in-memory dataset for tests that need no files.

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "io/safetensors.h"
#include "support/paths.h"

namespace longship::testing {

inline io::SafetensorsFile golden_tensors(const std::string& name) {
  return io::SafetensorsFile::open(golden_path(name));
}

inline nlohmann::json golden_json(const std::string& name) {
  std::ifstream in(golden_path(name));
  return nlohmann::json::parse(in);
}

template <class T>
std::vector<T> array(const io::SafetensorsFile& file, const std::string& name) {
  const io::TensorInfo& info = file.at(name);
  if (info.num_bytes() != static_cast<uint64_t>(info.numel()) * sizeof(T))
    throw std::runtime_error("dtype of " + name);
  std::vector<T> values(static_cast<size_t>(info.numel()));
  std::memcpy(values.data(), file.data(info), info.num_bytes());
  return values;
}

/// Episodes of given lengths with numeric columns computed by a function of (episode, frame,
/// dimension).
class FakeDataset : public data::Dataset {
 public:
  using Value = float (*)(int64_t episode, int64_t frame, int64_t dim);
  struct Column {
    int64_t width = 0;
    Value value = nullptr;
  };

  std::filesystem::path root_path = "fake/dataset";
  std::vector<data::Feature> feature_list;
  std::vector<data::Episode> episode_list;
  std::vector<std::string> task_list;  // episode e has task e % size
  std::map<std::string, data::FeatureStats> stats_map;
  std::map<std::string, Column> columns;
  data::ImagePtr picture;

  void add_column(const std::string& name, int64_t width, Value value) {
    feature_list.push_back({name, data::FeatureKind::kNumeric, "float32", {width}, {}});
    columns[name] = {width, value};
  }
  void add_camera(const std::string& name, int64_t height, int64_t width) {
    feature_list.push_back({name, data::FeatureKind::kVideo, "video", {height, width, 3}, {}});
    auto image = std::make_shared<data::Image>();
    image->height = height;
    image->width = width;
    image->rgb.resize(static_cast<size_t>(height * width * 3));
    for (size_t i = 0; i < image->rgb.size(); ++i)
      image->rgb[i] = static_cast<uint8_t>(i * 7 % 256);
    picture = image;
  }
  void add_episode(int64_t length) {
    data::Episode episode;
    episode.index = static_cast<int64_t>(episode_list.size());
    episode.length = length;
    episode.first_sample = size();
    episode_list.push_back(episode);
  }

  const std::filesystem::path& root() const override { return root_path; }
  std::string format() const override { return "fake"; }
  double fps() const override { return 10; }
  const std::vector<data::Feature>& features() const override { return feature_list; }
  const std::vector<data::Episode>& episodes() const override { return episode_list; }
  const std::vector<std::string>& tasks() const override { return task_list; }
  const std::map<std::string, data::FeatureStats>& stats() const override { return stats_map; }
  int64_t size() const override {
    return episode_list.empty() ? 0 : episode_list.back().first_sample + episode_list.back().length;
  }
  std::string_view task_of(int64_t id) const override {
    return task_list[static_cast<size_t>(locate(id).first) % task_list.size()];
  }
  data::RawSample get_columns(int64_t id, const data::WindowSpec& windows) const override {
    const auto [episode, frame] = locate(id);
    const int64_t length = episode_list[static_cast<size_t>(episode)].length;
    data::RawSample sample;
    sample.sample_id = id;
    sample.episode = episode;
    sample.frame = frame;
    sample.task = std::string(task_of(id));
    for (const auto& [name, offsets] : windows.columns) {
      const Column& column = columns.at(name);
      data::WindowValues& values = sample.columns[name];
      values.num_offsets = static_cast<int64_t>(offsets.size());
      values.width = column.width;
      for (const int64_t offset : offsets) {
        const int64_t t = std::clamp<int64_t>(frame + offset, 0, length - 1);
        values.is_pad.push_back(t != frame + offset);
        for (int64_t d = 0; d < column.width; ++d)
          values.values.push_back(column.value(episode, t, d));
      }
    }
    return sample;
  }
  data::RawSample get(int64_t id, const data::WindowSpec& windows) const override {
    data::RawSample sample = get_columns(id, windows);
    for (const auto& [name, offsets] : windows.cameras) {
      sample.cameras[name].frames.assign(offsets.size(), picture);
      sample.cameras[name].is_pad.assign(offsets.size(), 0);
    }
    return sample;
  }
};

}  // namespace longship::testing
