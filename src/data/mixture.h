#pragma once
// Several datasets as one: their samples numbered one dataset behind the other.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace longship::data {

/// One dataset of a mixture.
struct MixturePart {
  std::shared_ptr<const Dataset> dataset;
  std::string name;  // unique in the mixture; in messages and in the names of statistics
  /// Place of each state and action dimension in the model's vectors; empty: 0 .. width-1.
  std::vector<int64_t> state_dims, action_dims;
  int64_t first_sample = 0;   // filled by the mixture: id of its sample 0
  int64_t first_episode = 0;  // filled by the mixture: position of its first episode
};

/// Read-only and thread-safe as every dataset. Features are those of all parts; a numeric one is as
/// wide as the widest part needs. Values are as each part has them: get() gives columns of that
/// part's width, and of the cameras asked for those that the part has. RawSample::dataset tells the
/// part. Errors of a part begin with its name. Statistics are named "<part>/<feature>".
class MixtureDataset final : public Dataset {
 public:
  /// `state` and `action` are the columns that state_dims and action_dims speak of. Throws
  /// ConfigError for fewer than one part, names that are not unique, dimensions that do not fit the
  /// feature or are listed twice.
  MixtureDataset(std::vector<MixturePart> parts, const std::string& state,
                 const std::string& action);

  const std::vector<MixturePart>& parts() const { return parts_; }
  size_t part_of(int64_t sample_id) const;

  const std::filesystem::path& root() const override { return root_; }
  std::string format() const override { return "mixture"; }
  double fps() const override { return parts_.front().dataset->fps(); }
  const std::vector<Feature>& features() const override { return features_; }
  const std::vector<Episode>& episodes() const override { return episodes_; }
  const std::vector<std::string>& tasks() const override { return tasks_; }
  const std::map<std::string, FeatureStats>& stats() const override { return stats_; }
  int64_t size() const override { return size_; }
  RawSample get(int64_t sample_id, const WindowSpec& windows) const override;
  std::vector<RawSample> get_batch(std::span<const int64_t> sample_ids,
                                   const WindowSpec& windows) const override;
  /// Sums over the parts.
  PictureStatistics picture_statistics() const override;
  RawSample get_columns(int64_t sample_id, const WindowSpec& windows) const override;
  std::string_view task_of(int64_t sample_id) const override;
  using Dataset::column_values;
  /// Parts of the given episodes must have the column in one width.
  std::vector<float> column_values(std::string_view name,
                                   std::span<const int64_t> episode_positions) const override;

 private:
  void merge_features(const std::string& state, const std::string& action);

  std::vector<MixturePart> parts_;
  std::filesystem::path root_;
  std::vector<Feature> features_;
  std::vector<Episode> episodes_;
  std::vector<std::string> tasks_;
  std::map<std::string, FeatureStats> stats_;
  int64_t size_ = 0;
};

/// 0 .. width-1, or `dims` after checking them: `width` places from 0 up, each once. `what` names
/// the key of the recipe. Throws ConfigError.
std::vector<int64_t> checked_dims(const std::vector<int64_t>& dims, int64_t width,
                                  const std::string& what);

}  // namespace longship::data
