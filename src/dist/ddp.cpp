#include "dist/ddp.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "ops/convert.h"

namespace longship::dist {

// Called by autograd right after it has added to a parameter's gradient.
class GradReducer::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradReducer* owner, int64_t param) : owner_(owner), param_(param) {}
  void operator()(const at::Tensor&) override { owner_->gradient_ready(param_); }

 private:
  GradReducer* owner_;
  int64_t param_;
};

GradReducer::GradReducer(Communicator& communicator, BucketPlan plan,
                         std::vector<ReducedParam> params, ReduceMode mode,
                         MissingGradients missing, GradientBuffers buffers)
    : communicator_(communicator),
      plan_(std::move(plan)),
      params_(std::move(params)),
      mode_(mode),
      missing_(missing),
      collect_(buffers) {
  LS_CHECK(params_.size() == plan_.params.size(), InternalError,
           "reducer: {} tensors for a plan of {} parameters", params_.size(), plan_.params.size());
  LS_CHECK(plan_.options.world_size == communicator_.world_size(), InternalError,
           "reducer: the plan is for {} ranks, the group has {}", plan_.options.world_size,
           communicator_.world_size());
  for (size_t i = 0; i < params_.size(); ++i) check(i);
  views_.resize(params_.size());
  ready_.assign(params_.size(), 0);
  seen_.assign(params_.size(), 0);
  mean_views_.resize(params_.size());
  for (const Bucket& bucket : plan_.buckets) {
    buckets_.push_back(make_bucket(bucket));
    make_views(bucket, buckets_.back());
  }
  share_buckets();
  for (size_t i = 0; i < params_.size(); ++i) {
    const GradSource source = plan_.params[i].source;
    // Unused parameters have hooks too: a gradient that comes although the plan says it cannot
    // would be lost otherwise.
    if (source != GradSource::kBackward && source != GradSource::kUnused) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(
        params_[i].param, std::make_unique<Hook>(this, static_cast<int64_t>(i)));
  }
  begin_step();
}

GradReducer::BucketState GradReducer::make_bucket(const Bucket& bucket) {
  const bool alone = communicator_.world_size() == 1;
  const auto first = static_cast<size_t>(bucket.slots.front().param);
  const at::TensorOptions options = params_[first].param.options().requires_grad(false);
  const auto make = [&](int64_t numel, at::ScalarType dtype) {
    return at::zeros({numel}, options.dtype(dtype));
  };
  BucketState state;
  const at::ScalarType sum = alone ? bucket.grad_dtype : plan_.options.reduce_dtype;
  const bool once = collect_ == GradientBuffers::kHandedOverOnce;
  const bool widened = once && communicator_.widens() && sums_are_wider(plan_, bucket);
  const bool rows = exchanges_rows(plan_, bucket);
  const at::ScalarType wire = widened || rows ? bucket.grad_dtype : sum;
  state.wire = make(bucket.numel, wire);
  state.stays = collect_ == GradientBuffers::kStay || bucket.external;
  // Sums over passes are kept in the wider of the two.
  const bool own = wire != bucket.grad_dtype && (state.stays || wire != at::kFloat);
  state.flat = own ? make(bucket.numel, bucket.grad_dtype) : state.wire;
  state.one_pass = own && wire == at::kFloat && !bucket.external;
  const bool whole = mode_ == ReduceMode::kAllReduce;
  state.mean = widened && whole ? make(bucket.numel, sum) : state.wire;
  if (!whole) {
    state.shard = alone ? state.wire : make(bucket.numel / communicator_.world_size(), sum);
  }
  if (rows) {
    const ParamSpec& table = plan_.params[first];
    state.rows = std::make_unique<RowExchange>(
        communicator_, state.flat.narrow(0, 0, table.numel).view({-1, table.row_length}),
        params_[first].row_flags, table.touched_rows);
  }
  return state;
}

void GradReducer::make_views(const Bucket& bucket, const BucketState& state) {
  for (const BucketSlot& slot : bucket.slots) {
    const size_t p = static_cast<size_t>(slot.param);
    const at::Tensor& shape = bucket.external ? params_[p].external_grad : params_[p].param;
    const auto view = [&](const at::Tensor& flat) {
      return flat.narrow(0, slot.offset, slot.numel).view(shape.sizes());
    };
    views_[p] = view(state.flat);
    mean_views_[p] = state.mean.is_same(state.flat) ? views_[p] : view(state.mean);
  }
}

void GradReducer::share_buckets() {
  std::vector<at::Tensor> exchanged;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    BucketState& bucket = buckets_[b];
    for (const BucketSlot& slot : plan_.buckets[b].slots) {
      bucket.expected +=
          plan_.params[static_cast<size_t>(slot.param)].source == GradSource::kBackward ? 1 : 0;
    }
    if (bucket.rows) {
      for (const at::Tensor& list : bucket.rows->exchanged()) exchanged.push_back(list);
      continue;
    }
    exchanged.push_back(bucket.wire);
    if (!bucket.mean.is_same(bucket.wire)) exchanged.push_back(bucket.mean);
  }
  communicator_.share(exchanged);
}

GradReducer::~GradReducer() {
  for (size_t i = 0; i < params_.size(); ++i) {
    const GradSource source = plan_.params[i].source;
    if (source != GradSource::kBackward && source != GradSource::kUnused) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(params_[i].param, nullptr);
  }
}

void GradReducer::check(size_t param) const {
  const ParamSpec& spec = plan_.params[param];
  const ReducedParam& tensors = params_[param];
  if (spec.source == GradSource::kNone) return;
  const at::Tensor& p = tensors.param;
  LS_CHECK(
      p.defined() && p.is_contiguous() && p.numel() == spec.numel && p.scalar_type() == spec.dtype,
      InternalError,
      "reducer: parameter '{}' is not the contiguous {} tensor of {} elements "
      "that the plan has",
      spec.name, c10::toString(spec.dtype), spec.numel);
  if (spec.source == GradSource::kExternal) {
    const at::Tensor& g = tensors.external_grad;
    LS_CHECK(g.defined() && g.is_contiguous() && g.numel() == spec.numel &&
                 g.scalar_type() == spec.gradient_dtype(),
             InternalError,
             "reducer: the external gradient of '{}' is not the contiguous {} "
             "tensor of {} elements that the plan has",
             spec.name, c10::toString(spec.gradient_dtype()), spec.numel);
    const at::Tensor& flags = tensors.row_flags;
    LS_CHECK(!exchanges_rows(spec, plan_.options.world_size) ||
                 (flags.defined() && flags.is_contiguous() && flags.scalar_type() == at::kByte &&
                  flags.numel() * spec.row_length == spec.numel),
             InternalError, "reducer: '{}' exchanges rows but has no flag for each of its {}",
             spec.name, spec.numel / std::max<int64_t>(spec.row_length, 1));
    return;
  }
  LS_CHECK(p.requires_grad() && p.is_leaf(), InternalError,
           "reducer: parameter '{}' is in the plan but takes no gradient", spec.name);
  LS_CHECK(spec.gradient_dtype() == spec.dtype, InternalError,
           "reducer: autograd gives '{}' a gradient of its own dtype {}, the plan has {}",
           spec.name, c10::toString(spec.dtype), c10::toString(spec.gradient_dtype()));
}

void GradReducer::install_view(const BucketSlot& slot) {
  const size_t p = static_cast<size_t>(slot.param);
  const at::Tensor& view = views_[p];
  if (plan_.params[p].source == GradSource::kExternal) {
    at::Tensor& grad = params_[p].external_grad;
    if (grad.data_ptr() != view.data_ptr()) grad.set_data(view);
    return;
  }
  const at::Tensor& param = params_[p].param;
  if (!param.grad().defined() || param.grad().data_ptr() != view.data_ptr()) {
    param.mutable_grad() = view;
  }
}

void GradReducer::begin_step() {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  sending_ = false;
  offers_.withdraw();
  num_passes_ = 0;
  next_ = 0;
  std::fill(seen_.begin(), seen_.end(), 0);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].handle = {};
    buckets_[b].apart.clear();
    buckets_[b].places.clear();
    if (buckets_[b].rows) {
      const RowPart means = means_of_rows(buckets_[b]);
      buckets_[b].rows->clear(means.out, means.begin);
    } else if (buckets_[b].stays) {
      buckets_[b].flat.zero_();
    }
    for (const BucketSlot& slot : plan_.buckets[b].slots) {
      if (buckets_[b].stays) {
        install_view(slot);
      } else {
        params_[static_cast<size_t>(slot.param)].param.mutable_grad() = at::Tensor();
      }
    }
  }
}

// The gradient of one pass, in autograd's own buffer.
void GradReducer::take_over(size_t param) {
  const at::NoGradGuard no_grad;
  at::Tensor& grad = params_[param].param.mutable_grad();
  ops::convert_into(views_[param], grad, /*add=*/seen_[param] != 0);
  grad = at::Tensor();
}

// Products write the gradients of weights where they are sent from.
void GradReducer::offer_places() {
  std::vector<ops::GradientPlace> places;
  for (size_t p = 0; p < params_.size(); ++p) {
    const at::Tensor &param = params_[p].param, &view = views_[p];
    const bool direct = plan_.params[p].source == GradSource::kBackward && param.dim() > 1 &&
                        view.scalar_type() == param.scalar_type();
    if (direct) places.push_back({param.detach(), view});
  }
  offers_.offer(places);
}

// The gradient of a step's one pass, where it is until its bucket is complete.
void GradReducer::keep_apart(size_t param) {
  at::Tensor& grad = params_[param].param.mutable_grad();
  if (grad.data_ptr() != views_[param].data_ptr()) {
    BucketState& bucket =
        buckets_[static_cast<size_t>(plan_.bucket_of(static_cast<int64_t>(param)))];
    bucket.apart.push_back(grad);
    bucket.places.push_back(views_[param]);
  }
  grad = at::Tensor();
}

void GradReducer::copy_apart(BucketState& bucket) {
  if (bucket.apart.empty()) return;
  if (bucket.apart.front().scalar_type() == bucket.flat.scalar_type()) {
    at::_foreach_copy_(bucket.places, bucket.apart);
  } else {
    for (size_t i = 0; i < bucket.apart.size(); ++i) {
      ops::convert_into(bucket.places[i], bucket.apart[i], /*add=*/false);
    }
  }
  bucket.apart.clear();
  bucket.places.clear();
}

// The same for gradients that stay where they are, of the pass begun last.
void GradReducer::add_pass(BucketState& bucket) const {
  const at::NoGradGuard no_grad;
  ops::convert_into(bucket.wire, bucket.flat, /*add=*/num_passes_ > 1);
}

// Gaps and unused parameters are zeros from the start and stay so; what no pass has written still
// holds the gradients, or means, of the step before.
void GradReducer::fill_unseen() {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b].stays) continue;
    for (const BucketSlot& slot : plan_.buckets[b].slots) {
      const size_t p = static_cast<size_t>(slot.param);
      if (seen_[p] == 0 && plan_.params[p].source == GradSource::kBackward) views_[p].zero_();
    }
  }
}

void GradReducer::begin_micro_batch(bool last) {
  const std::lock_guard lock(mutex_);
  LS_CHECK(!sending_, InternalError, "reducer: a backward pass after the last one; finish() first");
  LS_CHECK(collect_ != GradientBuffers::kHandedOverOnce || num_passes_ == 0, InternalError,
           "reducer: a second backward pass in a step, but it collects the gradients of one");
  for (BucketState& bucket : buckets_) {
    if (!bucket.one_pass || num_passes_ == 0) continue;
    add_pass(bucket);
    bucket.flat.zero_();
  }
  ++num_passes_;
  if (collect_ == GradientBuffers::kHandedOverOnce) offer_places();
  std::fill(ready_.begin(), ready_.end(), 0);
  for (BucketState& bucket : buckets_) bucket.missing = bucket.expected;
  sending_ = last;
  if (last) send_complete(/*include_external=*/false);
}

void GradReducer::gradient_ready(int64_t param) {
  const std::lock_guard lock(mutex_);
  const size_t p = static_cast<size_t>(param);
  const ParamSpec& spec = plan_.params[p];
  LS_CHECK(spec.source == GradSource::kBackward, InternalError,
           "reducer: parameter '{}' got a gradient although the plan says that none comes",
           spec.name);
  LS_CHECK(!sending_ || ready_[p] == 0, InternalError,
           "reducer: parameter '{}' got a second gradient in one backward pass, after it was "
           "counted as complete",
           spec.name);
  if (collect_ == GradientBuffers::kHandedOverOnce) {
    keep_apart(p);
  } else if (collect_ == GradientBuffers::kHandedOver) {
    take_over(p);
  } else {
    LS_CHECK(params_[p].param.grad().data_ptr() == views_[p].data_ptr(), InternalError,
             "reducer: the gradient of '{}' was taken out of its bucket during a step", spec.name);
  }
  seen_[p] = 1;
  if (!sending_) return;
  ready_[p] = 1;
  BucketState& bucket = buckets_[static_cast<size_t>(plan_.bucket_of(param))];
  if (--bucket.missing == 0) {
    copy_apart(bucket);
    send_complete(/*include_external=*/false);
  }
}

void GradReducer::all_gradients_ready() {
  const std::lock_guard lock(mutex_);
  LS_CHECK(sending_, InternalError, "reducer: all gradients are ready, but no last pass was begun");
  std::fill(ready_.begin(), ready_.end(), 1);
  std::fill(seen_.begin(), seen_.end(), 1);
  for (BucketState& bucket : buckets_) bucket.missing = 0;
  send_complete(/*include_external=*/true);
}

void GradReducer::send_complete(bool include_external) {
  while (next_ < static_cast<int64_t>(buckets_.size())) {
    const size_t b = static_cast<size_t>(next_);
    if (buckets_[b].missing > 0 || (plan_.buckets[b].external && !include_external)) return;
    send(next_++);
  }
}

void GradReducer::send(int64_t index) {
  const at::NoGradGuard no_grad;
  BucketState& bucket = buckets_[static_cast<size_t>(index)];
  const std::string detail = fmt::format("bucket {}", index);
  if (bucket.rows) return bucket.rows->send(detail);
  copy_apart(bucket);
  if (bucket.one_pass) {
    add_pass(bucket);
  } else if (!bucket.flat.is_same(bucket.wire)) {
    ops::convert_into(bucket.wire, bucket.flat, /*add=*/false);
  }
  constexpr auto kMean = ReduceOp::kMean;
  if (mode_ == ReduceMode::kReduceScatter) {
    bucket.handle = communicator_.reduce_scatter(bucket.shard, bucket.wire, kMean, "grad", detail);
  } else if (bucket.mean.is_same(bucket.wire)) {
    bucket.handle = communicator_.all_reduce(bucket.wire, kMean, "grad", detail);
  } else {
    bucket.handle = communicator_.all_reduce_into(bucket.mean, bucket.wire, kMean, "grad", detail);
  }
}

void GradReducer::find_missing() {
  missing_names_.clear();
  // An error is about the last pass, which has to complete the buckets.
  const std::vector<char>& given = missing_ == MissingGradients::kError ? ready_ : seen_;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (plan_.params[i].source == GradSource::kBackward && given[i] == 0) {
      missing_names_.push_back(plan_.params[i].name);
    }
  }
  if (missing_ == MissingGradients::kZeros || missing_names_.empty()) return;
  const size_t count = missing_names_.size();
  missing_names_.resize(std::min<size_t>(count, 8));
  throw InternalError(fmt::format(
      "reducer: the backward pass gave {} parameters no gradient ({}{}); the plan must list them "
      "as unused",
      count, join(missing_names_, ", "), count > 8 ? ", ..." : ""));
}

void GradReducer::finish() {
  const at::NoGradGuard no_grad;
  {
    const std::lock_guard lock(mutex_);
    LS_CHECK(sending_, InternalError, "reducer: finish() without a last backward pass");
    find_missing();
    fill_unseen();
    for (BucketState& bucket : buckets_) bucket.missing = 0;
    send_complete(/*include_external=*/true);
    sending_ = false;
    offers_.withdraw();
  }
  {
    const WaitTime together(communicator_);
    for (BucketState& bucket : buckets_) {
      bucket.handle.wait();
      if (bucket.rows) bucket.rows->wait();
    }
  }
  add_up_rows();
  if (mode_ == ReduceMode::kAllReduce) point_at_means();
}

// The table itself, or this rank's part of it.
GradReducer::RowPart GradReducer::means_of_rows(const BucketState& bucket) const {
  if (mode_ == ReduceMode::kAllReduce) return {bucket.flat, 0};
  return {bucket.shard, communicator_.rank() * bucket.shard.numel()};
}

void GradReducer::add_up_rows() {
  for (const BucketState& bucket : buckets_) {
    if (!bucket.rows) continue;
    const RowPart means = means_of_rows(bucket);
    bucket.rows->add_up(means.out, means.begin);
  }
}

void GradReducer::point_at_means() {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const BucketState& bucket = buckets_[b];
    if (plan_.buckets[b].external) {
      if (!bucket.flat.is_same(bucket.mean)) bucket.flat.copy_(bucket.mean);
      continue;
    }
    for (const BucketSlot& slot : plan_.buckets[b].slots) {
      const size_t p = static_cast<size_t>(slot.param);
      params_[p].param.mutable_grad() = mean_views_[p];
    }
  }
}

int64_t GradReducer::gradient_bytes() const {
  int64_t sum = 0;
  for (const BucketState& bucket : buckets_) sum += static_cast<int64_t>(bucket.flat.nbytes());
  return sum;
}

int64_t GradReducer::buffer_bytes() const {
  size_t sum = 0;
  for (const BucketState& bucket : buckets_) {
    if (!bucket.wire.is_same(bucket.flat)) sum += bucket.wire.nbytes();
    if (!bucket.mean.is_same(bucket.wire)) sum += bucket.mean.nbytes();
    if (bucket.shard.defined() && !bucket.shard.is_same(bucket.wire)) sum += bucket.shard.nbytes();
    if (bucket.rows) sum += static_cast<size_t>(bucket.rows->bytes());
  }
  return static_cast<int64_t>(sum);
}

void broadcast_from_first(Communicator& communicator, const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<Handle> handles;
  for (const at::Tensor& tensor : tensors) {
    handles.push_back(communicator.broadcast(tensor.detach(), 0, "params initial"));
  }
  for (Handle& handle : handles) handle.wait();
}

}  // namespace longship::dist
