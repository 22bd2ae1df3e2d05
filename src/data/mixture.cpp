#include "data/mixture.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"

namespace longship::data {

std::vector<int64_t> checked_dims(const std::vector<int64_t>& dims, int64_t width,
                                  const std::string& what) {
  if (dims.empty()) {
    std::vector<int64_t> identity(static_cast<size_t>(width));
    std::iota(identity.begin(), identity.end(), int64_t{0});
    return identity;
  }
  LS_CHECK(static_cast<int64_t>(dims.size()) == width, ConfigError,
           "{} has {} places, the feature has {} dimensions; give one place for each", what,
           dims.size(), width);
  std::set<int64_t> seen;
  for (const int64_t dim : dims) {
    LS_CHECK(dim >= 0 && dim < 1'000'000, ConfigError, "{}: {} is no place; places begin at 0",
             what, dim);
    LS_CHECK(seen.insert(dim).second, ConfigError, "{} gives the place {} to two dimensions", what,
             dim);
  }
  return dims;
}

MixtureDataset::MixtureDataset(std::vector<MixturePart> parts, const std::string& state,
                               const std::string& action)
    : parts_(std::move(parts)) {
  LS_CHECK(!parts_.empty(), ConfigError, "a mixture of no datasets");
  std::set<std::string> names;
  std::vector<std::string> roots;
  for (MixturePart& part : parts_) {
    LS_CHECK(!part.name.empty() && names.insert(part.name).second, ConfigError,
             "data.datasets: two datasets have the name '{}'; give each its own name", part.name);
    part.first_sample = size_;
    part.first_episode = static_cast<int64_t>(episodes_.size());
    for (Episode episode : part.dataset->episodes()) {
      episode.first_sample += size_;
      episodes_.push_back(std::move(episode));
    }
    for (const std::string& task : part.dataset->tasks()) tasks_.push_back(task);
    for (const auto& [name, stats] : part.dataset->stats()) stats_[part.name + "/" + name] = stats;
    size_ += part.dataset->size();
    roots.push_back(part.dataset->root().string());
    if (part.dataset->fps() != parts_.front().dataset->fps()) {
      log::info("{} runs at {} frames per second, {} at {}: a chunk covers another time span",
                part.name, part.dataset->fps(), parts_.front().name, parts_.front().dataset->fps());
    }
  }
  root_ = join(roots, " + ");
  merge_features(state, action);
}

void MixtureDataset::merge_features(const std::string& state, const std::string& action) {
  for (size_t p = 0; p < parts_.size(); ++p) {
    MixturePart& part = parts_[p];
    for (const Feature& feature : part.dataset->features()) {
      Feature copy = feature;
      if (feature.kind == FeatureKind::kNumeric &&
          (feature.name == state || feature.name == action)) {
        std::vector<int64_t>& dims = feature.name == state ? part.state_dims : part.action_dims;
        dims = checked_dims(dims, feature.width(),
                            fmt::format("data.datasets.{}.{}", p,
                                        feature.name == state ? "state_dims" : "action_dims"));
        copy.shape = {*std::max_element(dims.begin(), dims.end()) + 1};
        copy.dim_names.clear();
      }
      const auto known = std::find_if(features_.begin(), features_.end(),
                                      [&](const Feature& f) { return f.name == copy.name; });
      if (known == features_.end()) {
        features_.push_back(std::move(copy));
      } else if (copy.kind == FeatureKind::kNumeric && copy.width() > known->width()) {
        *known = std::move(copy);
      }
    }
  }
}

size_t MixtureDataset::part_of(int64_t sample_id) const {
  LS_CHECK(sample_id >= 0 && sample_id < size_, DataError,
           "sample {} does not exist: the mixture has samples 0 .. {}", sample_id, size_ - 1);
  const auto next =
      std::upper_bound(parts_.begin(), parts_.end(), sample_id,
                       [](int64_t id, const MixturePart& part) { return id < part.first_sample; });
  return static_cast<size_t>(next - parts_.begin() - 1);
}

namespace {

// Cameras that a part does not have are left out: the model's slot stays empty for its samples.
WindowSpec windows_for(const Dataset& dataset, const WindowSpec& windows) {
  WindowSpec out;
  out.columns = windows.columns;
  for (const auto& [camera, offsets] : windows.cameras) {
    if (dataset.find_feature(camera) != nullptr) out.cameras[camera] = offsets;
  }
  return out;
}

template <class Read>
auto named(const MixturePart& part, Read read) {
  try {
    return read();
  } catch (const DataError& error) {
    throw DataError(fmt::format("[{}] {}", part.name, error.what()));
  }
}

}  // namespace

RawSample MixtureDataset::get(int64_t sample_id, const WindowSpec& windows) const {
  const size_t p = part_of(sample_id);
  const MixturePart& part = parts_[p];
  RawSample sample = named(part, [&] {
    return part.dataset->get(sample_id - part.first_sample, windows_for(*part.dataset, windows));
  });
  sample.sample_id = sample_id;
  sample.dataset = static_cast<int64_t>(p);
  return sample;
}

std::vector<RawSample> MixtureDataset::get_batch(std::span<const int64_t> sample_ids,
                                                 const WindowSpec& windows) const {
  std::vector<std::vector<size_t>> places(parts_.size());
  for (size_t i = 0; i < sample_ids.size(); ++i) places[part_of(sample_ids[i])].push_back(i);
  std::vector<RawSample> out(sample_ids.size());
  for (size_t p = 0; p < parts_.size(); ++p) {
    if (places[p].empty()) continue;
    const MixturePart& part = parts_[p];
    std::vector<int64_t> ids;
    for (const size_t i : places[p]) ids.push_back(sample_ids[i] - part.first_sample);
    std::vector<RawSample> samples = named(
        part, [&] { return part.dataset->get_batch(ids, windows_for(*part.dataset, windows)); });
    for (size_t k = 0; k < samples.size(); ++k) {
      RawSample& sample = out[places[p][k]] = std::move(samples[k]);
      sample.sample_id = sample_ids[places[p][k]];
      sample.dataset = static_cast<int64_t>(p);
    }
  }
  return out;
}

PictureStatistics MixtureDataset::picture_statistics() const {
  PictureStatistics sum;
  for (const MixturePart& part : parts_) {
    const PictureStatistics own = part.dataset->picture_statistics();
    sum.pictures_read += own.pictures_read;
    sum.pictures_decoded += own.pictures_decoded;
    sum.packets_decoded += own.packets_decoded;
    sum.seeks += own.seeks;
    sum.decoders_opened += own.decoders_opened;
    sum.decoders_reused += own.decoders_reused;
    sum.decoders_idle += own.decoders_idle;
    sum.indexed_frames += own.indexed_frames;
    sum.index_bytes += own.index_bytes;
    sum.decoding += own.decoding;
  }
  return sum;
}

RawSample MixtureDataset::get_columns(int64_t sample_id, const WindowSpec& windows) const {
  const size_t p = part_of(sample_id);
  const MixturePart& part = parts_[p];
  RawSample sample = named(part, [&] {
    return part.dataset->get_columns(sample_id - part.first_sample,
                                     windows_for(*part.dataset, windows));
  });
  sample.sample_id = sample_id;
  sample.dataset = static_cast<int64_t>(p);
  return sample;
}

std::string_view MixtureDataset::task_of(int64_t sample_id) const {
  const MixturePart& part = parts_[part_of(sample_id)];
  return part.dataset->task_of(sample_id - part.first_sample);
}

std::vector<float> MixtureDataset::column_values(std::string_view name,
                                                 std::span<const int64_t> positions) const {
  std::vector<float> out;
  int64_t width = -1;
  for (const int64_t position : positions) {
    LS_CHECK(position >= 0 && position < static_cast<int64_t>(episodes_.size()), DataError,
             "episode position {} does not exist: the mixture has {} episodes", position,
             episodes_.size());
    const auto next = std::upper_bound(
        parts_.begin(), parts_.end(), position,
        [](int64_t at, const MixturePart& part) { return at < part.first_episode; });
    const MixturePart& part = *(next - 1);
    const int64_t inside = position - part.first_episode;
    const Feature* feature = part.dataset->find_feature(name);
    LS_CHECK(feature != nullptr, DataError, "[{}] dataset {} has no column '{}'", part.name,
             part.dataset->root().string(), name);
    LS_CHECK(width < 0 || width == feature->width(), DataError,
             "column '{}' has {} numbers per row in {} and {} before", name, feature->width(),
             part.name, width);
    width = feature->width();
    const std::vector<float> values =
        named(part, [&] { return part.dataset->column_values(name, std::span(&inside, 1)); });
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

}  // namespace longship::data
