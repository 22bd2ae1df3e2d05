#include "train/replicated_sync.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace longship::train {
namespace {

using models::ParamInfo;
using models::ParamRole;

// Which parameters a batch reaches may depend on what is in it, and differ between the ranks.
constexpr auto kMissing = dist::MissingGradients::kZeros;

}  // namespace

// Weights that are on their way are waited for when the unit that reads them is about to run.
class ReplicatedSync::UnitWaits : public nn::UnitHooks {
 public:
  UnitWaits(dist::Zero1& zero1, const std::vector<ParamInfo>& parameters) : zero1_(zero1) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters_[parameters[i].unit].push_back(static_cast<int64_t>(i));
    }
  }
  void before_forward(std::string_view unit) override {
    const auto found = parameters_.find(unit);
    if (found == parameters_.end()) return;
    for (const int64_t param : found->second) zero1_.wait_parameter(param);
  }
  void after_forward(std::string_view, bool, bool) override {}
  void before_backward(std::string_view) override {}
  void after_backward(std::string_view) override {}

 private:
  dist::Zero1& zero1_;
  std::map<std::string, std::vector<int64_t>, std::less<>> parameters_;  // by unit
};

ReplicatedSync::ReplicatedSync(dist::Communicator& data, const ParallelSection& section,
                               GraphMode graph, const StepSize& step, models::Policy& policy)
    : data_(data),
      policy_(policy),
      updated_(policy.parameters()),
      passes_are_captured_(graph == GraphMode::kPerMicrobatch) {
  gathers_in_step_ =
      graph == GraphMode::kFullIteration || updated_.front().tensor.device().is_cuda();
  PlannedParameters planned = parameters_to_plan(policy, step.samples);
  parameters_ = std::move(planned.infos);
  dist::BucketPlan plan = plan_gradients(std::move(planned.specs), section, data.world_size());
  std::vector<dist::ReducedParam> tensors;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ParamInfo& info = parameters_[i];
    index_.emplace(info.name, i);
    tensors.push_back({info.tensor, {}});
    if (!info.row_sparse) continue;
    tensors.back().external_grad = info.row_sparse->grad;
    tensors.back().row_flags = info.row_sparse->row_flags;
  }
  const auto buffers = passes_are_captured_ ? dist::GradientBuffers::kStay
                       : step.passes == 1   ? dist::GradientBuffers::kHandedOverOnce
                                            : dist::GradientBuffers::kHandedOver;
  if (section.strategy == "ddp") {
    ddp_ = std::make_unique<dist::GradReducer>(data, std::move(plan), std::move(tensors),
                                               dist::ReduceMode::kAllReduce, kMissing, buffers);
    return;
  }
  LS_CHECK(section.strategy == "zero1", InternalError, "no gradients are exchanged with '{}'",
           section.strategy);
  begin_zero1(std::move(plan), std::move(tensors), buffers);
}

void ReplicatedSync::begin_zero1(dist::BucketPlan plan, std::vector<dist::ReducedParam> tensors,
                                 dist::GradientBuffers buffers) {
  pieces_.resize(parameters_.size());
  for (int64_t rank = 0; rank < data_.world_size(); ++rank) {
    const std::vector<dist::OwnedSlice> owned = dist::owned_slices(plan, rank);
    LS_CHECK(!owned.empty(), ConfigError,
             "parallel.strategy: the model is too small to divide its optimizer's state among {} "
             "processes; use ddp, or fewer processes",
             data_.world_size());
    for (const dist::OwnedSlice& slice : owned) {
      pieces_[static_cast<size_t>(slice.param)].push_back({rank, slice.begin, slice.end});
    }
  }
  zero1_ =
      std::make_unique<dist::Zero1>(data_, std::move(plan), std::move(tensors), kMissing, buffers);
  std::erase_if(updated_, [](const ParamInfo& p) { return p.role != ParamRole::kDecayOnly; });
  for (const dist::ShardSlice& slice : zero1_->slices()) {
    updated_.push_back({slice.name, slice.weights, ParamRole::kTrainable});
  }
  if (passes_are_captured_) return;
  unit_waits_ = std::make_unique<UnitWaits>(*zero1_, parameters_);
  try {
    policy_.attach(unit_waits_.get());
  } catch (const ConfigError&) {
    // Families without units, and FP8, which reads all weights before the first pass.
    unit_waits_.reset();
  }
}

ReplicatedSync::~ReplicatedSync() {
  if (unit_waits_) policy_.attach(nullptr);
}

at::Tensor ReplicatedSync::own_part(const std::string& name, const at::Tensor& whole) const {
  if (!sliced()) return whole;
  const std::vector<Piece>& pieces = pieces_[index_.at(name)];
  if (pieces.empty()) return whole;
  for (const Piece& piece : pieces) {
    if (piece.rank != data_.rank()) continue;
    return whole.reshape({-1}).narrow(0, piece.begin, piece.end - piece.begin);
  }
  return {};
}

void ReplicatedSync::set_values(AdamW& optimizer, const std::string& name,
                                const at::Tensor& whole) {
  const at::Tensor own = own_part(name, whole);
  if (own.defined()) optimizer.set_master(name, own);
}

std::vector<std::pair<std::string, at::Tensor>> ReplicatedSync::weight_sums() const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (const ParamInfo& info : parameters_) out.emplace_back(info.name, sum_of_bits(info.tensor));
  return out;
}

dist::MemoryForecast ReplicatedSync::held_memory() const {
  dist::MemoryForecast out;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const bool flat = sliced() && !pieces_[i].empty();
    if (!flat) out.parameters += static_cast<int64_t>(parameters_[i].tensor.nbytes());
  }
  if (sliced()) out.parameters += zero1_->weight_bytes();
  out.gradients = reducer().gradient_bytes();
  out.reduce_buffers = reducer().buffer_bytes();
  return out;
}

std::vector<StateSlice> ReplicatedSync::own_state(const AdamW& optimizer, bool loading) const {
  std::vector<StateSlice> slices = whole_slices(optimizer.state());
  if (!sliced()) {
    return loading ? slices : even_share(slices, data_.rank(), data_.world_size());
  }
  std::vector<StateSlice> out;
  for (StateSlice& slice : slices) {
    const size_t index = index_.at(slice.name.substr(slice.name.find('.') + 1));
    const std::vector<Piece>& pieces = pieces_[index];
    if (pieces.empty() && !loading && data_.rank() != 0) continue;
    for (const Piece& piece : pieces) {
      if (piece.rank != data_.rank()) continue;
      slice.begin = piece.begin;
      slice.end = piece.end;
      slice.shape = parameters_[index].tensor.sizes().vec();
    }
    out.push_back(std::move(slice));
  }
  return out;
}

void ReplicatedSync::begin_step() {
  if (zero1_) {
    // A graph needs it in every replay, due or not.
    if (gathers_in_step_) zero1_->begin_gather();
    gather_due_ = false;
    if (!unit_waits_) zero1_->wait_parameters();
    // Others may have dropped them since.
    for (const dist::ShardSlice& slice : zero1_->slices()) {
      slice.weights.mutable_grad() = slice.grad;
    }
  }
  reducer().begin_step();
}

void ReplicatedSync::finish() {
  // Also the weights of units that this batch did not reach.
  if (zero1_) zero1_->wait_parameters();
  reducer().finish();
  for (const at::Tensor& maxima : policy_.shared_maxima()) {
    data_.all_reduce(maxima, dist::ReduceOp::kMax, "maxima").wait();
  }
  if (sliced()) return;  // parts of a table are updated like any other
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ParamInfo& info = parameters_[i];
    if (!info.row_sparse || info.role != ParamRole::kTrainable) continue;
    if (dist::exchanges_rows(plan().params[i], data_.world_size())) continue;  // came with the rows
    data_.all_reduce(info.row_sparse->row_flags, dist::ReduceOp::kMax, "row flags").wait();
  }
}

double ReplicatedSync::combine_norm(double norm, bool bad) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (sums_norm()) return std::sqrt(data_.sum({bad ? kNan : norm * norm}, "norm").front());
  return norm + data_.sum({bad ? kNan : 0.0}, "norm").front();
}

void ReplicatedSync::weights_changed() {
  gather_due_ = gathers_in_step_;
  if (zero1_ && !gathers_in_step_) zero1_->begin_gather();
}

void ReplicatedSync::wait_weights() {
  if (!zero1_) return;
  if (gather_due_) zero1_->begin_gather();
  gather_due_ = false;
  zero1_->wait_parameters();
}

}  // namespace longship::train
