#include "train/captured_sampler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "runtime/device.h"
#include "train/batch_transfer.h"

namespace longship::train {

CapturedSampler::CapturedSampler(models::Policy& policy, at::Device device)
    : policy_(policy),
      device_(device),
      stream_(runtime::Stream::make(device, true)),
      pool_(device) {
  runtime::synchronize(device);  // weights were made on another stream
}

CapturedSampler::~CapturedSampler() {
  stream_.synchronize();
}

at::Tensor CapturedSampler::sample(const models::Batch& batch, const models::DrawKey& key) {
  const at::NoGradGuard no_grad;
  std::unique_ptr<models::Batch> own = batch.clone();
  policy_.prepare_sampling(*own, key);
  if (!device_.is_cuda()) return policy_.sample(*own, key);
  const runtime::StreamScope scope(stream_);
  const bool seen = plans_.contains(own->signature());
  Plan& plan = plans_[own->signature()];
  if (!seen) {  // eagerly once: libraries make their plans and workspaces
    plan.inputs = own->clone();
    for (auto& [name, tensor] : plan.inputs->tensors()) {
      *tensor = at::empty_like(*tensor, tensor->options().device(device_));
    }
    own->to(device_);
    return policy_.sample(*own, key);
  }
  take_values(*plan.inputs, *own);
  if (!plan.graph) {
    plan.graph = std::make_unique<runtime::CapturedGraph>();
    plan.graph->capture(stream_, pool_, [&] { plan.actions = policy_.sample(*plan.inputs, key); });
  }
  plan.graph->replay();
  graph_nodes_ = plan.graph->num_nodes();
  return plan.actions;
}

}  // namespace longship::train
