#pragma once
// Sampling of action chunks as one captured graph per shape of observation.

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "models/spec.h"
#include "runtime/stream.h"

namespace longship::train {

/// On a CUDA device the second observation of a shape is captured and later ones replay it; on a
/// CPU every call runs eagerly. Results are the same. One thread at a time.
class CapturedSampler {
 public:
  /// `policy` must outlive the sampler.
  CapturedSampler(models::Policy& policy, at::Device device);
  ~CapturedSampler();

  /// `batch`: as collate() made it, on the host; start noise is drawn from `key` and the sample
  /// ids. Returns chunks [B, horizon, action_dim] fp32 on the device, valid until the next call.
  /// The device may still be at work: read them with a synchronising copy.
  at::Tensor sample(const models::Batch& batch, const models::DrawKey& key);
  int64_t graph_nodes() const { return graph_nodes_; }

 private:
  struct Plan {
    std::unique_ptr<models::Batch> inputs;
    std::unique_ptr<runtime::CapturedGraph> graph;
    at::Tensor actions;
  };
  models::Policy& policy_;
  at::Device device_;
  runtime::Stream stream_;
  runtime::GraphPool pool_;
  std::map<std::string, Plan> plans_;
  int64_t graph_nodes_ = 0;
};

}  // namespace longship::train
