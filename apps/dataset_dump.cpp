// longship dataset dump: what the trainer would see of chosen samples, for comparison with other
// readers.
#include <ATen/ops/from_blob.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "apps/dataset.h"
#include "base/error.h"
#include "base/strings.h"
#include "data/lerobot/lerobot_dataset.h"
#include "data/windows.h"
#include "io/tensor_io.h"
#include "models/spec.h"
#include "train/recipe.h"
#include "train/session.h"

namespace longship::apps {
namespace {

struct Options {
  std::string source, samples, out;
  std::vector<std::string> overrides, offsets;
  int64_t horizon = 50;
};

double parse_seconds(const std::string& text, const std::string& option) {
  const std::string_view item = trim(text);
  double value = 0;
  const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
  LS_CHECK(error == std::errc() && end == item.data() + item.size() && std::isfinite(value),
           ConfigError, "--offsets {}: '{}' is no number; write seconds such as KEY=-0.1,0,0.1",
           printable(option), printable(text));
  return value;
}

/// "KEY=-0.1,0,0.1": the rows or pictures of KEY at these times, in this order; "KEY=": none.
void apply_offsets(const std::string& option, double fps, data::WindowSpec& windows) {
  const size_t equals = option.find('=');
  LS_CHECK(equals != std::string::npos, ConfigError,
           "--offsets {}: write a column or camera and seconds, such as action=0,0.1,0.2",
           printable(option));
  const std::string key = option.substr(0, equals), list = option.substr(equals + 1);
  std::vector<double> seconds;
  if (!trim(list).empty()) {
    for (const std::string& part : split(list, ',')) seconds.push_back(parse_seconds(part, option));
  }
  for (auto* part : {&windows.columns, &windows.cameras}) {
    const auto found = part->find(key);
    if (found == part->end()) continue;
    found->second = data::frame_offsets(seconds, fps, "--offsets " + key);
    if (found->second.empty()) part->erase(found);
    return;
  }
  std::string keys;
  for (const auto* part : {&windows.columns, &windows.cameras}) {
    for (const auto& [name, unused] : *part) keys += (keys.empty() ? "" : ", ") + name;
  }
  throw ConfigError(fmt::format("--offsets {}: the dataset has no such column or camera; it has {}",
                                printable(key), keys));
}

/// Samples of which every row or picture of a key lies outside the episode, by key.
class PaddedCount {
 public:
  void add(const data::RawSample& sample) {
    ++samples_;
    for (const auto& [name, column] : sample.columns) count(name, column.is_pad);
    for (const auto& [name, camera] : sample.cameras) count(name, camera.is_pad);
  }
  void print() const {
    for (const auto& [name, number] : padded_) {
      fmt::print("{}: {} of {} samples lie outside the episode at every offset\n", name, number,
                 samples_);
    }
  }

 private:
  void count(const std::string& name, const std::vector<uint8_t>& is_pad) {
    if (std::all_of(is_pad.begin(), is_pad.end(), [](uint8_t pad) { return pad != 0; })) {
      ++padded_[name];
    }
  }
  int64_t samples_ = 0;
  std::map<std::string, int64_t> padded_;
};

std::vector<int64_t> parse_samples(const std::string& text, int64_t size) {
  std::vector<int64_t> ids;
  for (const std::string& part : split(text, ',')) {
    const std::string_view item = trim(part);
    const std::optional<int64_t> id = parse_whole_number(item);
    LS_CHECK(id.has_value(), ConfigError,
             "--samples: '{}' is no number; write samples such as 0,5,100", printable(part));
    LS_CHECK(*id >= 0 && *id < size, ConfigError,
             "--samples: there is no sample {}; the dataset has samples 0 .. {}", *id, size - 1);
    ids.push_back(*id);
  }
  return ids;
}

at::Tensor bytes_tensor(const std::vector<uint8_t>& values, std::vector<int64_t> shape) {
  return at::from_blob(const_cast<uint8_t*>(values.data()), shape, at::kByte).clone();
}

at::Tensor int_tensor(int64_t value) {
  return at::from_blob(&value, {1}, at::kLong).clone();
}

void add_raw(const data::RawSample& sample, const std::string& prefix, io::NamedTensors& tensors) {
  double seconds = sample.timestamp_s;
  tensors.emplace_back(prefix + "episode", int_tensor(sample.episode));
  tensors.emplace_back(prefix + "frame", int_tensor(sample.frame));
  tensors.emplace_back(prefix + "timestamp", at::from_blob(&seconds, {1}, at::kDouble).clone());
  for (const auto& [name, column] : sample.columns) {
    tensors.emplace_back(prefix + "columns/" + name,
                         at::from_blob(const_cast<float*>(column.values.data()),
                                       {column.num_offsets, column.width}, at::kFloat)
                             .clone());
    tensors.emplace_back(prefix + "columns/" + name + ".is_pad",
                         bytes_tensor(column.is_pad, {column.num_offsets}));
  }
  for (const auto& [name, camera] : sample.cameras) {
    std::vector<uint8_t> all;
    for (const data::ImagePtr& image : camera.frames) {
      all.insert(all.end(), image->rgb.begin(), image->rgb.end());
    }
    const data::Image& first = *camera.frames.front();
    const auto offsets = static_cast<int64_t>(camera.frames.size());
    tensors.emplace_back(prefix + "frames/" + name,
                         bytes_tensor(all, {offsets, first.height, first.width, 3}));
    tensors.emplace_back(prefix + "frames/" + name + ".is_pad",
                         bytes_tensor(camera.is_pad, {offsets}));
  }
}

/// All that a dataset has: cameras and numbers of the frame, actions of a chunk.
data::WindowSpec plain_windows(const data::Dataset& dataset, int64_t horizon) {
  data::WindowSpec windows;
  for (const data::Feature& feature : dataset.features()) {
    if (feature.kind == data::FeatureKind::kNumeric) windows.columns[feature.name] = {0};
  }
  for (const std::string& camera : dataset.cameras()) windows.cameras[camera] = {0};
  if (const auto action = windows.columns.find("action"); action != windows.columns.end()) {
    action->second.resize(static_cast<size_t>(horizon));
    std::iota(action->second.begin(), action->second.end(), int64_t{0});
  }
  return windows;
}

int finish(const Options& options, const io::NamedTensors& tensors, const io::Metadata& metadata,
           size_t count) {
  io::save_tensors(options.out, tensors, metadata);
  fmt::print("{}: {} samples, {} tensors\n", options.out, count, tensors.size());
  return 0;
}

int dump_dataset(const Options& options) {
  LS_CHECK(options.overrides.empty(), ConfigError,
           "dump: settings such as '{}' go with a recipe, {} is a dataset",
           options.overrides.front(), options.source);
  const auto dataset = data::open_lerobot(options.source);
  data::WindowSpec windows = plain_windows(*dataset, options.horizon);
  for (const std::string& offsets : options.offsets) {
    apply_offsets(offsets, dataset->fps(), windows);
  }
  const std::vector<int64_t> ids = parse_samples(options.samples, dataset->size());
  io::NamedTensors tensors;
  io::Metadata metadata = {{"dataset", options.source}, {"format", dataset->format()}};
  PaddedCount padded;
  for (const int64_t id : ids) {
    const data::RawSample sample = dataset->get(id, windows);
    add_raw(sample, fmt::format("{}/", id), tensors);
    padded.add(sample);
    metadata[fmt::format("{}/task", id)] = sample.task;
  }
  padded.print();
  return finish(options, tensors, metadata, ids.size());
}

int dump_recipe(const Options& options) {
  LS_CHECK(options.offsets.empty(), ConfigError,
           "--offsets goes with a dataset; the model of a recipe says what it reads");
  const train::Recipe recipe =
      train::load_recipe(options.source, options.overrides, &models::find_family);
  const std::shared_ptr<const data::Dataset> dataset = train::open_dataset(recipe);
  recipe.model->bind_dataset(*dataset);
  const auto transform = train::make_transform(recipe, *dataset);
  transform->check_dataset(*dataset);
  const data::WindowSpec windows = transform->windows();
  const std::vector<int64_t> ids = parse_samples(options.samples, dataset->size());
  io::NamedTensors tensors;
  io::Metadata metadata = {{"recipe", options.source}, {"format", dataset->format()}};
  for (const int64_t id : ids) {
    const std::string prefix = fmt::format("{}/", id);
    const data::RawSample sample = dataset->get(id, windows);
    add_raw(sample, prefix, tensors);
    metadata[prefix + "task"] = sample.task;
    metadata[prefix + "prompt"] = transform->prompt(sample);
    std::vector<std::unique_ptr<models::Transform::Item>> items;
    items.push_back(transform->prepare(sample));
    const std::unique_ptr<models::Batch> batch = transform->collate(items);
    for (auto& [name, tensor] : batch->tensors()) {
      if (tensor->defined()) tensors.emplace_back(prefix + "model/" + name, *tensor);
    }
  }
  return finish(options, tensors, metadata, ids.size());
}

int run(const Options& options) {
  const std::filesystem::path source(options.source);
  const bool recipe = source.extension() == ".yaml" || source.extension() == ".yml";
  return recipe ? dump_recipe(options) : dump_dataset(options);
}

}  // namespace

void add_dataset_dump(CLI::App& group, std::function<int()>& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = group.add_subcommand(
      "dump", "Write what the trainer would see of chosen samples to a safetensors file");
  command
      ->add_option("source", options->source,
                   "Recipe (.yaml): what its model gets, too; or dataset folder")
      ->required();
  command->add_option("overrides", options->overrides,
                      "With a recipe: settings that replace those of the file");
  command->add_option("--samples", options->samples, "Sample ids, e.g. 0,5,100")->required();
  command->add_option("--out", options->out, "File to write")->required();
  command->add_option("--horizon", options->horizon, "Of a dataset: rows of action")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--offsets", options->offsets,
                      "Of a dataset: KEY=SECONDS,...: rows of a column or pictures of a camera at "
                      "these times from the sample's own, e.g. action=0,0.1,0.2; repeatable");
  command->footer(
      "Tensors of sample N: N/frames/CAMERA [offset, height, width, 3] uint8 RGB, N/columns/NAME "
      "[offset, dimension], ….is_pad (1 = outside the episode, the value is the nearest inside), "
      "N/episode, N/frame, N/timestamp; of a recipe also N/model/…: the tensors of a batch of this "
      "one sample, as collated (token ids, normalised values, resized pictures). Texts are in the "
      "file's metadata: N/task, N/prompt.");
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace longship::apps
