#pragma once
// Raw samples to GR00T batches and normalised actions back to raw units.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/augment/albumentations.h"
#include "data/dataset.h"
#include "models/groot/batch.h"
#include "models/groot/config.h"
#include "models/groot/dataset_groups.h"
#include "models/groot/prompt.h"
#include "models/groot/sidecars.h"
#include "models/spec.h"

namespace longship::models {

/// (view, the dataset's camera) in the order in which the model sees them. Rules in order: data.
/// cameras of the recipe, where a view may also be named by its camera; the views of the checkpoint
/// that describes the robot, or of the modality file; one camera. Anything else throws ConfigError
/// that lists the cameras: an order is never guessed.
std::vector<std::pair<std::string, std::string>> groot_views(const GrootConfig& config,
                                                             const GrootRanges& ranges,
                                                             const data::Dataset& dataset);

class GrootTransform : public Transform {
 public:
  /// Reads feature shapes, cameras, groups and statistics of `dataset`, which is not kept. Throws
  /// ConfigError and DataError.
  GrootTransform(const GrootConfig& config, const data::Dataset& dataset, GrootTokenize tokenize);

  data::WindowSpec windows() const override;
  /// Throws DataError naming episode and frame.
  std::unique_ptr<Item> prepare(const data::RawSample& sample) const override;
  std::string prompt(const data::RawSample& sample) const override;
  /// Returns a GrootBatch on the host.
  std::unique_ptr<Batch> collate(std::span<const std::unique_ptr<Item>> items) const override;
  /// actions [B, rows, columns] normalised, host fp32, with at least data.horizon rows and
  /// action_width() columns -> [B, data.horizon, width of the action column] raw units. Columns
  /// that no group holds are 0.
  at::Tensor denormalise_actions(const at::Tensor& actions,
                                 const Batch* observed = nullptr) const override;
  std::map<std::string, data::FeatureStats> own_stats() const override;
  /// processor_config.json, statistics.json, embodiment_id.json, modality.json: see
  /// groot_sidecars().
  std::vector<std::pair<std::string, std::string>> checkpoint_files(
      std::span<const Described> parts) const override;
  /// Cameras, ranges and every task against the token limit.
  void check_dataset(const data::Dataset& dataset) const override;

  const GrootDatasetGroups& groups() const { return groups_; }
  const std::vector<std::pair<std::string, std::string>>& views() const { return views_; }
  /// Slot of the category-specific layers of samples whose dataset says none.
  int64_t embodiment() const { return embodiment_; }
  int64_t action_width() const { return groups_.processor().action_width(); }

 private:
  std::string task_text(std::string_view task) const;
  /// Tokens of a task with pictures of these tokens each. Throws DataError beyond the token limit.
  std::vector<int64_t> tokens(std::string_view task, std::span<const int64_t> counts) const;
  /// Patches per column and row of a camera's frames of this size.
  std::array<int64_t, 2> grid_of(int64_t height, int64_t width) const;
  /// What is done to samples, with complete statistics of the columns.
  GrootDescription description(const std::map<std::string, data::FeatureStats>& stats) const;
  /// Frames of every view, relative to the sample's.
  const std::vector<int64_t>& frames() const { return groups_.processor().modality().view_offsets; }
  /// Appends a picture's patches and their grid.
  void add_picture(const data::Image& image, const data::RawSample& sample,
                   std::vector<float>& patches, std::vector<std::array<int64_t, 2>>& grids) const;
  bool drops_state(const data::RawSample& sample) const;
  int64_t slot_of(const data::RawSample& sample) const;

  GrootConfig config_;
  std::string dataset_;  // for messages
  GrootSizes sizes_;
  GrootTokenize tokenize_;
  GrootDatasetGroups groups_;
  std::vector<std::pair<std::string, std::string>> views_;
  data::AlbumentationsConfig pictures_;
  int64_t embodiment_ = 0;
  int64_t action_column_width_ = 0;
};

/// A GrootTransform with the tokenizer.json of model.tokenizer, or of the folder of the checkpoint.
/// Throws ConfigError (no tokenizer named, one with more tokens than the model has rows) and
/// DataError.
std::unique_ptr<Transform> make_groot_transform(const GrootConfig& config,
                                                const data::Dataset& dataset);

}  // namespace longship::models
