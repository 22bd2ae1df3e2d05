#include "data/mapped_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"

namespace longship::data {

namespace {

using Names = std::vector<std::pair<std::string, std::string>>;

bool is_camera(const Feature& feature) {
  return feature.kind == FeatureKind::kVideo || feature.kind == FeatureKind::kImage;
}

std::string names_of(const Dataset& dataset, bool cameras_only) {
  std::vector<std::string> names;
  for (const Feature& feature : dataset.features()) {
    if (!cameras_only || is_camera(feature)) names.push_back(feature.name);
  }
  return names.empty() ? "nothing" : join(names, ", ");
}

class MappedDataset final : public Dataset {
 public:
  MappedDataset(std::shared_ptr<const Dataset> inner, DatasetMapping mapping)
      : inner_(std::move(inner)), mapping_(std::move(mapping)) {
    rename_keys();
    if (!mapping_.cameras.empty()) choose_cameras();
    for (const Feature& feature : features_) {
      const auto found = inner_->stats().find(native_.at(feature.name));
      if (found != inner_->stats().end()) stats_[feature.name] = found->second;
    }
    for (const auto& [name, stats] : mapping_.stats) replace_stats(name, stats);
  }

  const std::filesystem::path& root() const override { return inner_->root(); }
  std::string format() const override { return inner_->format(); }
  double fps() const override { return inner_->fps(); }
  const std::vector<Feature>& features() const override { return features_; }
  const std::vector<Episode>& episodes() const override { return inner_->episodes(); }
  const std::vector<std::string>& tasks() const override { return inner_->tasks(); }
  const std::map<std::string, FeatureStats>& stats() const override { return stats_; }
  int64_t size() const override { return inner_->size(); }
  std::string_view task_of(int64_t sample_id) const override { return inner_->task_of(sample_id); }

  RawSample get(int64_t sample_id, const WindowSpec& windows) const override {
    return renamed(inner_->get(sample_id, native(windows)), windows);
  }
  PictureStatistics picture_statistics() const override { return inner_->picture_statistics(); }
  std::vector<RawSample> get_batch(std::span<const int64_t> sample_ids,
                                   const WindowSpec& windows) const override {
    std::vector<RawSample> samples = inner_->get_batch(sample_ids, native(windows));
    for (RawSample& sample : samples) sample = renamed(std::move(sample), windows);
    return samples;
  }
  RawSample get_columns(int64_t sample_id, const WindowSpec& windows) const override {
    return renamed(inner_->get_columns(sample_id, native(windows)), windows);
  }
  std::vector<float> column_values(std::string_view name,
                                   std::span<const int64_t> positions) const override {
    return inner_->column_values(native_name(name), positions);
  }

 private:
  void rename_keys();
  void choose_cameras();
  void replace_stats(const std::string& name, const FeatureStats& stats);
  const std::string& native_name(std::string_view name) const;
  WindowSpec native(const WindowSpec& windows) const;
  RawSample renamed(RawSample sample, const WindowSpec& windows) const;

  std::shared_ptr<const Dataset> inner_;
  DatasetMapping mapping_;
  std::vector<Feature> features_;
  std::map<std::string, std::string, std::less<>> native_;  // our name -> the dataset's
  std::map<std::string, FeatureStats> stats_;
};

void MappedDataset::rename_keys() {
  std::set<std::string> ours, theirs;
  for (const auto& [name, source] : mapping_.keys) {
    LS_CHECK(!name.empty() && ours.insert(name).second, ConfigError,
             "{}keys gives '{}' twice, or an empty name", mapping_.key, name);
    LS_CHECK(inner_->find_feature(source) != nullptr, ConfigError,
             "{}keys: '{}' is to be '{}' of dataset {}, which has no such feature; it has {}",
             mapping_.key, name, source, inner_->root().string(), names_of(*inner_, false));
    theirs.insert(source);
  }
  for (const Feature& feature : inner_->features()) {
    for (const auto& [name, source] : mapping_.keys) {
      if (source != feature.name) continue;
      Feature copy = feature;
      copy.name = name;
      features_.push_back(std::move(copy));
      native_[name] = source;
      log::info("{}: {} is {}", inner_->root().string(), name, source);
    }
    if (theirs.contains(feature.name)) continue;
    if (ours.contains(feature.name)) {
      log::info("{}: its own {} is hidden, because {}keys gives that name to another feature",
                inner_->root().string(), feature.name, mapping_.key);
      continue;
    }
    features_.push_back(feature);
    native_[feature.name] = feature.name;
  }
}

void MappedDataset::choose_cameras() {
  std::vector<Feature> kept;
  std::set<std::string> unused;
  for (const Feature& feature : features_) {
    if (is_camera(feature)) {
      unused.insert(feature.name);
    } else {
      kept.push_back(feature);
    }
  }
  std::map<std::string, std::string, std::less<>> native_cameras;
  std::set<std::string> used;
  for (const auto& entry : mapping_.cameras) {
    const std::string &slot = entry.first, &camera = entry.second;
    if (camera.empty()) continue;
    const auto found = std::find_if(features_.begin(), features_.end(), [&](const Feature& f) {
      return f.name == camera && is_camera(f);
    });
    LS_CHECK(found != features_.end(), ConfigError,
             "{}cameras puts '{}' into the slot '{}', but dataset {} has no such camera; it has {}",
             mapping_.key, camera, slot, inner_->root().string(), names_of(*inner_, true));
    LS_CHECK(used.insert(camera).second, ConfigError,
             "{}cameras puts the camera '{}' into two slots", mapping_.key, camera);
    Feature copy = *found;
    copy.name = slot;
    kept.push_back(std::move(copy));
    native_cameras[slot] = native_.at(camera);
    unused.erase(camera);
    log::info("{}: camera slot {} <- {}", inner_->root().string(), slot, native_.at(camera));
  }
  LS_CHECK(!native_cameras.empty(), ConfigError,
           "{}cameras leaves every slot of dataset {} without a picture; its cameras: {}",
           mapping_.key, inner_->root().string(), names_of(*inner_, true));
  for (const std::string& camera : unused) {
    log::info("{}: camera {} is not used", inner_->root().string(), camera);
  }
  features_ = std::move(kept);
  std::erase_if(native_, [&](const auto& entry) {
    return std::none_of(features_.begin(), features_.end(),
                        [&](const Feature& f) { return f.name == entry.first; });
  });
  for (const auto& [slot, camera] : native_cameras) native_[slot] = camera;
}

void MappedDataset::replace_stats(const std::string& name, const FeatureStats& stats) {
  const Feature* feature = find_feature(name);
  if (feature == nullptr) return;  // statistics of a column that this dataset does not have
  for (const auto* values :
       {&stats.min, &stats.max, &stats.mean, &stats.std, &stats.q01, &stats.q99}) {
    LS_CHECK(values->empty() || static_cast<int64_t>(values->size()) == feature->width(), DataError,
             "{}: the statistics of '{}' have {} numbers, the feature of dataset {} has {}; they "
             "belong to another robot",
             stats.source, name, values->size(), inner_->root().string(), feature->width());
  }
  stats_[name] = stats;
}

const std::string& MappedDataset::native_name(std::string_view name) const {
  const auto found = native_.find(name);
  LS_CHECK(found != native_.end(), DataError, "dataset {} has no feature '{}'; it has {}",
           inner_->root().string(), name, names_of(*this, false));
  return found->second;
}

// Two of our names may mean one feature: its offsets are then asked for one list behind the other.
WindowSpec MappedDataset::native(const WindowSpec& windows) const {
  WindowSpec out;
  for (const auto& [name, offsets] : windows.columns) {
    std::vector<int64_t>& target = out.columns[native_name(name)];
    target.insert(target.end(), offsets.begin(), offsets.end());
  }
  for (const auto& [name, offsets] : windows.cameras) {
    std::vector<int64_t>& target = out.cameras[native_name(name)];
    target.insert(target.end(), offsets.begin(), offsets.end());
  }
  return out;
}

template <class T>
std::vector<T> piece(const std::vector<T>& values, size_t begin, size_t size) {
  const auto from = values.begin() + static_cast<std::ptrdiff_t>(begin);
  return {from, from + static_cast<std::ptrdiff_t>(size)};
}

RawSample MappedDataset::renamed(RawSample sample, const WindowSpec& windows) const {
  sample.embodiment = mapping_.embodiment;
  std::map<std::string, WindowValues> columns;
  std::map<std::string, CameraWindow> cameras;
  std::map<std::string, size_t> taken;  // offsets already given away, per feature of the dataset
  for (const auto& [name, offsets] : windows.columns) {
    const std::string& source = native_name(name);
    const auto found = sample.columns.find(source);
    if (found == sample.columns.end()) continue;
    const WindowValues& all = found->second;
    const size_t begin = taken[source], size = offsets.size();
    const auto width = static_cast<size_t>(all.width);
    WindowValues& out = columns[name];
    out.num_offsets = static_cast<int64_t>(size);
    out.width = all.width;
    out.values = piece(all.values, begin * width, size * width);
    out.is_pad = piece(all.is_pad, begin, size);
    taken[source] += size;
  }
  taken.clear();
  for (const auto& [name, offsets] : windows.cameras) {
    const std::string& source = native_name(name);
    const auto found = sample.cameras.find(source);
    if (found == sample.cameras.end()) continue;  // get_columns() reads no pictures
    const size_t begin = taken[source];
    cameras[name] = {piece(found->second.frames, begin, offsets.size()),
                     piece(found->second.is_pad, begin, offsets.size())};
    taken[source] += offsets.size();
  }
  sample.columns = std::move(columns);
  sample.cameras = std::move(cameras);
  return sample;
}

}  // namespace

std::shared_ptr<const Dataset> map_dataset(std::shared_ptr<const Dataset> inner,
                                           DatasetMapping mapping) {
  if (mapping.changes_nothing()) return inner;
  return std::make_shared<MappedDataset>(std::move(inner), std::move(mapping));
}

}  // namespace longship::data
