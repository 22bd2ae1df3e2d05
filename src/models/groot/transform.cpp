#include "models/groot/transform.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/strings.h"
#include "data/image/area_resize.h"
#include "data/image/bicubic.h"
#include "data/image/patches.h"
#include "data/tokenizer/hf_tokenizer.h"
#include "models/groot/embodiment.h"

namespace longship::models {
namespace {

class GrootItem final : public Transform::Item {
 public:
  std::vector<float> patches;
  std::vector<std::array<int64_t, 2>> grids;
  std::vector<int64_t> tokens;
  std::vector<float> state;          // [history, max_state_dim]
  std::vector<float> actions, mask;  // [horizon, max_action_dim]
  std::vector<float> references;     // raw state with relative actions
  int64_t embodiment = 0;
};

std::string camera_names(const std::vector<std::string>& cameras) {
  return cameras.empty() ? "none" : join(cameras, ", ");
}

data::AlbumentationsConfig picture_config(const GrootConfig& config) {
  data::AlbumentationsConfig out;
  out.shortest_edge = config.shortest_edge;
  out.crop_fraction = config.crop_fraction;
  out.letterbox = config.letterbox;
  if (!config.color_jitter) out.jitter = {0, 0, 0, 0};
  out.check();
  return out;
}

data::SmartResize resize_rule(const GrootSizes& sizes) {
  const bool is_n17 = sizes.version == GrootVersion::kN17;
  data::SmartResize rule = is_n17 ? data::SmartResize::qwen3_vl() : data::SmartResize::groot_n16();
  // Limits are numbers of merged patches, so that toy sizes keep their meaning.
  const int64_t published = rule.factor * rule.factor;
  const int64_t factor = GrootSizes::kMerge * sizes.vision.patch_size;
  rule.min_pixels = rule.min_pixels / published * factor * factor;
  rule.max_pixels = rule.max_pixels / published * factor * factor;
  rule.factor = factor;
  return rule;
}

/// Places 0, 1, 2, ..., as a mixture's datasets have them where the recipe says none.
bool in_order(const std::vector<int64_t>& dims) {
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

/// What this family has of its own, or cannot do, is not silently ignored.
void check_binding(const GrootConfig& config) {
  const DataBinding& data = config.data;
  LS_CHECK(!data.delta.any(), ConfigError,
           "data.delta_actions and data.delta_exclude are not for GR00T; set "
           "model.relative_actions and say in the modality file which groups are relative");
  LS_CHECK(!data.augment.enabled(), ConfigError,
           "data.augment is not for GR00T, whose pictures are changed as model.crop_fraction, "
           "model.letterbox and model.color_jitter say; set data.augment.preset to none");
  LS_CHECK(in_order(data.state_dims) && in_order(data.action_dims), ConfigError,
           "state_dims and action_dims of a dataset are not for GR00T; the modality file says "
           "where groups lie");
  LS_CHECK(data.state_dropout <= 0 || config.state_input_dropout <= 0, ConfigError,
           "data.state_dropout {} and model.state_input_dropout {} both leave out the state; set "
           "one of them",
           data.state_dropout, config.state_input_dropout);
}

const GrootConfig& checked(const GrootConfig& config) {
  config.check();
  check_binding(config);
  return config;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> groot_views(const GrootConfig& config,
                                                             const GrootRanges& ranges,
                                                             const data::Dataset& dataset) {
  const std::vector<std::string> cameras = dataset.cameras();
  const auto check = [&](const std::string& view, const std::string& camera, const char* who) {
    LS_CHECK(std::find(cameras.begin(), cameras.end(), camera) != cameras.end(), ConfigError,
             "{}: the view '{}' shows the camera '{}', which {} does not have; cameras: {}", who,
             view, camera, dataset.root().string(), camera_names(cameras));
  };
  std::vector<std::pair<std::string, std::string>> out;
  std::set<std::string> used;
  for (const auto& [view, camera] : config.data.cameras) {
    if (camera.empty()) continue;
    const auto named = std::find_if(ranges.video.begin(), ranges.video.end(),
                                    [&](const auto& entry) { return entry.first == camera; });
    out.emplace_back(view, named == ranges.video.end() ? camera : named->second);
    check(view, out.back().second, "data.cameras");
    LS_CHECK(used.insert(out.back().second).second, ConfigError,
             "data.cameras puts the camera '{}' into two views", out.back().second);
  }
  LS_CHECK(!out.empty() || config.data.cameras.empty(), ConfigError,
           "data.cameras leaves every view without a picture; cameras: {}", camera_names(cameras));
  if (!out.empty()) return out;
  for (const auto& [view, camera] : ranges.video) {
    check(view, camera, "modality.json");
    out.emplace_back(view, camera);
  }
  if (!out.empty()) return out;
  LS_CHECK(cameras.size() == 1, ConfigError,
           "{}: which cameras the model sees, and in which order, is not said; cameras: {}; say it "
           "in the modality file or in the recipe, e.g. data.cameras: {{view0: {}}}",
           dataset.root().string(), camera_names(cameras),
           cameras.empty() ? "<camera>" : cameras.front());
  return {{cameras.front(), cameras.front()}};
}

GrootTransform::GrootTransform(const GrootConfig& config, const data::Dataset& dataset,
                               GrootTokenize tokenize)
    : config_(checked(config)),
      dataset_(dataset.root().string()),
      sizes_(config.sizes()),
      tokenize_(std::move(tokenize)),
      groups_(config, dataset),
      views_(groot_views(config, groups_.ranges(), dataset)),
      pictures_(picture_config(config)) {
  const GrootStateAction& processor = groups_.processor();
  LS_CHECK(processor.state_width() <= sizes_.max_state_dim, DataError,
           "{}: the state groups have {} numbers, the model holds {} (model.max_state_dim)",
           dataset.root().string(), processor.state_width(), sizes_.max_state_dim);
  LS_CHECK(processor.action_width() <= sizes_.max_action_dim, DataError,
           "{}: the action groups have {} numbers, the model holds {} (model.max_action_dim)",
           dataset.root().string(), processor.action_width(), sizes_.max_action_dim);
  const GrootEmbodiment embodiment = groot_embodiment(config);
  if (!embodiment.warning.empty()) log::warn("model.embodiment: {}", embodiment.warning);
  embodiment_ = embodiment.slot;
  action_column_width_ = dataset.find_feature(config.action_feature)->width();
  std::vector<uint8_t> held(static_cast<size_t>(action_column_width_), 0);
  for (const GrootRange& range : groups_.ranges().action) {
    std::fill(held.begin() + range.begin, held.begin() + range.end, 1);
  }
  if (const auto left = std::count(held.begin(), held.end(), 0); left > 0) {
    log::warn("{}: {} of the {} dimensions of '{}' are in no action group and are not learned",
              groups_.source(), left, held.size(), config.action_feature);
  }
  std::set<std::string> unused;
  for (const std::string& camera : dataset.cameras()) unused.insert(camera);
  for (const auto& [view, camera] : views_) {
    log::info("view {} <- {}", printable(view), printable(camera));
    unused.erase(camera);
  }
  for (const std::string& camera : unused) log::info("camera {} is not used", printable(camera));
}

data::WindowSpec GrootTransform::windows() const {
  data::WindowSpec spec;
  spec.columns = groups_.columns();
  for (const auto& [view, camera] : views_) spec.cameras[camera] = frames();
  return spec;
}

std::string GrootTransform::task_text(std::string_view task) const {
  const bool is_empty = trim(task).empty();
  return formalize_language(is_empty && !config_.is_n17() ? "perform the task" : task);
}

std::string GrootTransform::prompt(const data::RawSample& sample) const {
  return groot_prompt(config_.version, task_text(sample.task),
                      static_cast<int64_t>(views_.size() * frames().size()));
}

std::vector<int64_t> GrootTransform::tokens(std::string_view task,
                                            std::span<const int64_t> counts) const {
  std::vector<int64_t> ids =
      groot_tokens(config_.version, task_text(task), counts, sizes_.text.image_token, tokenize_);
  for (const int64_t id : ids) {
    LS_CHECK(id >= 0 && id < sizes_.text.vocab_size, ConfigError,
             "model.tokenizer: gives the token {}, the model has 0 .. {}", id,
             sizes_.text.vocab_size - 1);
  }
  LS_CHECK(static_cast<int64_t>(ids.size()) <= config_.token_limit, DataError,
           "the prompt needs {} tokens, the limit is {}: shorten the task text, use fewer or "
           "smaller pictures, or raise model.token_limit; task: \"{}\"",
           ids.size(), config_.token_limit, printable(task));
  return ids;
}

std::array<int64_t, 2> GrootTransform::grid_of(int64_t height, int64_t width) const {
  data::PictureSize size{height, width};
  if (pictures_.letterbox) size.height = size.width = std::max(height, width);
  size = data::smallest_max_size(size.height, size.width, pictures_.shortest_edge);
  const data::CropBox box = data::center_crop_box(size.height, size.width, pictures_.crop_fraction);
  size = data::smallest_max_size(box.height, box.width, pictures_.shortest_edge);
  size = data::smart_resize(size.height, size.width, resize_rule(sizes_));
  const data::PatchGrid grid =
      data::patch_grid(size.height, size.width, sizes_.vision.patch_size, GrootSizes::kMerge);
  return {grid.rows, grid.columns};
}

void GrootTransform::add_picture(const data::Image& image, const data::RawSample& sample,
                                 std::vector<float>& patches,
                                 std::vector<std::array<int64_t, 2>>& grids) const {
  const data::Image changed =
      sample.draw ? data::train_picture(
                        image, pictures_,
                        data::draw_albumentations(pictures_, *sample.draw, sample.sample_id))
                  : data::eval_picture(image, pictures_);
  const bool is_n17 = config_.is_n17();
  const data::PictureSize size =
      data::smart_resize(changed.height, changed.width, resize_rule(sizes_));
  const data::Image resized =
      data::resize_bicubic(changed, size.height, size.width,
                           is_n17 ? data::BicubicFlavour::kTorchU8 : data::BicubicFlavour::kPillow);
  const int64_t patch = sizes_.vision.patch_size;
  const data::PatchGrid grid = data::patch_grid(size.height, size.width, patch, GrootSizes::kMerge);
  const size_t begin = patches.size();
  patches.resize(begin + static_cast<size_t>(grid.count() * sizes_.patch_values()));
  const std::span<float> rows = std::span(patches).subspan(begin);
  if (is_n17) {
    data::merge_block_patches(resized, patch, GrootSizes::kMerge, sizes_.vision.frames, rows);
  } else {
    data::raster_patches(resized, patch, GrootSizes::kMerge, rows);
  }
  grids.push_back({grid.rows, grid.columns});
}

bool GrootTransform::drops_state(const data::RawSample& sample) const {
  const double probability = std::max(config_.state_input_dropout, config_.data.state_dropout);
  if (!sample.draw || probability <= 0) return false;
  // Numbers 0 and 1 of this key are the policy's.
  double u = 0;
  fill_uniform(make_key(sample.draw->seed, RngStream::kDropout, sample.draw->step,
                        static_cast<uint64_t>(sample.sample_id)),
               {&u, 1}, 2);
  return u < probability;
}

int64_t GrootTransform::slot_of(const data::RawSample& sample) const {
  return groot_sample_slot(sample.embodiment, embodiment_, sizes_.embodiments);
}

std::unique_ptr<Transform::Item> GrootTransform::prepare(const data::RawSample& sample) const {
  auto item = std::make_unique<GrootItem>();
  item->sample_id = sample.sample_id;
  item->embodiment = slot_of(sample);
  try {
    const GrootStateAction& processor = groups_.processor();
    const GrootGroups state = groups_.state(sample);
    item->state.resize(static_cast<size_t>(sizes_.state_history * sizes_.max_state_dim));
    processor.pack_state(processor.apply_state(state), item->state, sizes_.max_state_dim);
    if (drops_state(sample)) std::fill(item->state.begin(), item->state.end(), 0.0F);
    item->actions.resize(static_cast<size_t>(sizes_.horizon * sizes_.max_action_dim));
    item->mask.resize(item->actions.size());
    processor.pack_action(processor.apply_action(groups_.action(sample), state), item->actions,
                          item->mask, sizes_.max_action_dim);
    item->references = groups_.references(state);

    std::vector<int64_t> counts;
    // All views of the first frame, then of the next one.
    for (size_t frame = 0; frame < frames().size(); ++frame) {
      for (const auto& [view, camera] : views_) {
        const auto it = sample.cameras.find(camera);
        LS_CHECK(it != sample.cameras.end() && it->second.frames.size() == frames().size() &&
                     it->second.frames[frame] != nullptr,
                 DataError, "no picture of camera '{}' was read", camera);
        add_picture(*it->second.frames[frame], sample, item->patches, item->grids);
        const auto& grid = item->grids.back();
        counts.push_back(grid[0] * grid[1] / (GrootSizes::kMerge * GrootSizes::kMerge));
      }
    }
    item->tokens = tokens(sample.task, counts);
  } catch (const DataError& error) {
    throw DataError(
        fmt::format("episode {} frame {}: {}", sample.episode, sample.frame, error.what()));
  }
  return item;
}

std::unique_ptr<Batch> GrootTransform::collate(std::span<const std::unique_ptr<Item>> items) const {
  LS_CHECK(!items.empty(), InternalError, "a batch of no samples");
  auto batch = std::make_unique<GrootBatch>();
  std::vector<const GrootItem*> parts;
  int64_t values = 0, num_tokens = 0;
  for (const auto& item : items) {
    const auto* part = dynamic_cast<const GrootItem*>(item.get());
    LS_CHECK(part != nullptr, InternalError, "a sample of another model family in a GR00T batch");
    parts.push_back(part);
    batch->sample_ids.push_back(part->sample_id);
    batch->pictures.push_back(static_cast<int64_t>(part->grids.size()));
    batch->lengths.push_back(static_cast<int64_t>(part->tokens.size()));
    batch->grids.insert(batch->grids.end(), part->grids.begin(), part->grids.end());
    if (!part->references.empty()) batch->raw_state.push_back(part->references);
    values += static_cast<int64_t>(part->patches.size());
    num_tokens += batch->lengths.back();
  }
  // Robots with and without relative actions share batches in training only, which needs none.
  if (batch->raw_state.size() != parts.size()) batch->raw_state.clear();
  const auto size = static_cast<int64_t>(parts.size());
  const auto sizes = {size, sizes_.horizon, sizes_.max_action_dim};
  batch->patches = at::empty({values / sizes_.patch_values(), sizes_.patch_values()}, at::kFloat);
  batch->token_ids = at::empty({num_tokens}, at::kLong);
  batch->state = at::empty({size, sizes_.state_history, sizes_.max_state_dim}, at::kFloat);
  batch->actions = at::empty(sizes, at::kFloat);
  batch->action_mask = at::empty(sizes, at::kFloat);
  batch->embodiment = at::empty({size}, at::kLong);
  float* patches = batch->patches.mutable_data_ptr<float>();
  int64_t* tokens = batch->token_ids.mutable_data_ptr<int64_t>();
  float* state = batch->state.mutable_data_ptr<float>();
  float* actions = batch->actions.mutable_data_ptr<float>();
  float* mask = batch->action_mask.mutable_data_ptr<float>();
  int64_t* embodiment = batch->embodiment.mutable_data_ptr<int64_t>();
  for (const GrootItem* part : parts) {
    patches = std::copy(part->patches.begin(), part->patches.end(), patches);
    tokens = std::copy(part->tokens.begin(), part->tokens.end(), tokens);
    state = std::copy(part->state.begin(), part->state.end(), state);
    actions = std::copy(part->actions.begin(), part->actions.end(), actions);
    mask = std::copy(part->mask.begin(), part->mask.end(), mask);
    *embodiment++ = part->embodiment;
  }
  return batch;
}

std::map<std::string, data::FeatureStats> GrootTransform::own_stats() const {
  return groups_.relative_stats();
}

GrootDescription GrootTransform::description(
    const std::map<std::string, data::FeatureStats>& stats) const {
  GrootDescription out{dataset_,
                       groups_.robot(),
                       groups_.processor().modality(),
                       groups_.processor().options(),
                       groups_.kept_statistics(stats),
                       groups_.ranges()};
  out.modality.views.clear();
  for (const auto& [view, camera] : views_) out.modality.views.push_back(view);
  out.ranges.video = views_;
  return out;
}

std::vector<std::pair<std::string, std::string>> GrootTransform::checkpoint_files(
    std::span<const Described> parts) const {
  std::vector<GrootDescription> descriptions;
  for (const Described& part : parts) {
    const auto* transform = dynamic_cast<const GrootTransform*>(part.transform);
    LS_CHECK(transform != nullptr, InternalError, "a mixture of transforms of several families");
    descriptions.push_back(transform->description(part.stats));
  }
  return groot_sidecars(config_, descriptions);
}

at::Tensor GrootTransform::denormalise_actions(const at::Tensor& actions,
                                               const Batch* observed) const {
  const GrootStateAction& processor = groups_.processor();
  const int64_t horizon = config_.data.horizon;
  LS_CHECK(actions.defined() && actions.dim() == 3 && actions.scalar_type() == at::kFloat &&
               actions.is_cpu() && actions.size(1) >= horizon && actions.size(2) >= action_width(),
           ShapeError, "denormalise_actions needs host fp32 [B, {} or more, {} or more]", horizon,
           action_width());
  const auto* batch = dynamic_cast<const GrootBatch*>(observed);
  if (processor.relative()) {
    LS_CHECK(batch != nullptr && !batch->sample_ids.empty() &&
                 batch->raw_state.size() == batch->sample_ids.size(),
             InternalError,
             "relative actions become absolute with the states of the batch they were predicted "
             "for");
    LS_CHECK(actions.size(0) % batch->size() == 0, ShapeError,
             "{} chunks of actions for a batch of {} samples", actions.size(0), batch->size());
  }
  const at::Tensor source = actions.contiguous();
  at::Tensor raw = at::zeros({source.size(0), horizon, action_column_width_}, at::kFloat);
  const auto in = static_cast<size_t>(source.size(1) * source.size(2));
  const auto out = static_cast<size_t>(horizon * action_column_width_);
  for (int64_t r = 0; r < source.size(0); ++r) {
    const auto row = static_cast<size_t>(r);
    const GrootGroups groups = processor.unpack_action(
        {source.const_data_ptr<float>() + row * in, in}, source.size(2), horizon);
    GrootGroups references;
    if (processor.relative()) {
      references =
          groups_.reference_groups(batch->raw_state[static_cast<size_t>(r % batch->size())]);
    }
    groups_.scatter_action(processor.unapply_action(groups, references),
                           {raw.mutable_data_ptr<float>() + row * out, out}, action_column_width_);
  }
  return raw;
}

void GrootTransform::check_dataset(const data::Dataset& dataset) const {
  check_groot_ranges(groups_.ranges(), dataset,
                     groups_.source().empty() ? dataset.root().string() : groups_.source());
  std::vector<int64_t> counts;
  for (const auto& [view, camera] : views_) {
    const data::Feature* feature = dataset.find_feature(camera);
    LS_CHECK(feature != nullptr, DataError, "{}: no camera '{}'", dataset.root().string(), camera);
    const std::vector<int64_t>& shape = feature->shape;
    if (shape.size() != 3) continue;
    // info.json says (height, width, channels) or (channels, height, width).
    const bool channels_first = shape[2] != 3 && shape[0] == 3;
    const auto grid = grid_of(shape[channels_first ? 1 : 0], shape[channels_first ? 2 : 1]);
    counts.push_back(grid[0] * grid[1] / (GrootSizes::kMerge * GrootSizes::kMerge));
  }
  const std::vector<int64_t> one = counts;
  for (size_t frame = 1; frame < frames().size(); ++frame) {
    counts.insert(counts.end(), one.begin(), one.end());
  }
  std::vector<std::string> faults;
  constexpr size_t kMostListed = 5;
  for (const std::string& task : dataset.tasks()) {
    try {
      tokens(task, counts);
    } catch (const DataError& error) {
      faults.push_back(fmt::format("  {}", error.what()));
    }
  }
  if (faults.empty()) return;
  const size_t number = faults.size();
  if (number > kMostListed) {
    faults.resize(kMostListed);
    faults.push_back(fmt::format("  and {} more", number - kMostListed));
  }
  throw DataError(fmt::format("{}: {} task text(s) cannot be used; prompts are not cut\n{}",
                              dataset.root().string(), number, join(faults, "\n")));
}

std::unique_ptr<Transform> make_groot_transform(const GrootConfig& config,
                                                const data::Dataset& dataset) {
  LS_CHECK(config.tokenizer || config.checkpoint, ConfigError,
           "model.tokenizer: no tokenizer is named; give the backbone's tokenizer.json");
  const std::filesystem::path path = config.tokenizer
                                         ? std::filesystem::path(*config.tokenizer)
                                         : groot_checkpoint_folder(config) / "tokenizer.json";
  LS_CHECK(std::filesystem::is_regular_file(path), ConfigError,
           "model.tokenizer: {} is no file; give the backbone's tokenizer.json", path.string());
  const std::shared_ptr<const data::HfTokenizer> tokenizer = data::HfTokenizer::load(path);
  const int64_t rows = config.sizes().text.vocab_size;
  LS_CHECK(tokenizer->id_bound() <= rows, ConfigError,
           "model.tokenizer: {} has tokens up to {}, the model's embedding {} rows", path.string(),
           tokenizer->id_bound() - 1, rows);
  return std::make_unique<GrootTransform>(config, dataset, [tokenizer](std::string_view text) {
    return tokenizer->encode(text, /*add_special_tokens=*/false).ids;
  });
}

}  // namespace longship::models
