#include "train/feed.h"

namespace longship::train {

BatchFeed::BatchFeed(const Recipe& recipe, const data::Dataset& dataset,
                     const models::Transform& transform, const models::Policy& policy,
                     const data::ShuffledStream& stream, bool pin, int64_t first_step,
                     int64_t last_step)
    : num_micro_(recipe.train.num_micro()) {
  const int64_t micro = recipe.train.global_batch / num_micro_;
  const uint64_t seed = static_cast<uint64_t>(recipe.train.seed);
  // Micro-batch i of the run: the micro-batches of a step are neighbours, so it starts at sample
  // i * micro.
  const auto produce = [&dataset, &transform, &policy, &stream, pin, micro, seed,
                        num_micro = num_micro_](int64_t i) {
    const data::WindowSpec windows = transform.windows();
    std::vector<std::unique_ptr<models::Transform::Item>> items;
    for (int64_t k = 0; k < micro; ++k) {
      items.push_back(transform.prepare(dataset.get(stream.at(i * micro + k), windows)));
    }
    std::unique_ptr<models::Batch> batch = transform.collate(items);
    policy.prepare(*batch, {seed, static_cast<uint64_t>(i / num_micro)});
    if (pin) {
      for (auto& [name, tensor] : batch->tensors()) *tensor = tensor->pin_memory();
    }
    return batch;
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
