#include "train/frozen_stage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "train/batch_transfer.h"
#include "train/generator_watch.h"

namespace longship::train {
namespace {

at::Tensor features_of(models::Batch& batch) {
  for (const auto& [name, tensor] : batch.tensors()) {
    if (name == "features") return *tensor;
  }
  return {};
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace

FrozenStage::FrozenStage(models::Policy& policy, const FrozenStageOptions& options)
    : policy_(policy),
      options_(options),
      stream_(options.beside ? runtime::Stream::make(options.device) : runtime::Stream()),
      pool_(options.beside ? options.device : c10::Device(at::kCPU)) {
  LS_CHECK(policy.has_frozen_part(), InternalError, "a stage for a policy without a frozen part");
  if (options.cache_bytes > 0) cache_.emplace(options.cache_bytes);
}

FrozenStage::~FrozenStage() {
  stream_.synchronize();
}

void FrozenStage::from_cache(Batches& micro) {
  if (!cache_) return;
  const auto rows_of = [&](const models::Batch& batch) { return policy_.feature_rows(batch); };
  const bool all = std::all_of(micro.begin(), micro.end(), [&](const auto& batch) {
    const std::vector<int64_t> rows = rows_of(*batch);
    return cache_->has(batch->sample_ids, rows, policy_.num_feature_rows(*batch) - sum(rows));
  });
  if (!all) return;
  for (auto& batch : micro) {
    const std::vector<int64_t> rows = rows_of(*batch);
    batch = policy_.behind_frozen_part(
        *batch,
        cache_->gather(batch->sample_ids, rows, policy_.num_feature_rows(*batch) - sum(rows),
                       options_.device.is_cuda()));
  }
  ++served_;
}

FrozenStage::Batches FrozenStage::compute_all(const Batches& micro) const {
  const at::NoGradGuard no_grad;
  Batches out;
  for (const auto& batch : micro) {
    out.push_back(policy_.behind_frozen_part(*batch, policy_.frozen_features(*batch)));
  }
  return out;
}

// On the stage's stream. The second occurrence of a shape is captured; a graph that may not be
// replayed is left aside for the step.
FrozenStage::Batches FrozenStage::replay(Plan& plan, const Batches& micro) {
  const auto eagerly = [&] {
    const runtime::PoolScope in_pool(pool_, stream_);
    return compute_all(micro);
  };
  if (!plan.ran) {
    plan.ran = true;
    const GeneratorWatch watch(options_.device);
    Batches out = eagerly();
    plan.draws = watch.moved();
    return out;
  }
  if (!plan.graph && plan.draws.empty()) {
    plan.inputs = graph_inputs(micro, micro.size());
    plan.graph = std::make_unique<runtime::CapturedGraph>();
    plan.graph->capture(stream_, pool_, [&] { plan.outputs = compute_all(plan.inputs); });
    std::vector<GraphContract::Named> touched;
    for (const models::ParamInfo& info : policy_.parameters()) {
      if (info.role == models::ParamRole::kFrozen) touched.emplace_back(info.name, info.tensor);
    }
    plan.contract = GraphContract(plan.inputs, touched);
    ++captures_;
  }
  const std::string mismatch =
      plan.graph ? plan.contract.mismatch(micro, /*one_input=*/false) : plan.draws;
  if (!mismatch.empty() && mismatch != plan.refused) {
    log::warn("the frozen part is not replayed as a graph: {}; it runs eagerly", mismatch);
  }
  plan.refused = mismatch;
  if (!mismatch.empty()) return eagerly();
  for (size_t m = 0; m < micro.size(); ++m) take_values(*plan.inputs[m], *micro[m]);
  plan.graph->replay();
  graph_nodes_ = plan.graph->num_nodes();
  Batches out;
  for (size_t m = 0; m < micro.size(); ++m) {
    // The graph's own tensors, with what the host knows of this step's samples.
    out.push_back(plan.outputs[m]->clone());
    out.back()->sample_ids = micro[m]->sample_ids;
  }
  return out;
}

FrozenStage::Batches FrozenStage::run(const Batches& micro, const runtime::Event& copied,
                                      const runtime::Stream& compute, std::vector<Fresh>& fresh) {
  const bool there = std::all_of(micro.begin(), micro.end(),
                                 [](const auto& batch) { return features_of(*batch).defined(); });
  const runtime::Stream& stream = options_.beside ? stream_ : compute;
  const runtime::StreamScope scope(stream);
  copied.block(stream);
  taken_.block(stream);
  Batches out;
  if (there) {
    for (const auto& batch : micro) out.push_back(batch->clone());
  } else if (!options_.beside) {
    out = compute_all(micro);
  } else {
    const std::string key = graph_key(micro);
    if (plans_.size() >= kMaxGraphs && !plans_.contains(key)) {
      warn_graphs_dropped("the frozen part");
      stream_.synchronize();
      plans_.clear();
    }
    out = replay(plans_[key], micro);
  }
  if (cache_ && !there) fetch(micro, out, fresh);
  ready_.record(stream);
  return out;
}

void FrozenStage::fetch(const Batches& before, const Batches& behind,
                        std::vector<Fresh>& fresh) const {
  for (size_t m = 0; m < before.size(); ++m) {
    const at::Tensor features = features_of(*behind[m]);
    at::Tensor host = features;
    if (features.is_cuda()) {
      host = at::empty(features.sizes(), features.options().device(at::kCPU).pinned_memory(true));
      host.copy_(features, /*non_blocking=*/true);
    }
    fresh.push_back({before[m]->sample_ids, policy_.feature_rows(*before[m]), host});
  }
}

void FrozenStage::ready(const runtime::Stream& compute) const {
  ready_.block(compute);
}

void FrozenStage::taken(const runtime::Stream& compute) {
  taken_.record(compute);
}

void FrozenStage::keep(const std::vector<Fresh>& fresh) {
  if (!cache_) return;
  for (const Fresh& one : fresh) cache_->put(one.sample_ids, one.rows, one.features);
}

void FrozenStage::reset() {
  if (cache_) cache_->clear();
}

}  // namespace longship::train
