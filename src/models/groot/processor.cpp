#include "models/groot/processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "data/lerobot/json_text.h"
#include "models/groot/embodiment.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;

/// The tag that stands for a robot of one's own, which no published checkpoint describes.
constexpr std::string_view kOwnRobot = "new_embodiment";

std::string listed(const std::vector<std::string>& tags) {
  std::vector<std::string> out;
  for (const std::string& tag : tags) out.push_back(printable(tag));
  return out.empty() ? "none" : join(out, ", ");
}

/// The file, or empty where it is not used or not there.
fs::path processor_file(const GrootConfig& config) {
  const fs::path folder = groot_description_folder(config);
  if (folder.empty()) return {};
  // Without it the run would silently read other numbers than the one that it goes on from.
  LS_CHECK(fs::exists(folder) && (!config.data.own_checkpoint.empty() || !config.checkpoint ||
                                  fs::exists(*config.checkpoint)),
           ConfigError,
           "model.checkpoint: {} is not there; its files say which numbers and pictures the model "
           "reads. Put it back, or name the groups of your robot in model.modality",
           config.checkpoint.value_or(folder.string()));
  const fs::path file = folder / "processor_config.json";
  return fs::exists(file) ? file : fs::path();
}

int64_t number_of(const data::Dataset& dataset) {
  for (const data::Episode& episode : dataset.episodes()) {
    // A sample without columns costs nothing.
    if (episode.length > 0) return dataset.get_columns(episode.first_sample, {}).embodiment;
  }
  return 0;
}

/// What was done to pictures and texts, against what this run does.
void compare_inputs(const GrootProcessorSettings& s, const GrootConfig& config,
                    const std::string& file) {
  std::vector<std::string> differences;
  const auto differ = [&](const char* key, const auto& there, const char* own, const auto& here) {
    if (there && *there != here) {
      differences.push_back(fmt::format("{} is {}, {} {}", key, *there, own, here));
    }
  };
  differ("shortest_image_edge", s.shortest_edge, "model.shortest_edge", config.shortest_edge);
  differ("crop_fraction", s.crop_fraction, "model.crop_fraction", config.crop_fraction);
  differ("letter_box_transform", s.letterbox, "model.letterbox", config.letterbox);
  differ("use_albumentations", s.albumentations, "here always", true);
  differ("formalize_language", s.formalize_language, "here always", true);
  if (differences.empty()) return;
  log::warn("{}: inputs are made in another way than the checkpoint says: {}", file,
            join(differences, "; "));
}

}  // namespace

GrootRobot groot_robot_of(const GrootConfig& config, const data::Dataset& dataset) {
  const GrootEmbodiment own = groot_embodiment(config);
  const int64_t slot = groot_sample_slot(number_of(dataset), own.slot, config.sizes().embodiments);
  if (slot == own.slot) return {config.embodiment, slot};
  const std::map<std::string, int64_t> ids = groot_checkpoint_ids(config);
  const bool asks = !config.modality || config.statistics == "checkpoint";
  if (const fs::path file = asks ? processor_file(config) : fs::path(); !file.empty()) {
    std::vector<std::string> tags;
    for (const std::string& tag : read_groot_processor_settings(file).tags) {
      const GrootEmbodiment known = groot_embodiment(config.version, tag, ids);
      if (known.warning.empty() && known.slot == slot) tags.push_back(tag);
    }
    LS_CHECK(tags.size() < 2, ConfigError,
             "data.datasets: the embodiment {} of {} is several robots in {}: {}; name the right "
             "one in model.embodiment, or the groups of your robot in model.modality",
             slot, dataset.root().string(), file.string(), listed(tags));
    if (!tags.empty()) return {tags.front(), slot};
  }
  for (const auto& table : {ids, groot_published_ids(config.version)}) {
    for (const auto& [tag, known] : table) {
      if (known == slot) return {tag, slot};
    }
  }
  return {fmt::format("slot_{}", slot), slot};
}

std::optional<GrootProcessor> groot_processor_of(const GrootConfig& config,
                                                 const std::string& tag) {
  if (config.modality) return std::nullopt;
  const fs::path path = processor_file(config);
  if (path.empty()) return std::nullopt;
  GrootProcessor out;
  out.file = path.string();
  out.tag = tag;
  const GrootProcessorSettings settings = read_groot_processor_settings(path);
  const bool described =
      std::find(settings.tags.begin(), settings.tags.end(), tag) != settings.tags.end();
  LS_CHECK(described || tag != config.embodiment || tag == kOwnRobot ||
               !config.data.own_checkpoint.empty(),
           ConfigError,
           "model.embodiment: {}: processor_kwargs.modality_configs has no '{}'; it has: {}; set "
           "model.embodiment to one of them, or name the groups of your robot in model.modality "
           "(the meta/modality.json of your dataset, or a file like it)",
           out.file, printable(tag), listed(settings.tags));
  LS_CHECK(!settings.exclude_state.value_or(false), ConfigError,
           "{}: processor_kwargs.exclude_state is true; a model without state is not supported, "
           "set it to false",
           out.file);
  LS_CHECK(!settings.tactile.value_or(false), ConfigError,
           "{}: processor_kwargs.use_tactile is true; tactile inputs are not supported", out.file);
  compare_inputs(settings, config, out.file);
  if (!described) {
    log::info("{} does not describe '{}': groups are those of the dataset", out.file,
              printable(tag));
    return std::nullopt;
  }
  out.modality = read_groot_modality(path, tag);
  return out;
}

GrootNumbers groot_checkpoint_numbers(const GrootConfig& config) {
  GrootNumbers out;
  const fs::path path = config.modality ? fs::path() : processor_file(config);
  if (path.empty()) return out;
  const GrootProcessorSettings told = read_groot_processor_settings(path);
  out.use_percentiles = told.use_percentiles.value_or(out.use_percentiles);
  out.clip_outliers = told.clip_outliers.value_or(out.clip_outliers);
  out.sincos_state = told.sincos_state.value_or(out.sincos_state);
  out.relative_actions = told.relative_actions.value_or(out.relative_actions);
  return out;
}

std::optional<GrootStatistics> groot_checkpoint_statistics(const GrootConfig& config,
                                                           const std::string& tag) {
  if (config.statistics != "checkpoint") return std::nullopt;
  const fs::path folder = groot_description_folder(config);
  const fs::path path = folder / "statistics.json";
  LS_CHECK(!folder.empty() && fs::exists(path), ConfigError,
           "model.statistics: checkpoint needs the statistics.json of a checkpoint; {}. Set "
           "model.statistics=dataset",
           folder.empty() ? "model.checkpoint names none" : path.string() + " is not there");
  const nlohmann::ordered_json file = data::lerobot::read_json_object(path);
  std::vector<std::string> tags;
  for (const auto& [name, entry] : file.items()) tags.push_back(name);
  LS_CHECK(file.contains(tag), ConfigError,
           "model.statistics: {} has no '{}'; it has: {}; set model.statistics=dataset, or "
           "model.embodiment to one of them",
           path.string(), printable(tag), listed(tags));
  return read_groot_statistics(path, tag);
}

}  // namespace longship::models
