#include "train/session.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/strings.h"
#include "data/mixture.h"
#include "ops/early_launch.h"
#include "runtime/device.h"
#include "train/calibrate.h"
#include "train/checkpoint.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;

// Everything is the inner dataset's but the statistics.
class DatasetWithStats : public data::Dataset {
 public:
  DatasetWithStats(std::shared_ptr<const data::Dataset> inner,
                   std::map<std::string, data::FeatureStats> stats)
      : inner_(std::move(inner)), stats_(std::move(stats)) {}
  const fs::path& root() const override { return inner_->root(); }
  std::string format() const override { return inner_->format(); }
  double fps() const override { return inner_->fps(); }
  const std::vector<data::Feature>& features() const override { return inner_->features(); }
  const std::vector<data::Episode>& episodes() const override { return inner_->episodes(); }
  const std::vector<std::string>& tasks() const override { return inner_->tasks(); }
  const std::map<std::string, data::FeatureStats>& stats() const override { return stats_; }
  int64_t size() const override { return inner_->size(); }
  data::RawSample get(int64_t sample_id, const data::WindowSpec& windows) const override {
    return inner_->get(sample_id, windows);
  }
  std::vector<data::RawSample> get_batch(std::span<const int64_t> sample_ids,
                                         const data::WindowSpec& windows) const override {
    return inner_->get_batch(sample_ids, windows);
  }
  data::PictureStatistics picture_statistics() const override {
    return inner_->picture_statistics();
  }
  data::RawSample get_columns(int64_t sample_id, const data::WindowSpec& windows) const override {
    return inner_->get_columns(sample_id, windows);
  }
  std::string_view task_of(int64_t sample_id) const override { return inner_->task_of(sample_id); }
  std::vector<float> column_values(std::string_view name,
                                   std::span<const int64_t> positions) const override {
    return inner_->column_values(name, positions);
  }

 private:
  std::shared_ptr<const data::Dataset> inner_;
  std::map<std::string, data::FeatureStats> stats_;
};

nlohmann::ordered_json to_json(const std::map<std::string, data::FeatureStats>& stats) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [name, s] : stats) {
    nlohmann::ordered_json entry = nlohmann::ordered_json::object();
    const auto add = [&entry](const char* key, const std::vector<double>& values) {
      if (!values.empty()) entry[key] = values;
    };
    add("min", s.min);
    add("max", s.max);
    add("mean", s.mean);
    add("std", s.std);
    add("q01", s.q01);
    add("q99", s.q99);
    entry["count"] = s.count;
    entry["source"] = s.source;
    out[name] = entry;
  }
  return out;
}

}  // namespace

namespace {

void identify_one(const data::Dataset& dataset, const std::string& name,
                  const std::vector<std::string>& columns, DatasetIdentity& out) {
  const auto add = [&](const char* aspect, std::string text) {
    out.emplace_back(name.empty() ? aspect : name + " " + aspect, std::move(text));
  };
  const auto short_hash = [](const nlohmann::ordered_json& json) {
    return sha256_hex(json.dump()).substr(0, 16);
  };
  add("format", dataset.format());
  add("rate", fmt::format("{} frames per second", dataset.fps()));
  nlohmann::ordered_json episodes, features;
  for (const data::Episode& e : dataset.episodes()) {
    episodes.push_back({e.index, e.length, e.first_sample});
  }
  for (const data::Feature& f : dataset.features()) features.push_back({f.name, f.dtype, f.shape});
  add("episodes", fmt::format("{} episodes, {} frames, {}", dataset.episodes().size(),
                              dataset.size(), short_hash(episodes)));
  add("features", fmt::format("{} features, {}", dataset.features().size(), short_hash(features)));
  add("tasks", fmt::format("{} tasks, {}", dataset.tasks().size(), short_hash(dataset.tasks())));
  nlohmann::ordered_json stats = to_json(dataset.stats());
  for (auto& [column, entry] : stats.items()) entry.erase("source");  // may hold a path
  add("statistics", short_hash(stats));
  Sha256 values;
  for (const std::string& column : columns) {
    const data::Feature* feature = dataset.find_feature(column);
    if (feature == nullptr || feature->kind != data::FeatureKind::kNumeric) continue;
    const auto num_episodes = static_cast<int64_t>(dataset.episodes().size());
    for (int64_t position = 0; position < num_episodes; ++position) {
      const std::vector<float> rows = dataset.column_values(column, std::span(&position, 1));
      values.update(rows.data(), rows.size() * sizeof(float));
    }
  }
  add("values", values.hex().substr(0, 16));
}

}  // namespace

DatasetIdentity identify(const data::Dataset& dataset, const std::vector<std::string>& columns) {
  DatasetIdentity out;
  const auto* mixture = dynamic_cast<const data::MixtureDataset*>(&dataset);
  if (mixture == nullptr) {
    identify_one(dataset, "", columns, out);
    return out;
  }
  // By place, not by name: a folder may be renamed.
  for (size_t p = 0; p < mixture->parts().size(); ++p) {
    identify_one(*mixture->parts()[p].dataset, fmt::format("datasets.{}", p), columns, out);
  }
  return out;
}

std::string fingerprint(const DatasetIdentity& identity) {
  return sha256_hex(nlohmann::ordered_json(identity).dump());
}

std::vector<std::string> differences(const DatasetIdentity& before, const DatasetIdentity& after) {
  std::vector<std::string> out;
  std::map<std::string, std::string> old(before.begin(), before.end());
  for (const auto& [aspect, text] : after) {
    const auto found = old.find(aspect);
    const std::string was = found == old.end() ? "(absent)" : found->second;
    if (found != old.end()) old.erase(found);
    if (was != text) out.push_back(fmt::format("{}: {} -> {}", aspect, was, text));
  }
  for (const auto& [aspect, text] : old)
    out.push_back(fmt::format("{}: {} -> (absent)", aspect, text));
  return out;
}

std::shared_ptr<const data::Dataset> with_stats(std::shared_ptr<const data::Dataset> dataset,
                                                std::map<std::string, data::FeatureStats> stats) {
  return std::make_shared<DatasetWithStats>(std::move(dataset), std::move(stats));
}

std::string stats_to_json(const std::map<std::string, data::FeatureStats>& stats) {
  return to_json(stats).dump(1) + "\n";
}

std::map<std::string, data::FeatureStats> stats_from_json(const fs::path& path) {
  const nlohmann::json all = parse_json_file(path, {.code = ExitCode::kCheckpoint});
  std::map<std::string, data::FeatureStats> out;
  try {
    for (const auto& [name, entry] : all.items()) {
      data::FeatureStats& s = out[name];
      const auto read = [&e = entry](const char* key, std::vector<double>& values) {
        if (e.contains(key)) values = e.at(key).get<std::vector<double>>();
      };
      read("min", s.min);
      read("max", s.max);
      read("mean", s.mean);
      read("std", s.std);
      read("q01", s.q01);
      read("q99", s.q99);
      s.count = entry.at("count").get<int64_t>();
      s.source = path.string();
    }
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(
        fmt::format("{}: not statistics as a run writes them: {}", path.string(), error.what()));
  }
  return out;
}

at::ScalarType parse_dtype(const std::string& name) {
  return name == "bf16" ? at::kBFloat16 : at::kFloat;
}

LoadedCheckpoint read_checkpoint(const fs::path& path, const FamilyLookup& lookup) {
  LoadedCheckpoint out;
  out.folder = resolve_checkpoint(path);
  const fs::path recipe_file = out.folder / "config.yaml";
  LS_CHECK(fs::exists(recipe_file), CheckpointError,
           "{}: has no config.yaml, so nothing says which model it holds; give a checkpoint or a "
           "run folder written by longship train",
           out.folder.string());
  out.recipe = load_recipe(recipe_file, {}, lookup);
  out.recipe.model->data.own_checkpoint = out.folder;
  out.stats = stats_from_json(out.folder / "stats.json");
  return out;
}

models::BuildOptions build_options(const Recipe& recipe, at::Device device) {
  const PerfSection& perf = recipe.perf;
  models::BuildOptions out;
  out.device = device;
  out.dtype = parse_dtype(recipe.train.dtype);
  out.initialise = false;
  const bool fuse = device.is_cuda() || perf.cpu_oracles;
  out.fused.norms = fuse && perf.fused_norms;
  out.fused.activations = fuse && perf.fused_activations;
  out.fused.rope = fuse && perf.fused_rope;
  out.fused.loss = fuse && perf.fused_loss;
  out.fused.embedding = fuse && perf.sparse_embedding && perf.fused_optimizer;
  out.fused.stacked = perf.stacked_linears;
  out.fused.attention = device.is_cuda() && perf.flash_attention;
  out.token_bucket = device.is_cuda() ? perf.token_bucket : 1;
  out.pad_text = !perf.pack_text;
  out.grid_cache = perf.grid_cache;
  if (recipe.train.fp8) {
    LS_CHECK(device.is_cuda(), ConfigError,
             "train.fp8 needs a CUDA device, this run is on the {}; set train.fp8=null",
             runtime::describe(device));
    nn::Fp8Options fp8;
    fp8.layers = *recipe.train.fp8 == "default" ? recipe.family->default_fp8_layers()
                                                : read_fp8_table(*recipe.train.fp8);
    fp8.delayed = recipe.perf.fp8_scaling == "delayed";
    fp8.e5m2_gradients = recipe.perf.fp8_gradients == "e5m2";
    out.fp8 = fp8;
  }
  if (recipe.train.recompute != "none") out.recompute = split(recipe.train.recompute, ',');
  return out;
}

void place_augmentation(const Recipe& bound, at::Device device) {
  const data::AugmentConfig& augment = bound.data.augment;
  const bool has_operator = device.is_cuda() || bound.perf.cpu_oracles;
  LS_CHECK(!augment.enabled() || augment.on != "device" || has_operator, ConfigError,
           "data.augment.on: device needs training on a CUDA device, this run is on the {}; set "
           "data.augment.on=auto",
           runtime::describe(device));
  bound.model->data.augment_on_device =
      augment.enabled() && augment.on != "host" && (device.is_cuda() || augment.on == "device");
}

void apply_library_settings(const Recipe& recipe) {
  runtime::set_cpu_threads(static_cast<int>(recipe.train.threads));
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(recipe.train.deterministic, false);
  context.setDeterministicCuDNN(recipe.train.deterministic);
  context.setAllowTF32CuBLAS(recipe.train.tf32);
  ops::set_early_launch(recipe.perf.early_launch);
}

std::unique_ptr<models::Policy> build_policy(const LoadedCheckpoint& checkpoint,
                                             const data::Dataset& dataset, at::Device device) {
  models::BuildOptions options;
  options.device = device;
  options.initialise = false;
  checkpoint.recipe.model->bind_dataset(dataset);
  auto policy = checkpoint.recipe.family->build(*checkpoint.recipe.model, options);
  policy->load_weights(checkpoint.folder, {});
  return policy;
}

}  // namespace longship::train
