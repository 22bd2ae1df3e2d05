#include "models/groot/embodiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "data/lerobot/json_text.h"

namespace longship::models {
namespace {

using Slot = std::pair<std::string_view, int64_t>;  // a tag, or a pattern of tags with *

constexpr std::array kN16 = {
    Slot{"oxe_google", 0}, Slot{"oxe_widowx", 1},       Slot{"libero_panda", 2},
    Slot{"unitree_g1", 8}, Slot{"new_embodiment", 10},  Slot{"robocasa_panda_omron", 13},
    Slot{"gr1", 20},       Slot{"behavior_r1_pro", 24},
};

constexpr std::array kN17 = {
    Slot{"simpler_env_google", 0},
    Slot{"simpler_env_widowx", 1},
    Slot{"libero_sim", 2},
    Slot{"new_embodiment", 10},
    Slot{"oxe_droid_relative_eef_relative_joint", 24},
    Slot{"real_g1_relative_eef_relative_joints", 25},
    Slot{"unitree_g1_full_body_with_waist_height_nav_cmd", 25},
    Slot{"real_r1_pro_sharpa_*", 26},
    Slot{"xdof_*", 27},
};

std::span<const Slot> table_of(GrootVersion version) {
  if (version == GrootVersion::kN16) return kN16;
  return kN17;
}

}  // namespace

std::map<std::string, int64_t> read_groot_embodiment_ids(const std::filesystem::path& path,
                                                         int64_t slots) {
  const nlohmann::ordered_json file = data::lerobot::read_json_object(path);
  std::map<std::string, int64_t> out;
  for (const auto& [tag, value] : file.items()) {
    const std::string where = fmt::format("{}: {}", path.string(), printable(tag));
    const int64_t slot = data::lerobot::json_integer(value, where);
    LS_CHECK(slot >= 0 && slot < slots, DataError, "{} is slot {}; the model has 0 .. {}", where,
             slot, slots - 1);
    out[tag] = slot;
  }
  return out;
}

GrootEmbodiment groot_embodiment(GrootVersion version, const std::string& tag,
                                 const std::map<std::string, int64_t>& ids) {
  if (const auto it = ids.find(tag); it != ids.end()) return {it->second, ""};
  std::vector<std::string> known;
  for (const auto& [pattern, slot] : table_of(version)) {
    if (matches_glob(pattern, tag)) return {slot, ""};
    known.emplace_back(pattern);
  }
  for (const auto& [name, slot] : ids) {
    if (std::find(known.begin(), known.end(), name) == known.end()) known.push_back(name);
  }
  return {kGrootNewEmbodiment,
          fmt::format("embodiment '{}' is not known; its layers are those of slot {} "
                      "(new_embodiment); known: {}",
                      printable(tag), kGrootNewEmbodiment, join(known, ", "))};
}

std::map<std::string, int64_t> groot_published_ids(GrootVersion version) {
  std::map<std::string, int64_t> out;
  for (const auto& [tag, slot] : table_of(version)) {
    if (tag.find('*') == std::string_view::npos) out.emplace(tag, slot);
  }
  return out;
}

std::map<std::string, int64_t> groot_checkpoint_ids(const GrootConfig& config) {
  for (const std::filesystem::path& folder :
       {groot_description_folder(config), groot_checkpoint_folder(config)}) {
    const std::filesystem::path table = folder / "embodiment_id.json";
    if (folder.empty() || !std::filesystem::exists(table)) continue;
    return read_groot_embodiment_ids(table, config.sizes().embodiments);
  }
  return {};
}

GrootEmbodiment groot_embodiment(const GrootConfig& config) {
  const int64_t slots = config.sizes().embodiments;
  GrootEmbodiment out =
      groot_embodiment(config.version, config.embodiment, groot_checkpoint_ids(config));
  LS_CHECK(out.slot < slots, ConfigError, "model.embodiment: '{}' is slot {}; the model has {}",
           config.embodiment, out.slot, slots);
  return out;
}

int64_t groot_sample_slot(int64_t embodiment, int64_t own, int64_t slots) {
  if (embodiment == 0) return own;
  LS_CHECK(embodiment < slots, ConfigError,
           "data.datasets: embodiment {} of a dataset; the model has the slots 0 .. {}", embodiment,
           slots - 1);
  return embodiment;
}

std::vector<int64_t> groot_dataset_slots(const GrootConfig& config, const data::Dataset& dataset) {
  const int64_t own = groot_embodiment(config).slot, slots = config.sizes().embodiments;
  std::set<int64_t> out;
  // The episodes of a mixture are of several datasets; samples without columns cost nothing.
  for (const data::Episode& episode : dataset.episodes()) {
    if (episode.length == 0) continue;
    const data::RawSample sample = dataset.get_columns(episode.first_sample, {});
    out.insert(groot_sample_slot(sample.embodiment, own, slots));
  }
  return {out.begin(), out.end()};
}

std::string groot_slot_text(GrootVersion version, int64_t slot) {
  std::vector<std::string> tags;
  for (const auto& [tag, known] : table_of(version)) {
    if (known == slot) tags.emplace_back(tag);
  }
  return tags.empty() ? fmt::format("{}", slot) : fmt::format("{} ({})", slot, join(tags, ", "));
}

}  // namespace longship::models
