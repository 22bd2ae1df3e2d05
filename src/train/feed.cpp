#include "train/feed.h"

#include <algorithm>

#include "base/error.h"

namespace longship::train {

const char* to_string(FeedStage stage) {
  switch (stage) {
    case FeedStage::kFetch:
      return "fetch";
    case FeedStage::kDecode:
      return "decode";
    case FeedStage::kTransform:
      return "transform";
    case FeedStage::kCollate:
      return "collate";
    case FeedStage::kPin:
      return "pin";
  }
  return "";
}

BatchMaker::BatchMaker(const data::Dataset& dataset, const models::Transform& transform,
                       const models::Policy& policy, bool pin,
                       std::shared_ptr<UnreadableSamples> unreadable, bool share_decoding)
    : dataset_(dataset),
      transform_(transform),
      policy_(policy),
      pin_(pin),
      unreadable_(std::move(unreadable)),
      share_decoding_(share_decoding),
      windows_(transform.windows()),
      decoding_before_(dataset.picture_statistics().decoding) {}

std::vector<data::RawSample> BatchMaker::read(std::span<const int64_t> sample_ids) const {
  if (share_decoding_) {
    try {
      return dataset_.get_batch(sample_ids, windows_);
    } catch (const DataError&) {
      if (!unreadable_) throw;
    }
  }
  // Behind an error: which ones they are is found by asking for each alone.
  std::vector<data::RawSample> samples;
  for (const int64_t id : sample_ids) {
    try {
      samples.push_back(dataset_.get(id, windows_));
    } catch (const DataError& error) {
      if (!unreadable_) throw;
      unreadable_->note(id, error.what());
    }
  }
  return samples;
}

std::vector<std::unique_ptr<models::Transform::Item>> BatchMaker::prepare(
    const std::vector<data::RawSample>& samples) const {
  std::vector<std::unique_ptr<models::Transform::Item>> items;
  items.reserve(samples.size());
  for (const data::RawSample& sample : samples) {
    try {
      items.push_back(transform_.prepare(sample));
    } catch (const Error& error) {
      if (unreadable_ && error.code() == ExitCode::kData) {
        unreadable_->note(sample.sample_id, error.what());
        continue;
      }
      throw_error(error.code(),
                  fmt::format("dataset {}: episode {}, frame {}: {}", dataset_.root().string(),
                              sample.episode, sample.frame, error.what()));
    }
  }
  return items;
}

std::unique_ptr<models::Batch> BatchMaker::make(std::span<const int64_t> sample_ids,
                                                const models::DrawKey& key) const {
  StageTimes spent;
  const auto spend = [&spent](FeedStage stage, Stopwatch& watch) {
    spent[static_cast<size_t>(stage)] += watch.lap();
  };
  Stopwatch watch;
  std::vector<std::unique_ptr<models::Transform::Item>> items;
  {
    // Pictures are freed as soon as the model has what it needs.
    std::vector<data::RawSample> samples = read(sample_ids);
    for (data::RawSample& sample : samples) sample.draw = data::TrainDraw{key.seed, key.step};
    spend(FeedStage::kFetch, watch);
    items = prepare(samples);
  }
  LS_CHECK(!items.empty(), DataError,
           "none of the {} samples of a batch can be read; repair the data, or use a larger "
           "train.micro_batch",
           sample_ids.size());
  spend(FeedStage::kTransform, watch);
  std::unique_ptr<models::Batch> batch = transform_.collate(items);
  policy_.prepare(*batch, key);
  spend(FeedStage::kCollate, watch);
  if (pin_) {
    for (auto& [name, tensor] : batch->tensors()) *tensor = tensor->pin_memory();
  }
  spend(FeedStage::kPin, watch);
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < spent.size(); ++i) times_[i] += spent[i];
  return batch;
}

StageTimes BatchMaker::times() const {
  // The dataset counts decoding itself, inside what is fetching from here.
  const Elapsed decoding = dataset_.picture_statistics().decoding - decoding_before_;
  const std::lock_guard lock(mutex_);
  StageTimes out = times_;
  Elapsed& fetch = out[static_cast<size_t>(FeedStage::kFetch)];
  // A batch at work has decoding on the books and no fetching yet.
  fetch.wall_s = std::max(0.0, fetch.wall_s - decoding.wall_s);
  fetch.cpu_s = std::max(0.0, fetch.cpu_s - decoding.cpu_s);
  out[static_cast<size_t>(FeedStage::kDecode)] = decoding;
  return out;
}

namespace {

std::shared_ptr<UnreadableSamples> unreadable_samples(const Recipe& recipe,
                                                      const data::ShuffledStream& stream) {
  if (recipe.data.on_bad_sample != "skip") return nullptr;
  return std::make_shared<UnreadableSamples>(stream.num_samples(), recipe.data.max_bad_fraction);
}

}  // namespace

BatchFeed::BatchFeed(const Recipe& recipe, const data::Dataset& dataset,
                     const models::Transform& transform, const models::Policy& policy,
                     const data::ShuffledStream& stream, bool pin, int64_t first_step,
                     int64_t last_step, const BatchShare& share)
    : num_micro_(recipe.train.num_micro(share.world_size)),
      maker_(dataset, transform, policy, pin, unreadable_samples(recipe, stream),
             recipe.data.share_decoding) {
  const int64_t micro = recipe.train.micro_size(share.world_size);
  const uint64_t seed = static_cast<uint64_t>(recipe.train.seed);
  // Micro-batch i of this process: those of a step are neighbours in its own count, and lie
  // between the other processes' in the global batch.
  const auto produce = [this, &stream, micro, seed, share](int64_t i) {
    const int64_t first = (i * share.world_size + share.rank) * micro;
    std::vector<int64_t> ids;
    for (int64_t k = 0; k < micro; ++k) ids.push_back(stream.at(first + k));
    return maker_.make(ids, {seed, static_cast<uint64_t>(i / num_micro_)});
  };
  prefetcher_ = std::make_unique<OrderedPrefetcher<std::unique_ptr<models::Batch>>>(
      recipe.data.workers, recipe.data.prefetch, produce, first_step * num_micro_,
      last_step * num_micro_);
}

std::vector<std::unique_ptr<models::Batch>> BatchFeed::next_step() {
  std::vector<std::unique_ptr<models::Batch>> out;
  wait_ms_ = 0;
  for (int64_t m = 0; m < num_micro_; ++m) {
    out.push_back(prefetcher_->next());
    wait_ms_ += prefetcher_->wait_ms();
  }
  return out;
}

}  // namespace longship::train
