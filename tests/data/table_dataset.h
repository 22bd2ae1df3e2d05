#pragma once
// A dataset made of numbers in memory: columns "action" and "observation.state", no pictures.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/dataset.h"

namespace longship::data::testing {

class TableDataset : public Dataset {
 public:
  /// Lengths of the episodes and the width of every column; values come from `value(column,
  /// sample, dimension)`.
  template <class Value>
  TableDataset(std::vector<int64_t> lengths, std::map<std::string, int64_t> widths, Value value) {
    for (const int64_t length : lengths) {
      episodes_.push_back({static_cast<int64_t>(episodes_.size()) + 10, length, size_, {"task"}});
      size_ += length;
    }
    for (const auto& [name, width] : widths) {
      Feature feature;
      feature.name = name;
      feature.dtype = "float32";
      feature.shape = {width};
      features_.push_back(feature);
      for (int64_t i = 0; i < size_; ++i) {
        for (int64_t d = 0; d < width; ++d) values_[name].push_back(value(name, i, d));
      }
    }
  }
  const std::filesystem::path& root() const override { return root_; }
  std::string format() const override { return "table"; }
  double fps() const override { return 10; }
  const std::vector<Feature>& features() const override { return features_; }
  const std::vector<Episode>& episodes() const override { return episodes_; }
  const std::vector<std::string>& tasks() const override { return tasks_; }
  const std::map<std::string, FeatureStats>& stats() const override { return stats_; }
  int64_t size() const override { return size_; }
  std::string_view task_of(int64_t) const override { return tasks_[0]; }
  RawSample get(int64_t id, const WindowSpec& windows) const override {
    return get_columns(id, windows);
  }
  RawSample get_columns(int64_t id, const WindowSpec& windows) const override {
    const auto [position, frame] = locate(id);
    const Episode& e = episodes_[static_cast<size_t>(position)];
    RawSample s;
    s.sample_id = id;
    s.episode = e.index;
    s.frame = frame;
    s.task = "task";
    for (const auto& [name, offsets] : windows.columns) {
      WindowValues& w = s.columns[name];
      w.width = find_feature(name)->width();
      w.num_offsets = static_cast<int64_t>(offsets.size());
      for (const int64_t offset : offsets) {
        const int64_t at = std::clamp<int64_t>(frame + offset, 0, e.length - 1);
        const auto first = values_.at(name).begin() + (e.first_sample + at) * w.width;
        w.values.insert(w.values.end(), first, first + w.width);
        w.is_pad.push_back(at != frame + offset ? 1 : 0);
      }
    }
    return s;
  }

  std::vector<Feature> features_;
  std::map<std::string, FeatureStats> stats_;
  std::map<std::string, std::vector<float>> values_;

 private:
  std::filesystem::path root_ = "table";
  std::vector<Episode> episodes_;
  std::vector<std::string> tasks_ = {"task"};
  int64_t size_ = 0;
};

}  // namespace longship::data::testing
