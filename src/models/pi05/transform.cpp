#include "models/pi05/transform.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/strings.h"
#include "data/augment/picture.h"
#include "data/mixture.h"
#include "data/stats.h"
#include "models/pi05/prompt.h"

namespace longship::models {
namespace {

constexpr std::string_view kCameraPrefix = "observation.images.";

class Pi05Item final : public Transform::Item {
 public:
  int64_t num_images = 0;
  std::vector<float> images;  // [num_images, 3, S, S]
  std::vector<int64_t> tokens;
  std::vector<float> state;            // [max_state_dim]
  std::vector<float> actions;          // [horizon, max_action_dim]
  std::vector<uint8_t> action_is_pad;  // [horizon]
  std::vector<uint8_t> dim_is_real;    // [max_action_dim], or empty
  std::vector<float> raw_state;        // [state width] with relative actions
  std::vector<float> augment;          // [num_images, 20] where the model changes the pictures
};

/// Where each dimension goes, checked against the model's width.
std::vector<int64_t> places_of(const std::vector<int64_t>& dims, int64_t width, const char* role,
                               int64_t limit) {
  std::vector<int64_t> places = data::checked_dims(dims, width, fmt::format("{}_dims", role));
  const int64_t most = *std::max_element(places.begin(), places.end());
  LS_CHECK(most < limit, DataError,
           "{}_dims gives a dimension the place {}, the model's places are 0 .. {} "
           "(max_{}_dim {}); numbers are never dropped: raise model.max_{}_dim",
           role, most, limit - 1, role, limit, role);
  return places;
}

std::vector<std::string> statistics_of(data::NormMode mode) {
  switch (mode) {
    case data::NormMode::kQuantiles:
      return {"q01", "q99"};
    case data::NormMode::kMeanStd:
      return {"mean", "std"};
    case data::NormMode::kMinMax:
    case data::NormMode::kScale:
      return {"min", "max"};
    case data::NormMode::kIdentity:
      return {};
  }
  throw InternalError("unknown normalisation mode");
}

std::string numeric_features(const data::Dataset& dataset) {
  std::vector<std::string> names;
  for (const auto& feature : dataset.features()) {
    if (feature.kind == data::FeatureKind::kNumeric)
      names.push_back(fmt::format("{} [{}]", feature.name, feature.width()));
  }
  return names.empty() ? "none" : join(names, ", ");
}

/// Width of a numeric feature after checking it against the model and the configuration.
int64_t checked_width(const data::Dataset& dataset, const std::string& name, const char* role,
                      const char* key, int64_t limit, const std::optional<int64_t>& expected) {
  const data::Feature* feature = dataset.find_feature(name);
  LS_CHECK(feature != nullptr && feature->kind == data::FeatureKind::kNumeric, DataError,
           "{}: the {} feature '{}' is not there; numeric features: {}", dataset.root().string(),
           role, name, numeric_features(dataset));
  const int64_t width = feature->width();
  LS_CHECK(!expected || width == *expected, DataError,
           "{}: wrong {} dimension: '{}' has {} numbers per frame, the configuration expects {} "
           "({}_dim)",
           dataset.root().string(), role, name, width, expected.value_or(0), role);
  LS_CHECK(width >= 1 && width <= limit, DataError,
           "{}: wrong {} dimension: '{}' has {} numbers per frame, the model holds at most {} "
           "({}); numbers are never "
           "dropped: choose a model with a larger {}, or a dataset with fewer",
           dataset.root().string(), role, name, width, limit, key, key);
  return width;
}

data::Normalizer make_normalizer(const data::Dataset& dataset, const std::string& feature,
                                 int64_t width, data::NormMode mode, data::NormFlavour flavour) {
  const data::FeatureStats stats = data::completed_stats(dataset, feature, statistics_of(mode));
  data::Normalizer normalizer(feature, mode, flavour, width, stats);
  for (const std::string& note : normalizer.notes())
    log::warn("{}: {}", dataset.root().string(), note);
  return normalizer;
}

data::ChunkSpec chunk_spec(const Pi05TransformOptions& options, const data::Dataset& dataset) {
  data::ChunkSpec spec;
  spec.action = options.action_feature;
  spec.state = options.state_feature;
  spec.horizon = options.horizon;
  spec.mask = data::resolve_delta_mask(options.delta, dataset, spec.action, spec.state);
  return spec;
}

/// Statistics of relative actions, by name; none for absolute ones.
std::map<std::string, data::FeatureStats> relative_stats(const data::ChunkSpec& chunks,
                                                         const data::Dataset& dataset) {
  if (!chunks.relative()) return {};
  return {{data::chunk_stats_key(chunks), data::completed_chunk_stats(dataset, chunks)}};
}

data::Normalizer make_action_normalizer(const Pi05TransformOptions& options,
                                        const data::Dataset& dataset,
                                        const std::map<std::string, data::FeatureStats>& relative) {
  const int64_t width = checked_width(dataset, options.action_feature, "action", "max_action_dim",
                                      options.max_action_dim, options.action_dim);
  if (relative.empty()) {
    return make_normalizer(dataset, options.action_feature, width, options.action_norm,
                           options.norm_flavour);
  }
  const auto& [name, stats] = *relative.begin();
  data::Normalizer normalizer(name, options.action_norm, options.norm_flavour, width, stats);
  for (const std::string& note : normalizer.notes())
    log::warn("{}: {}", dataset.root().string(), note);
  return normalizer;
}

Pi05TransformOptions checked_options(Pi05TransformOptions options) {
  LS_CHECK(options.variant == "pi05" || options.variant == "pi0", ConfigError,
           "unknown variant '{}'; use pi05 or pi0", options.variant);
  LS_CHECK(options.image_size > 0 && options.horizon > 0 && options.max_action_dim > 0 &&
               options.max_state_dim > 0 && options.token_limit > 0,
           ConfigError,
           "image_size {}, horizon {}, max_action_dim {}, max_state_dim {} and token_limit {} must "
           "be > 0",
           options.image_size, options.horizon, options.max_action_dim, options.max_state_dim,
           options.token_limit);
  LS_CHECK(!options.slots.empty(), ConfigError, "the model has no camera slots");
  LS_CHECK(!options.tokenizer_path.empty(), ConfigError,
           "no tokenizer is configured; name a SentencePiece model file (PaliGemma's "
           "tokenizer.model for public "
           "checkpoints)");
  return options;
}

std::string camera_name(const std::string& camera) {
  return camera.empty() ? "(none)" : camera;
}

std::string bare(const std::string& camera) {
  return camera.rfind(kCameraPrefix, 0) == 0 ? camera.substr(kCameraPrefix.size()) : camera;
}

[[noreturn]] void fail_cameras(const std::string& why, const std::vector<std::string>& slots,
                               const std::vector<std::string>& cameras) {
  const std::string example =
      fmt::format("{}: {}", slots.front(), cameras.empty() ? "<camera>" : cameras.front());
  throw ConfigError(
      fmt::format("{}\n  slots wanted by the model: {}\n  cameras in the dataset: {}\n  say which "
                  "camera fills which slot, e.g. "
                  "data.cameras: {{{}}} (a slot that is left out gets no picture)",
                  why, join(slots, ", "), cameras.empty() ? "none" : join(cameras, ", "), example));
}

CameraSlots from_map(const std::vector<std::string>& slots, const CameraSlots& map,
                     const std::vector<std::string>& cameras) {
  std::map<std::string, std::string> by_slot;
  std::set<std::string> used;
  for (const auto& [slot, camera] : map) {
    if (std::find(slots.begin(), slots.end(), slot) == slots.end()) {
      fail_cameras(
          fmt::format("data.cameras names the slot '{}', which the model does not have", slot),
          slots, cameras);
    }
    if (!by_slot.emplace(slot, camera).second) {
      fail_cameras(fmt::format("data.cameras names the slot '{}' twice", slot), slots, cameras);
    }
    if (camera.empty()) continue;
    if (std::find(cameras.begin(), cameras.end(), camera) == cameras.end()) {
      fail_cameras(
          fmt::format(
              "data.cameras puts '{}' into the slot '{}', but the dataset has no such camera",
              camera, slot),
          slots, cameras);
    }
    if (!used.insert(camera).second) {
      fail_cameras(fmt::format("data.cameras puts the camera '{}' into two slots", camera), slots,
                   cameras);
    }
  }
  if (used.empty())
    fail_cameras("data.cameras leaves every slot without a picture", slots, cameras);
  CameraSlots resolved;
  for (const std::string& slot : slots) {
    const auto it = by_slot.find(slot);
    resolved.emplace_back(slot, it == by_slot.end() ? std::string() : it->second);
  }
  return resolved;
}

}  // namespace

CameraSlots resolve_camera_slots(const std::vector<std::string>& slots, const CameraSlots& map,
                                 const std::vector<std::string>& cameras) {
  if (!map.empty()) return from_map(slots, map, cameras);
  CameraSlots resolved;
  size_t matched = 0;
  for (const std::string& slot : slots) {
    std::vector<std::string> same;
    for (const std::string& camera : cameras) {
      if (camera == slot || bare(camera) == slot) same.push_back(camera);
    }
    if (same.size() > 1) {
      fail_cameras(
          fmt::format("the cameras {} have the name of the same slot", join(same, " and ")), slots,
          cameras);
    }
    matched += same.size();
    resolved.emplace_back(slot, same.empty() ? std::string() : same.front());
  }
  // Every slot filled, or every camera placed: nothing is left to guess.
  if (matched > 0 && (matched == slots.size() || matched == cameras.size())) return resolved;
  if (slots.size() == 1 && cameras.size() == 1) return {{slots.front(), cameras.front()}};
  fail_cameras("the dataset's cameras are not named like the model's slots", slots, cameras);
}

Pi05Transform::Pi05Transform(Pi05TransformOptions options, const data::Dataset& dataset)
    : options_(checked_options(std::move(options))),
      slots_(resolve_camera_slots(options_.slots, options_.cameras, dataset.cameras())),
      chunks_(chunk_spec(options_, dataset)),
      chunk_stats_(relative_stats(chunks_, dataset)),
      tokenizer_(data::SentencePieceTokenizer::load(options_.tokenizer_path)),
      action_norm_(make_action_normalizer(options_, dataset, chunk_stats_)) {
  if (chunks_.relative()) {
    delta_state_width_ = dataset.find_feature(options_.state_feature)->width();
    log::info("{} is relative to {} in the dimensions [{}]", options_.action_feature,
              options_.state_feature, fmt::join(data::mask_runs(chunks_.mask), ", "));
  }
  LS_CHECK(tokenizer_->bos_id() >= 0, ConfigError,
           "{}: the tokenizer has no BOS piece, which every prompt begins with",
           options_.tokenizer_path.string());
  LS_CHECK(options_.vocab_size == 0 || tokenizer_->vocab_size() <= options_.vocab_size, ConfigError,
           "{}: the tokenizer has {} pieces, the model's embedding {} rows",
           options_.tokenizer_path.string(), tokenizer_->vocab_size(), options_.vocab_size);
  if (needs_state()) {
    const int64_t width = checked_width(dataset, options_.state_feature, "state", "max_state_dim",
                                        options_.max_state_dim, options_.state_dim);
    state_norm_.emplace(make_normalizer(dataset, options_.state_feature, width, options_.state_norm,
                                        options_.norm_flavour));
  }
  action_dims_ = places_of(options_.action_dims, action_dim(), "action", options_.max_action_dim);
  if (state_norm_) {
    state_dims_ = places_of(options_.state_dims, state_dim(), "state", options_.max_state_dim);
  }
  digit_order_.resize(state_dims_.size());
  std::iota(digit_order_.begin(), digit_order_.end(), size_t{0});
  std::sort(digit_order_.begin(), digit_order_.end(),
            [this](size_t a, size_t b) { return state_dims_[a] < state_dims_[b]; });
  std::set<std::string> unused;
  for (const std::string& camera : dataset.cameras()) unused.insert(camera);
  for (const auto& [slot, camera] : slots_) {
    log::info("camera slot {} <- {}", slot, camera_name(camera));
    unused.erase(camera);
  }
  for (const std::string& camera : unused) log::info("camera {} is not used", camera);
}

data::WindowSpec Pi05Transform::windows() const {
  data::WindowSpec spec;
  std::vector<int64_t>& offsets = spec.columns[options_.action_feature];
  offsets.resize(static_cast<size_t>(options_.horizon));
  std::iota(offsets.begin(), offsets.end(), int64_t{0});
  if ((needs_state() || chunks_.relative()) && options_.state_feature != options_.action_feature)
    spec.columns[options_.state_feature] = {0};
  for (const auto& [slot, camera] : slots_) {
    if (!camera.empty()) spec.cameras[camera] = {0};
  }
  return spec;
}

std::vector<int64_t> Pi05Transform::prompt_tokens(std::string_view task,
                                                  std::span<const float> state) const {
  if (options_.variant == "pi0" || !options_.discrete_state) return pi0_tokens(*tokenizer_, task);
  return pi05_tokens(*tokenizer_, task, discretise_state(state));
}

namespace {

/// Values of a column over its window, checked for size and finiteness.
const data::WindowValues& column_of(const data::RawSample& sample, const std::string& name,
                                    int64_t rows, int64_t width) {
  const auto it = sample.columns.find(name);
  LS_CHECK(it != sample.columns.end(), DataError, "episode {} frame {}: column '{}' was not read",
           sample.episode, sample.frame, name);
  const data::WindowValues& values = it->second;
  LS_CHECK(values.width == width && values.num_offsets >= rows &&
               static_cast<int64_t>(values.values.size()) == values.num_offsets * width &&
               static_cast<int64_t>(values.is_pad.size()) == values.num_offsets,
           DataError, "episode {} frame {}: '{}' is {} x {}, expected {} x {}", sample.episode,
           sample.frame, name, values.num_offsets, values.width, rows, width);
  for (size_t i = 0; i < values.values.size(); ++i) {
    LS_CHECK(std::isfinite(values.values[i]), DataError,
             "episode {} frame {}: {}[{}] at window step {} is {}", sample.episode, sample.frame,
             name, static_cast<int64_t>(i) % width, static_cast<int64_t>(i) / width,
             values.values[i]);
  }
  return values;
}

/// Changes a training sample's picture, or appends how the model is to change it.
void augment_picture(const Pi05TransformOptions& options, const data::RawSample& sample,
                     const std::string& slot, const std::string& camera, std::span<float> pixels,
                     std::vector<float>& parameters) {
  if (!sample.draw || !options.augment.enabled()) return;
  const int64_t side = options.image_size;
  const data::PictureAugment change =
      data::draw_augment(options.augment, *sample.draw, sample.sample_id, slot, camera, side, side);
  if (!options.augment_on_device) return data::apply_augment(change, pixels, side, side);
  parameters.resize(parameters.size() + data::kAugmentNumbers);
  data::write_augment(change, std::span(parameters).last(data::kAugmentNumbers));
}

}  // namespace

std::string Pi05Transform::prompt(const data::RawSample& sample) const {
  if (options_.variant == "pi0" || !options_.discrete_state) return clean_task(sample.task) + "\n";
  const data::WindowValues& raw = column_of(sample, options_.state_feature, 1, state_dim());
  std::vector<float> own(static_cast<size_t>(state_dim())), state(own.size());
  state_norm_->normalise({raw.values.data(), own.size()}, own);
  for (size_t d = 0; d < own.size(); ++d) state[d] = own[digit_order_[d]];
  return pi05_prompt(sample.task, discretise_state(state));
}

bool Pi05Transform::drops_state(const data::RawSample& sample) const {
  if (!sample.draw || options_.state_dropout <= 0) return false;
  double u = 0;
  fill_uniform(make_key(sample.draw->seed, RngStream::kDropout, sample.draw->step,
                        static_cast<uint64_t>(sample.sample_id)),
               {&u, 1});
  return u < options_.state_dropout;
}

std::unique_ptr<Transform::Item> Pi05Transform::prepare(const data::RawSample& sample) const {
  auto item = std::make_unique<Pi05Item>();
  item->sample_id = sample.sample_id;

  const int64_t width = action_dim();
  const data::WindowValues& recorded =
      column_of(sample, options_.action_feature, options_.horizon, width);
  std::vector<float> actions(recorded.values.begin(),
                             recorded.values.begin() + options_.horizon * width);
  if (chunks_.relative()) {
    const data::WindowValues& at = column_of(sample, options_.state_feature, 1, delta_state_width_);
    item->raw_state.assign(at.values.begin(), at.values.begin() + delta_state_width_);
    data::apply_delta_actions(actions, width, item->raw_state, chunks_.mask);
  }
  item->actions.assign(static_cast<size_t>(options_.horizon * options_.max_action_dim), 0.0F);
  std::vector<float> row(static_cast<size_t>(width));
  for (int64_t t = 0; t < options_.horizon; ++t) {
    action_norm_.normalise({&actions[static_cast<size_t>(t * width)], row.size()}, row);
    float* out = &item->actions[static_cast<size_t>(t * options_.max_action_dim)];
    for (size_t d = 0; d < row.size(); ++d) out[action_dims_[d]] = row[d];
  }
  if (options_.says_dims) {
    item->dim_is_real.assign(static_cast<size_t>(options_.max_action_dim), 0);
    for (const int64_t place : action_dims_) item->dim_is_real[static_cast<size_t>(place)] = 1;
  }
  item->action_is_pad.assign(recorded.is_pad.begin(), recorded.is_pad.begin() + options_.horizon);

  item->state.assign(static_cast<size_t>(options_.max_state_dim), 0.0F);
  std::vector<float> state(static_cast<size_t>(state_dim()));  // digits follow the model's places
  if (state_norm_) {
    const data::WindowValues& raw = column_of(sample, options_.state_feature, 1, state_dim());
    std::vector<float> own(state.size());
    state_norm_->normalise({raw.values.data(), own.size()}, own);
    if (drops_state(sample)) std::fill(own.begin(), own.end(), 0.0F);
    for (size_t d = 0; d < own.size(); ++d) {
      item->state[static_cast<size_t>(state_dims_[d])] = own[d];
      state[d] = own[digit_order_[d]];
    }
  }
  item->tokens = fitting_tokens(sample, state);

  const auto picture = static_cast<size_t>(3 * options_.image_size * options_.image_size);
  for (const auto& [slot, camera] : slots_) item->num_images += camera.empty() ? 0 : 1;
  item->images.resize(static_cast<size_t>(item->num_images) * picture);
  size_t at = 0;
  for (const auto& [slot, camera] : slots_) {
    if (camera.empty()) continue;
    const auto it = sample.cameras.find(camera);
    LS_CHECK(it != sample.cameras.end() && !it->second.frames.empty() &&
                 it->second.frames.front() != nullptr,
             DataError, "episode {} frame {}: no picture of camera '{}' was read", sample.episode,
             sample.frame, camera);
    const std::span<float> pixels(item->images.data() + at, picture);
    data::resize_with_pad_chw(*it->second.frames.front(), options_.image_size, options_.resize,
                              pixels);
    augment_picture(options_, sample, slot, camera, pixels, item->augment);
    at += picture;
  }
  return item;
}

std::unique_ptr<Batch> Pi05Transform::collate(std::span<const std::unique_ptr<Item>> items) const {
  LS_CHECK(!items.empty(), InternalError, "a batch of no samples");
  auto batch = std::make_unique<Pi05Batch>();
  int64_t num_images = 0, num_tokens = 0;
  std::vector<const Pi05Item*> parts;
  for (const auto& item : items) {
    const auto* part = dynamic_cast<const Pi05Item*>(item.get());
    LS_CHECK(part != nullptr, InternalError, "a sample of another model family in a Pi05 batch");
    parts.push_back(part);
    batch->sample_ids.push_back(part->sample_id);
    batch->images_per_sample.push_back(part->num_images);
    batch->tokens_per_sample.push_back(static_cast<int64_t>(part->tokens.size()));
    num_images += part->num_images;
    num_tokens += batch->tokens_per_sample.back();
  }
  const auto size = static_cast<int64_t>(parts.size());
  const int64_t side = options_.image_size;
  batch->images = at::empty({num_images, 3, side, side}, at::kFloat);
  batch->token_ids = at::empty({num_tokens}, at::kLong);
  batch->state = at::empty({size, options_.max_state_dim}, at::kFloat);
  batch->actions = at::empty({size, options_.horizon, options_.max_action_dim}, at::kFloat);
  batch->action_is_pad = at::empty({size, options_.horizon}, at::kBool);
  float* images = batch->images.mutable_data_ptr<float>();
  int64_t* tokens = batch->token_ids.mutable_data_ptr<int64_t>();
  float* state = batch->state.mutable_data_ptr<float>();
  float* actions = batch->actions.mutable_data_ptr<float>();
  bool* is_pad = batch->action_is_pad.mutable_data_ptr<bool>();
  bool* is_real = nullptr;
  if (options_.says_dims) {
    batch->dim_is_real = at::empty({size, options_.max_action_dim}, at::kBool);
    is_real = batch->dim_is_real.mutable_data_ptr<bool>();
  }
  std::vector<float> augment;
  for (const Pi05Item* part : parts) {
    images = std::copy(part->images.begin(), part->images.end(), images);
    tokens = std::copy(part->tokens.begin(), part->tokens.end(), tokens);
    state = std::copy(part->state.begin(), part->state.end(), state);
    actions = std::copy(part->actions.begin(), part->actions.end(), actions);
    is_pad = std::transform(part->action_is_pad.begin(), part->action_is_pad.end(), is_pad,
                            [](uint8_t v) { return v != 0; });
    batch->raw_state.insert(batch->raw_state.end(), part->raw_state.begin(), part->raw_state.end());
    augment.insert(augment.end(), part->augment.begin(), part->augment.end());
    if (is_real == nullptr) continue;
    LS_CHECK(part->dim_is_real.size() == static_cast<size_t>(options_.max_action_dim),
             InternalError, "a sample does not say its action dimensions");
    is_real = std::transform(part->dim_is_real.begin(), part->dim_is_real.end(), is_real,
                             [](uint8_t v) { return v != 0; });
  }
  // Robots with states of different widths share batches in training only, which needs none.
  const auto same_width = [&](const Pi05Item* part) {
    return part->raw_state.size() == parts.front()->raw_state.size();
  };
  if (!std::all_of(parts.begin(), parts.end(), same_width)) batch->raw_state.clear();
  if (!augment.empty()) {
    LS_CHECK(static_cast<int64_t>(augment.size()) == num_images * data::kAugmentNumbers,
             InternalError, "a batch of samples with and without augmentation");
    batch->augment = at::empty({num_images, data::kAugmentNumbers}, at::kFloat);
    std::copy(augment.begin(), augment.end(), batch->augment.mutable_data_ptr<float>());
  }
  batch->check();
  return batch;
}

std::map<std::string, data::FeatureStats> Pi05Transform::own_stats() const {
  return chunk_stats_;
}

at::Tensor Pi05Transform::denormalise_actions(const at::Tensor& actions,
                                              const Batch* observed) const {
  const int64_t width = action_dim();
  LS_CHECK(
      actions.defined() && actions.dim() == 3 && actions.scalar_type() == at::kFloat &&
          actions.is_cpu() &&
          (options_.action_dims.empty()
               ? actions.size(2) == width || actions.size(2) == options_.max_action_dim
               : actions.size(2) <= options_.max_action_dim &&
                     actions.size(2) > *std::max_element(action_dims_.begin(), action_dims_.end())),
      ShapeError, "denormalise_actions needs host fp32 [B, A, {}] or [B, A, {}]", width,
      options_.max_action_dim);
  const at::Tensor source = actions.contiguous();
  at::Tensor raw = at::empty({source.size(0), source.size(1), width}, at::kFloat);
  const float* in = source.const_data_ptr<float>();
  float* out = raw.mutable_data_ptr<float>();
  std::vector<float> own(static_cast<size_t>(width));
  for (int64_t row = 0; row < source.size(0) * source.size(1);
       ++row, in += source.size(2), out += width) {
    for (size_t d = 0; d < own.size(); ++d) own[d] = in[action_dims_[d]];
    action_norm_.denormalise(own, {out, own.size()});
  }
  if (chunks_.relative()) make_absolute(raw, observed);
  return raw;
}

void Pi05Transform::make_absolute(at::Tensor& raw, const Batch* observed) const {
  const auto* batch = dynamic_cast<const Pi05Batch*>(observed);
  const auto width = static_cast<size_t>(delta_state_width_);
  LS_CHECK(batch != nullptr && batch->raw_state.size() == width * batch->sample_ids.size(),
           InternalError,
           "relative actions become absolute with the states of the batch they were predicted for");
  LS_CHECK(raw.size(0) % batch->size() == 0, ShapeError,
           "{} chunks of actions for a batch of {} samples", raw.size(0), batch->size());
  const int64_t chunk = raw.size(1) * raw.size(2);
  float* rows = raw.mutable_data_ptr<float>();
  for (int64_t r = 0; r < raw.size(0); ++r) {
    const size_t sample = static_cast<size_t>(r % batch->size());
    data::undo_delta_actions({rows + r * chunk, static_cast<size_t>(chunk)}, raw.size(2),
                             {batch->raw_state.data() + sample * width, width}, chunks_.mask);
  }
}

void Pi05Transform::check_dataset(const data::Dataset& dataset) const {
  const int64_t action_width =
      checked_width(dataset, options_.action_feature, "action", "max_action_dim",
                    options_.max_action_dim, action_dim());
  LS_CHECK(action_width == action_dim(), InternalError, "action width changed");
  if (state_norm_) {
    checked_width(dataset, options_.state_feature, "state", "max_state_dim", options_.max_state_dim,
                  state_dim());
  }
  check_prompts(dataset);
}

}  // namespace longship::models
