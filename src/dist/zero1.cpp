#include "dist/zero1.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <cmath>

namespace longship::dist {

Zero1::Zero1(Communicator& communicator, BucketPlan plan, std::vector<ReducedParam> params,
             MissingGradients missing, GradientBuffers buffers)
    : reducer_(communicator, plan, params, ReduceMode::kReduceScatter, missing, buffers) {
  const at::NoGradGuard no_grad;
  const int64_t rank = communicator.rank();
  for (const Bucket& bucket : plan.buckets) {
    const at::Tensor& first = params[static_cast<size_t>(bucket.slots.front().param)].param;
    at::Tensor flat = at::zeros({bucket.numel}, first.options().requires_grad(false));
    for (const BucketSlot& slot : bucket.slots) {
      at::Tensor& param = params[static_cast<size_t>(slot.param)].param;
      const at::Tensor view = flat.narrow(0, slot.offset, slot.numel).view(param.sizes());
      view.copy_(param);
      param.set_data(view);
    }
    weights_.push_back(std::move(flat));
  }
  communicator.share(weights_);
  gathers_.resize(plan.buckets.size());
  for (const OwnedSlice& own : owned_slices(plan, rank)) {
    const size_t b = static_cast<size_t>(own.bucket);
    const int64_t part = plan.buckets[b].numel / communicator.world_size();
    const int64_t count = own.end - own.begin;
    slices_.push_back({own.param, plan.params[static_cast<size_t>(own.param)].name, own.begin,
                       own.end, weights_[b].narrow(0, rank * part + own.shard_offset, count),
                       reducer_.shard(own.bucket).narrow(0, own.shard_offset, count)});
  }
}

// A gather that nobody waited for still writes into the flat weights, which go away here.
Zero1::~Zero1() {
  try {
    wait_parameters();
  } catch (const std::exception&) {
    // The peers are gone; whoever used the weights has been told or will be by the next collective.
  }
}

double Zero1::grad_norm(ShardOptimizer& optimizer) {
  return std::sqrt(reducer_.communicator().sum({optimizer.squared_norm()}, "norm").front());
}

void Zero1::update(ShardOptimizer& optimizer, double lr, double norm) {
  optimizer.apply(lr, norm);
  begin_gather();
}

void Zero1::begin_gather() {
  const at::NoGradGuard no_grad;
  wait_parameters();
  Communicator& communicator = reducer_.communicator();
  // Buckets are in reverse order of use.
  for (size_t b = weights_.size(); b-- > 0;) {
    const int64_t part = weights_[b].numel() / communicator.world_size();
    gathers_[b] = communicator.all_gather(weights_[b],
                                          weights_[b].narrow(0, communicator.rank() * part, part),
                                          "params", fmt::format("bucket {}", b));
  }
}

void Zero1::wait_parameter(int64_t param) {
  const int64_t b = reducer_.plan().bucket_of(param);
  if (b >= 0) gathers_[static_cast<size_t>(b)].wait();
}

void Zero1::wait_parameters() {
  for (size_t b = gathers_.size(); b-- > 0;) gathers_[b].wait();
}

int64_t Zero1::weight_bytes() const {
  int64_t sum = 0;
  for (const at::Tensor& flat : weights_) sum += static_cast<int64_t>(flat.nbytes());
  return sum;
}

}  // namespace longship::dist
