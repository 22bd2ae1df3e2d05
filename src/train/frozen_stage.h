#pragma once
// The frozen part of a policy as a stage of its own in front of the steps: on its own stream beside
// the step before (its own graphs, its own memory), or from the feature cache.
//
//   stage.from_cache(micro);                      // host batches
//   ... copied to the device ...
//   batches = stage.run(batches, copied);         // behind the frozen part
//   stage.ready(compute);                         // compute waits for them
//   ... their values are taken into the step's inputs ...
//   stage.taken(compute);                         // they may be overwritten
//   stage.keep(pending)                           // when the step is done
//
// Nothing here changes a value: the same operators run on the same inputs.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/spec.h"
#include "runtime/stream.h"
#include "train/feature_cache.h"
#include "train/graph_contract.h"

namespace longship::train {

struct FrozenStageOptions {
  at::Device device = at::kCPU;
  bool beside = false;      // on a stream of its own, as captured graphs
  int64_t cache_bytes = 0;  // 0: no cache
};

class FrozenStage {
 public:
  using Batches = std::vector<std::unique_ptr<models::Batch>>;
  /// Features on their way to the host, for the cache.
  struct Fresh {
    std::vector<int64_t> sample_ids, rows;
    at::Tensor features;  // host, there when the step is done
  };

  /// `policy` must have a frozen part and outlive the stage.
  FrozenStage(models::Policy& policy, const FrozenStageOptions& options);
  ~FrozenStage();

  /// Where the cache has the samples of all micro-batches (prepared, on the host), puts batches
  /// behind the frozen part in their place.
  void from_cache(Batches& micro);
  /// The batches behind the frozen part of those on the device, which `copied` says are there; runs
  /// what from_cache() did not serve. What the cache shall get is added to `fresh`.
  Batches run(const Batches& micro, const runtime::Event& copied, const runtime::Stream& compute,
              std::vector<Fresh>& fresh);
  /// `compute` waits for what run() returned.
  void ready(const runtime::Stream& compute) const;
  /// What run() returned is no longer read behind this point of `compute`.
  void taken(const runtime::Stream& compute);
  /// When the step is done.
  void keep(const std::vector<Fresh>& fresh);
  /// The weights were set anew.
  void reset();

  int64_t served() const { return served_; }  // steps from the cache
  int64_t captures() const { return captures_; }
  int64_t graph_nodes() const { return graph_nodes_; }  // of the last replay

 private:
  struct Plan {
    Batches inputs, outputs;
    std::unique_ptr<runtime::CapturedGraph> graph;
    GraphContract contract;
    bool ran = false;
    std::string draws;    // why it may not be captured: what the eager run drew
    std::string refused;  // why the last run was not a replay
  };
  Batches compute_all(const Batches& micro) const;
  Batches replay(Plan& plan, const Batches& micro);
  void fetch(const Batches& before, const Batches& behind, std::vector<Fresh>& fresh) const;

  models::Policy& policy_;
  FrozenStageOptions options_;
  runtime::Stream stream_;
  runtime::GraphPool pool_;
  runtime::Event ready_, taken_;
  std::map<std::string, Plan> plans_;
  std::optional<FeatureCache> cache_;
  int64_t served_ = 0, captures_ = 0, graph_nodes_ = 0;
};

}  // namespace longship::train
