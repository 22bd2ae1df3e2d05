#pragma once
// A toy robot of two groups, its dataset, and a checkpoint whose files describe it.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "data/golden_arrays.h"
#include "data/stats.h"
#include "groot_toy_tokens.h"
#include "models/groot/transform.h"
#include "support/paths.h"

namespace longship::models::testing {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using longship::testing::toy_tokens;
using Files = std::vector<std::pair<std::string, std::string>>;

inline constexpr int64_t kHorizon = 3;

inline void write(const fs::path& folder, const std::string& name, const std::string& text) {
  fs::create_directories(folder);
  std::ofstream(folder / name) << text;
}

inline fs::path written(const std::string& folder, const Files& files) {
  const fs::path out = longship::testing::scratch_dir(folder);
  for (const auto& [name, text] : files) write(out, name, text);
  return out;
}

inline Json read(const fs::path& path) {
  std::ifstream in(path);
  return Json::parse(in);
}

inline std::string text_of(const Files& files, const std::string& name) {
  for (const auto& [file, text] : files) {
    if (file == name) return text;
  }
  return {};
}

/// What `action` logs.
template <class Action>
std::string logged(Action&& action) {
  log::init();
  ::testing::internal::CaptureStderr();
  action();
  log::flush();
  return ::testing::internal::GetCapturedStderr();
}

inline GrootConfig config(GrootVersion version = GrootVersion::kN16) {
  GrootConfig c(version);
  c.data.horizon = kHorizon;
  c.shortest_edge = 64;
  c.tune_top_llm_layers = 0;
  return c;
}

inline const char* const kPlaces = R"({
  "state": {"spare": {"start": 2, "end": 4}, "gripper": {"start": 4, "end": 5},
            "arm": {"start": 0, "end": 2}},
  "action": {"gripper": {"start": 3, "end": 4}, "arm": {"start": 0, "end": 2},
             "spare": {"start": 2, "end": 3}},
  "video": {"front": {}, "side": {"original_key": "observation.images.wrist"}}})";

inline longship::testing::FakeDataset dataset(
    const std::string& places = kPlaces, const std::string& folder = "groot_sidecars_dataset") {
  longship::testing::FakeDataset d;
  d.add_column("action", 4, [](int64_t e, int64_t t, int64_t i) {
    return static_cast<float>(
        std::sin(0.3 * static_cast<double>(t + 2 * i) + static_cast<double>(e)));
  });
  d.add_column("observation.state", 5, [](int64_t e, int64_t t, int64_t i) {
    return static_cast<float>(
        std::cos(0.2 * static_cast<double>(t * (i + 1)) + static_cast<double>(e)));
  });
  d.add_camera("observation.images.front", 40, 60);
  d.add_camera("observation.images.wrist", 40, 60);
  d.add_episode(9);
  d.add_episode(7);
  d.task_list = {"Pick up, the bowl!"};
  d.root_path = longship::testing::scratch_dir(folder);
  if (!places.empty()) write(d.root_path / "meta", "modality.json", places);
  return d;
}

inline const char* const kDescribed = R"({"processor_class": "x", "processor_kwargs": {
  "use_percentiles": true, "clip_outliers": false, "use_relative_action": true,
  "apply_sincos_state_encoding": true, "shortest_image_edge": 64, "extra": [1, 2],
  "modality_configs": {
    "other": {"state": {"delta_indices": [0], "modality_keys": ["leg"]},
              "action": {"delta_indices": [0], "modality_keys": ["leg"]}},
    "my_arm": {
      "video": {"delta_indices": [0], "modality_keys": ["side", "front"]},
      "state": {"delta_indices": [0], "modality_keys": ["arm", "gripper"],
                "sin_cos_embedding_keys": ["gripper"], "mean_std_embedding_keys": ["arm"]},
      "action": {"delta_indices": [0, 1, 2], "modality_keys": ["arm", "gripper"],
                 "mean_std_embedding_keys": ["gripper"],
                 "action_configs": [
                   {"rep": "RELATIVE", "type": "NON_EEF", "format": "DEFAULT", "state_key": "arm"},
                   {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT",
                    "state_key": null}]},
      "language": {"delta_indices": [0], "modality_keys": ["annotation.human.task"]}}}}})";

/// A recipe that starts from a checkpoint with this description.
inline GrootConfig from_checkpoint(const std::string& processor = kDescribed) {
  GrootConfig c = config();
  c.checkpoint = written("groot_sidecars_base", {{"processor_config.json", processor},
                                                 {"embodiment_id.json", R"({"my_arm": 5})"}})
                     .string();
  c.embodiment = "my_arm";
  return c;
}

inline std::string changed(const std::function<void(Json& kwargs, Json& robot)>& change) {
  Json file = Json::parse(kDescribed);
  Json& kwargs = file["processor_kwargs"];
  change(kwargs, kwargs["modality_configs"]["my_arm"]);
  return file.dump();
}

inline std::unique_ptr<GrootBatch> batch_of(const GrootTransform& transform, const data::Dataset& d,
                                            const std::vector<int64_t>& ids) {
  std::vector<std::unique_ptr<Transform::Item>> items;
  for (const int64_t id : ids) items.push_back(transform.prepare(d.get(id, transform.windows())));
  auto batch = transform.collate(items);
  return std::unique_ptr<GrootBatch>(dynamic_cast<GrootBatch*>(batch.release()));
}

/// As a checkpoint keeps them.
inline std::map<std::string, data::FeatureStats> complete_stats(const data::Dataset& d,
                                                                const Transform& transform) {
  std::map<std::string, data::FeatureStats> out = transform.own_stats();
  for (const auto& [column, frames] : transform.windows().columns) {
    out[column] = data::completed_stats(d, column, {"min", "max", "mean", "std", "q01", "q99"});
  }
  return out;
}

inline Files files_of(const Transform& transform,
                      const std::map<std::string, data::FeatureStats>& stats) {
  const Transform::Described described{&transform, stats};
  return transform.checkpoint_files({&described, 1});
}

}  // namespace longship::models::testing
