#include "train/training_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/config/yaml.h"
#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "data/bad_samples.h"
#include "data/lerobot/lerobot_dataset.h"
#include "data/mapped_dataset.h"

namespace longship::train {
namespace {

constexpr size_t kMaxNamed = 10;

// The dataset's own name of one of our columns.
std::string native_column(const DatasetEntry& entry, const std::string& name) {
  for (const auto& [ours, theirs] : entry.keys) {
    if (ours == name) return theirs;
  }
  return name;
}

std::vector<std::string> used_columns(const Recipe& recipe) {
  return {recipe.model->state_column(), recipe.model->action_column()};
}

// Cameras are told apart by the transform, which knows its slots.
void log_unused(const data::Dataset& dataset, const std::string& path,
                const std::vector<std::string>& used) {
  static const std::set<std::string, std::less<>> own = {"timestamp", "frame_index",
                                                         "episode_index", "index", "task_index"};
  std::vector<std::string> unused;
  for (const data::Feature& feature : dataset.features()) {
    const bool is_column =
        feature.kind == data::FeatureKind::kNumeric || feature.kind == data::FeatureKind::kString;
    if (is_column && !own.contains(feature.name) &&
        std::find(used.begin(), used.end(), feature.name) == used.end()) {
      unused.push_back(feature.name);
    }
  }
  if (!unused.empty()) log::info("{}: columns that are not used: {}", path, join(unused, ", "));
}

std::shared_ptr<const data::Dataset> open_entry(const Recipe& recipe, size_t i) {
  const DatasetEntry& entry = recipe.data.datasets[i];
  const bool skip = recipe.data.on_bad_sample == "skip";
  data::OpenOptions options;
  options.tolerate_non_finite = skip;
  if (recipe.data.decoder == "nvdec") options.decoder = io::VideoDecoder::kNvdec;
  options.used_columns.clear();
  for (const std::string& column : used_columns(recipe)) {
    options.used_columns.push_back(native_column(entry, column));
  }
  data::DatasetMapping mapping;
  mapping.key = fmt::format("data.datasets.{}.", i);
  mapping.keys = entry.keys;
  if (recipe.data.is_mixture()) mapping.cameras = recipe.data.cameras_of(i);
  mapping.embodiment = entry.embodiment;
  if (entry.stats) {
    mapping.stats = read_external_stats(*entry.stats, recipe.model->state_column(),
                                        recipe.model->action_column());
  }
  std::shared_ptr<const data::Dataset> dataset =
      data::map_dataset(data::open_lerobot(entry.path, options), mapping);
  if (skip) {
    std::vector<data::BadFrame> bad = data::find_bad_frames(*dataset, used_columns(recipe));
    std::erase_if(bad, [&](const data::BadFrame& b) { return mapping.stats.contains(b.column); });
    if (!bad.empty()) {
      data::DatasetMapping clean;
      clean.stats = data::clean_stats(*dataset, bad);
      clean.embodiment = entry.embodiment;
      dataset = data::map_dataset(dataset, clean);
    }
  }
  log_unused(*dataset, entry.path, used_columns(recipe));
  for (const std::string& column : used_columns(recipe)) {
    const auto found = dataset->stats().find(column);
    log::info("{}: statistics of '{}': {}", entry.path, column,
              found == dataset->stats().end() ? "computed from the rows" : found->second.source);
  }
  return dataset;
}

void open_all(const Recipe& recipe, std::vector<std::shared_ptr<const data::Dataset>>& out) {
  std::string faults;
  for (size_t i = 0; i < recipe.data.datasets.size(); ++i) {
    try {
      out.push_back(open_entry(recipe, i));
    } catch (const DataError& error) {
      faults += (faults.empty() ? "" : "\n") + std::string(error.what());
    }
  }
  if (!faults.empty()) throw DataError(faults);
}

// Ids of samples that touch a bad frame; warns of the first ones.
std::vector<int64_t> bad_ids(const Recipe& recipe, const data::Dataset& dataset,
                             const data::WindowSpec& windows, const std::string& name) {
  const auto bad = data::find_bad_frames(dataset, used_columns(recipe));
  for (size_t k = 0; k < std::min(bad.size(), kMaxNamed); ++k) {
    log::warn("{}: {}; every sample whose window touches it is left out", name,
              data::describe(dataset, bad[k]));
  }
  if (bad.size() > kMaxNamed) log::warn("{}: and {} more", name, bad.size() - kMaxNamed);
  const std::vector<int64_t> ids = data::samples_touching(dataset, bad, windows);
  if (!ids.empty()) {
    std::vector<std::string> listed;
    for (size_t k = 0; k < std::min(ids.size(), 2 * kMaxNamed); ++k) {
      listed.push_back(fmt::format("{}", ids[k]));
    }
    log::warn("{}: {} samples are left out: {}{}", name, ids.size(), join(listed, ", "),
              ids.size() > listed.size() ? ", ..." : "");
  }
  return ids;
}

void check_bad_fraction(const Recipe& recipe, int64_t num_bad, int64_t num_samples) {
  const double fraction = static_cast<double>(num_bad) / static_cast<double>(num_samples);
  LS_CHECK(fraction <= recipe.data.max_bad_fraction, DataError,
           "{} of {} samples ({:.3g} %) are bad, data.max_bad_fraction allows {:.3g} %; repair the "
           "data, leave the episodes out (data.datasets: [{{episodes: [...]}}]), or raise "
           "data.max_bad_fraction",
           num_bad, num_samples, 100 * fraction, 100 * recipe.data.max_bad_fraction);
}

data::Split split_of(const Recipe& recipe, size_t i, const data::Dataset& dataset) {
  const DatasetEntry& entry = recipe.data.datasets.at(i);
  const bool own = entry.val_episodes.is_list || entry.val_episodes.count != 0;
  // Each key names the place where it was written.
  const bool listed = !entry.episodes.empty() || own;
  return data::split_by_episode(
      dataset, own ? entry.val_episodes : recipe.data.val_episodes, entry.episodes,
      listed ? fmt::format("data.datasets.{}.", i) : std::string("data."));
}

std::vector<data::IdRange> episode_ranges(const data::Dataset& dataset,
                                          const std::vector<int64_t>& positions,
                                          const std::vector<int64_t>& bad, int64_t shift) {
  std::vector<data::IdRange> out;
  for (const int64_t position : positions) {
    const data::Episode& e = dataset.episodes()[static_cast<size_t>(position)];
    data::IdRanges ids;
    ids.append({e.first_sample, e.first_sample + e.length});
    const data::IdRanges good = ids.without(bad);
    for (const data::IdRange& range : good.ranges()) {
      out.push_back({range.begin + shift, range.end + shift});
    }
  }
  return out;
}

// What one dataset contributes.
struct PartSamples {
  data::Split split;                    // in the dataset's own numbers, ids without bad ones
  std::vector<data::IdRange> episodes;  // of the training, in the mixture's numbers
  data::IdRanges ids;                   // likewise
  int64_t num_bad = 0;
};

PartSamples part_samples(const Recipe& recipe, size_t i, const data::Dataset& dataset,
                         const data::WindowSpec& windows, const std::string& name, int64_t shift) {
  PartSamples out;
  out.split = split_of(recipe, i, dataset);
  std::vector<int64_t> bad;
  if (recipe.data.on_bad_sample == "skip") {
    bad = bad_ids(recipe, dataset, windows, name);
    const size_t before = out.split.train_ids.size();
    out.split.train_ids = out.split.train_ids.without(bad);
    out.split.val_ids = out.split.val_ids.without(bad);
    out.num_bad = static_cast<int64_t>(before - out.split.train_ids.size());
    LS_CHECK(!out.split.train_ids.empty(), DataError, "{}: every training sample is bad", name);
  }
  out.episodes = episode_ranges(dataset, out.split.train_episodes, bad, shift);
  out.ids.append_all(out.split.train_ids, shift);
  return out;
}

std::shared_ptr<const data::SampleOrder> order_of(const Recipe& recipe, const data::IdRanges& ids,
                                                  std::vector<data::IdRange> episodes,
                                                  uint64_t part) {
  const auto seed = static_cast<uint64_t>(recipe.train.seed);
  if (recipe.data.shuffle == "blocks") {
    return std::make_shared<data::BlockShuffle>(std::move(episodes), recipe.data.block_episodes,
                                                seed, part);
  }
  return std::make_shared<data::FullShuffle>(ids, seed, part);
}

}  // namespace

std::shared_ptr<const data::Dataset> open_dataset(const Recipe& recipe) {
  LS_CHECK(!recipe.data.datasets.empty(), ConfigError, "data.datasets: give one dataset");
  std::vector<std::shared_ptr<const data::Dataset>> datasets;
  open_all(recipe, datasets);
  if (!recipe.data.is_mixture()) return datasets.front();
  const std::vector<std::string> names = recipe.data.names();
  std::vector<data::MixturePart> parts(datasets.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].dataset = datasets[i];
    parts[i].name = names[i];
    parts[i].state_dims = recipe.data.datasets[i].state_dims;
    parts[i].action_dims = recipe.data.datasets[i].action_dims;
  }
  return std::make_shared<data::MixtureDataset>(std::move(parts), recipe.model->state_column(),
                                                recipe.model->action_column());
}

std::unique_ptr<models::Transform> make_part_transform(const Recipe& recipe,
                                                       const data::MixtureDataset& mixture,
                                                       size_t part,
                                                       const data::Dataset* with_other_stats) {
  const data::MixturePart& own = mixture.parts().at(part);
  // A copy of the bound configuration with this dataset's cameras and places.
  const Recipe copy =
      recipe_from(config::parse_yaml_text(dump(recipe), "resolved recipe"),
                  [&](const std::string&) -> const models::ModelFamily& { return *recipe.family; });
  models::DataBinding& binding = copy.model->data;
  binding = recipe.model->data;
  binding.cameras.clear();
  if (!recipe.data.cameras_of(part).empty()) {
    for (const std::string& slot : recipe.data.slots()) {
      binding.cameras.emplace_back(
          slot, own.dataset->find_feature(slot) != nullptr ? slot : std::string());
    }
  }
  binding.state_dims = own.state_dims;
  binding.action_dims = own.action_dims;
  const data::Feature* action = mixture.find_feature(recipe.model->action_column());
  for (const data::MixturePart& other : mixture.parts()) {
    const bool all =
        action != nullptr && static_cast<int64_t>(other.action_dims.size()) == action->width();
    binding.dims_differ = binding.dims_differ || !all;
  }
  return copy.family->make_transform(
      *copy.model, with_other_stats != nullptr ? *with_other_stats : *own.dataset);
}

std::unique_ptr<models::Transform> make_transform(const Recipe& recipe,
                                                  const data::Dataset& dataset) {
  const auto* mixture = dynamic_cast<const data::MixtureDataset*>(&dataset);
  if (mixture == nullptr) return recipe.family->make_transform(*recipe.model, dataset);
  std::vector<std::pair<std::string, std::unique_ptr<models::Transform>>> parts;
  for (size_t p = 0; p < mixture->parts().size(); ++p) {
    parts.emplace_back(mixture->parts()[p].name, make_part_transform(recipe, *mixture, p));
  }
  return models::make_mixture_transform(std::move(parts));
}

TrainingSamples training_samples(const Recipe& recipe, const data::Dataset& dataset,
                                 const data::WindowSpec& windows) {
  TrainingSamples out;
  const auto* mixture = dynamic_cast<const data::MixtureDataset*>(&dataset);
  if (mixture == nullptr) {
    PartSamples own = part_samples(recipe, 0, dataset, windows, dataset.root().string(), 0);
    out.split = std::move(own.split);
    out.num_bad = own.num_bad;
    out.order = order_of(recipe, own.ids, std::move(own.episodes), 0);
  } else {
    std::vector<data::IdRange> episodes;
    std::vector<std::shared_ptr<const data::SampleOrder>> orders;
    std::vector<double> weights;
    std::vector<PartSamples> parts;
    for (size_t p = 0; p < mixture->parts().size(); ++p) {
      const data::MixturePart& part = mixture->parts()[p];
      parts.push_back(
          part_samples(recipe, p, *part.dataset, windows, part.name, part.first_sample));
      PartSamples& own = parts.back();
      for (const auto& [from, to] :
           {std::pair{&own.split.train_episodes, &out.split.train_episodes},
            std::pair{&own.split.val_episodes, &out.split.val_episodes}}) {
        for (const int64_t position : *from) to->push_back(position + part.first_episode);
      }
      out.split.train_ids.append_all(own.ids);
      out.split.val_ids.append_all(own.split.val_ids, part.first_sample);
      out.num_bad += own.num_bad;
      episodes.insert(episodes.end(), own.episodes.begin(), own.episodes.end());
      if (const auto weight = recipe.data.datasets.at(p).weight) {
        weights.push_back(*weight);
        orders.push_back(order_of(recipe, own.ids, own.episodes, p));
      }
    }
    // Without weights the mixture is one large dataset, and an epoch visits every sample once.
    out.order = weights.empty()
                    ? order_of(recipe, out.split.train_ids, std::move(episodes), 0)
                    : std::make_shared<data::WeightedMix>(std::move(orders), weights,
                                                          static_cast<uint64_t>(recipe.train.seed));
    double sum = 0;
    for (const PartSamples& part : parts) sum += static_cast<double>(part.ids.size());
    if (!weights.empty()) {
      sum = 0;
      for (const double weight : weights) sum += weight;
    }
    const double drawn =
        static_cast<double>(recipe.train.steps) * static_cast<double>(recipe.train.global_batch);
    for (size_t p = 0; p < parts.size(); ++p) {
      const auto size = static_cast<double>(parts[p].ids.size());
      const double share = (weights.empty() ? size : weights[p]) / sum;
      out.summary += fmt::format("{}[{}] {} samples, {:.4g} % of the mixture, {:.2f} passes",
                                 p == 0 ? "" : "\n", mixture->parts()[p].name, parts[p].ids.size(),
                                 100 * share, share * drawn / size);
    }
  }
  if (out.num_bad > 0) {
    check_bad_fraction(recipe, out.num_bad,
                       static_cast<int64_t>(out.split.train_ids.size()) + out.num_bad);
  }
  return out;
}

}  // namespace longship::train
