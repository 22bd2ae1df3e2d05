// The optimizer's arithmetic: the CPU path, the fused kernels and the library's kernels.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "ops/adamw.h"
#include "train/adamw_kernel.h"
#include "train/optimizer.h"

namespace longship::train {
namespace {

using models::ParamRole;

// Elements of the library path's gradient buffer, unless a single parameter is larger, and of its
// temporaries.
constexpr int64_t kLibraryBuffer = int64_t{1} << 26;

bool is_fp32(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat;
}

// Gradients of [begin, begin + count) as fp32, converted into `buffer` where they are bf16.
const float* grad_values(const at::Tensor& g, int64_t begin, int64_t count, float* buffer) {
  if (is_fp32(g)) return g.const_data_ptr<float>() + begin;
  from_bf16(static_cast<const uint16_t*>(g.const_data_ptr()) + begin, buffer, count);
  return buffer;
}

// Calls fn(begin, end, has_gradient) for every run of like rows in [begin, end).
template <class Fn>
void for_runs(const AdamW::Entry& e, int64_t begin, int64_t end, const Fn& fn) {
  if (begin >= end) return;
  if (!e.row_sparse) {
    fn(begin, end, e.role == ParamRole::kTrainable);
    return;
  }
  const uint8_t* flags = e.row_sparse->row_flags.const_data_ptr<uint8_t>();
  const int64_t length = e.master.numel() / e.master.size(0);
  while (begin < end) {
    const bool flagged = flags[begin / length] != 0;
    int64_t stop = begin;
    while (stop < end && (flags[stop / length] != 0) == flagged) {
      stop = std::min(end, (stop / length + 1) * length);
    }
    fn(begin, stop, flagged);
    begin = stop;
  }
}

bool any_gradient(const AdamW::Entry& e, int64_t begin, int64_t end) {
  bool any = false;
  for_runs(e, begin, end, [&](int64_t, int64_t, bool live) { any = any || live; });
  return any;
}

void zero_range(const at::Tensor& t, int64_t begin, int64_t end) {
  const auto bytes = static_cast<int64_t>(t.element_size());
  auto* data = static_cast<char*>(t.mutable_data_ptr());
  std::fill(data + begin * bytes, data + end * bytes, '\0');
}

// The update of [begin, end) of one parameter; `buffer` holds its gradients when they are bf16.
void update_run(const AdamW::Entry& e, const at::Tensor& g, int64_t begin, int64_t end,
                bool has_gradient, const AdamWScalars& s, float* buffer) {
  const int64_t count = end - begin;
  float* p = e.master.mutable_data_ptr<float>() + begin;
  float* ema = e.ema.defined() ? e.ema.mutable_data_ptr<float>() + begin : nullptr;
  if (has_gradient) {
    adamw_update(p, grad_values(g, begin, count, buffer),
                 e.exp_avg.mutable_data_ptr<float>() + begin,
                 e.exp_avg_sq.mutable_data_ptr<float>() + begin, ema, count, s);
    if (e.row_sparse) zero_range(g, begin, end);
  } else {
    if (s.decay == 1.0F && ema == nullptr) return;
    decay_update(p, ema, count, s);
  }
  if (!is_fp32(e.param)) {
    to_bf16(p, static_cast<uint16_t*>(e.param.mutable_data_ptr()) + begin, count);
  }
}

}  // namespace

void AdamW::collect_grads() {
  std::vector<std::string> missing;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    if (e.role != ParamRole::kTrainable) continue;
    grads_[i] = e.param.grad();
    if (e.row_sparse) {
      LS_CHECK(
          !grads_[i].defined() || grads_[i].const_data_ptr() == e.row_sparse->grad.const_data_ptr(),
          InternalError, "parameter '{}' has a gradient besides its row-sparse one", e.name);
      grads_[i] = e.row_sparse->grad;
    }
    if (!grads_[i].defined()) {
      missing.push_back(e.name);
      continue;
    }
    if (!grads_[i].is_contiguous()) grads_[i] = grads_[i].contiguous();
  }
  LS_CHECK(missing.empty(), InternalError,
           "{} trainable parameters got no gradient: {}; the model must declare them frozen or "
           "decay-only",
           missing.size(), fmt::join(missing, ", "));
}

double AdamW::grad_norm() {
  collect_grads();
  if (on_cpu_) return norm_cpu();
  if (!fused_) return norm_library();
  fused_->bind_grads(grads_);
  fused_->norm();
  return ops::read_report(fused_->report()).norm;
}

double AdamW::norm_cpu() {
  const auto n = static_cast<int64_t>(chunks_.size());
  at::parallel_for(0, n, 1, [&](int64_t from, int64_t to) {
    std::array<float, kChunk> buffer;
    for (int64_t c = from; c < to; ++c) {
      const Chunk& chunk = chunks_[static_cast<size_t>(c)];
      const Entry& e = entries_[static_cast<size_t>(chunk.entry)];
      double& out = partial_[static_cast<size_t>(c)];
      out = 0;
      if (!any_gradient(e, chunk.begin, chunk.end)) continue;
      const int64_t count = chunk.end - chunk.begin;
      out = sum_of_squares(
          grad_values(grads_[static_cast<size_t>(chunk.entry)], chunk.begin, count, buffer.data()),
          count);
    }
  });
  double sum = 0;
  for (const double x : partial_) sum += x;
  return std::sqrt(sum);
}

double AdamW::norm_library() const {
  std::vector<at::Tensor> squares;
  for (const at::Tensor& g : grads_) {
    if (!g.defined()) continue;
    const at::Tensor flat = g.view({-1});
    // In pieces, so that the copies stay small.
    for (int64_t begin = 0; begin < flat.numel(); begin += kLibraryBuffer) {
      const int64_t count = std::min(kLibraryBuffer, flat.numel() - begin);
      const at::Tensor piece = flat.narrow(0, begin, count).to(at::kFloat);
      squares.push_back(piece.square().sum(at::kDouble));
    }
  }
  return squares.empty() ? 0.0 : std::sqrt(at::stack(squares).sum().item<double>());
}

void AdamW::apply(double lr, double norm, std::optional<double> weight_decay) {
  const at::NoGradGuard no_grad;
  ++num_updates_;
  if (!on_cpu_ && fused_) {
    apply_fused(lr, norm, weight_decay);
    return;
  }
  double clip = 1.0;
  if (config_.clip_norm) clip = std::min(1.0, *config_.clip_norm / (norm + 1e-6));
  const double decay = weight_decay.value_or(config_.weight_decay);
  if (on_cpu_) {
    apply_cpu(lr, static_cast<float>(clip), decay);
  } else {
    apply_library(lr, clip, decay);
  }
}

void AdamW::apply_cpu(double lr, float clip, double weight_decay) {
  const auto t = static_cast<double>(num_updates_);
  const double correction1 = 1.0 - std::pow(config_.beta1, t);
  const double correction2 = 1.0 - std::pow(config_.beta2, t);
  const double keep = config_.ema.value_or(0.0);
  at::parallel_for(0, static_cast<int64_t>(chunks_.size()), 1, [&](int64_t from, int64_t to) {
    std::array<float, kChunk> buffer;
    for (int64_t c = from; c < to; ++c) {
      const Chunk& chunk = chunks_[static_cast<size_t>(c)];
      const Entry& e = entries_[static_cast<size_t>(chunk.entry)];
      const double entry_lr = lr * e.lr_scale;
      AdamWScalars s;
      s.decay = static_cast<float>(1.0 - entry_lr * e.weight_decay.value_or(weight_decay));
      s.clip = clip;
      s.one_minus_beta1 = static_cast<float>(1.0 - config_.beta1);
      s.beta2 = static_cast<float>(config_.beta2);
      s.one_minus_beta2 = static_cast<float>(1.0 - config_.beta2);
      s.step_size = static_cast<float>(entry_lr / correction1);
      s.sqrt_correction2 = static_cast<float>(std::sqrt(correction2));
      s.eps = static_cast<float>(config_.eps);
      s.ema_keep = static_cast<float>(keep);
      s.ema_take = static_cast<float>(1.0 - keep);
      for_runs(e, chunk.begin, chunk.end, [&](int64_t begin, int64_t end, bool has_gradient) {
        update_run(e, grads_[static_cast<size_t>(chunk.entry)], begin, end, has_gradient, s,
                   buffer.data());
      });
    }
  });
}

void AdamW::apply_fused(double lr, double norm, std::optional<double> weight_decay) {
  LS_CHECK(std::isfinite(norm), InternalError, "an update with gradients of norm {}", norm);
  const int64_t before = num_updates_ - 1;
  fused_->set_num_updates(before);
  upload_scalars({before, lr, weight_decay}, {before + 1, lr, weight_decay});
  fused_->set_norm(norm);
  fused_->update();
}

// Parameters that share a rate and whose fp32 gradients fit the buffer together.
struct AdamW::LibraryLists {
  std::vector<at::Tensor> params, means, squares, steps, sources, grads;
  int64_t used = 0;  // elements of the buffer
};

void AdamW::apply_library(double lr, double clip, double weight_decay) {
  // Views start at multiples of 64 elements, so that vector accesses are aligned.
  const auto space = [](const Entry& e) { return (e.master.numel() + 63) / 64 * 64; };
  if (!library_grads_.defined()) {
    int64_t total = 0, largest = 0;
    for (const Entry& e : entries_) {
      total += space(e);
      largest = std::max(largest, space(e));
    }
    const auto options = entries_.front().master.options();
    library_grads_ = at::empty({std::max(largest, std::min(total, kLibraryBuffer))}, options);
    library_step_ = at::empty({}, options);
  }
  library_step_.fill_(static_cast<double>(num_updates_));
  for (size_t rate = 0; rate < rates_.size(); ++rate) {
    const double rate_lr = lr * rates_[rate].first;
    const double rate_decay = rates_[rate].second.value_or(weight_decay);
    LibraryLists lists;
    for (size_t i = 0; i < entries_.size(); ++i) {
      Entry& e = entries_[i];
      if (e.rate != static_cast<int64_t>(rate)) continue;
      if (e.role == ParamRole::kDecayOnly) {
        e.master.mul_(1.0 - rate_lr * rate_decay);
        continue;
      }
      if (lists.used + space(e) > library_grads_.numel()) {
        update_library(lists, rate_lr, clip, rate_decay);
        lists = LibraryLists();
      }
      lists.params.push_back(e.master);
      lists.means.push_back(e.exp_avg);
      lists.squares.push_back(e.exp_avg_sq);
      lists.steps.push_back(library_step_);
      lists.sources.push_back(grads_[i]);
      lists.grads.push_back(
          library_grads_.narrow(0, lists.used, e.master.numel()).view(e.master.sizes()));
      lists.used += space(e);
    }
    update_library(lists, rate_lr, clip, rate_decay);
  }
  for (Entry& e : entries_) {
    if (e.ema.defined()) e.ema.mul_(*config_.ema).add_(e.master, 1.0 - *config_.ema);
    if (!is_fp32(e.param)) e.param.detach().copy_(e.master);
  }
  zero_row_sparse();
}

void AdamW::update_library(LibraryLists& lists, double lr, double clip, double weight_decay) {
  if (lists.params.empty()) return;
  at::_foreach_copy_(lists.grads, lists.sources);
  at::_foreach_mul_(lists.grads, clip);
  at::_fused_adamw_(lists.params, lists.grads, lists.means, lists.squares, {}, lists.steps, lr,
                    config_.beta1, config_.beta2, weight_decay, config_.eps, false, false);
}

double AdamW::step(double lr) {
  const double norm = grad_norm();
  if (std::isfinite(norm)) apply(lr, norm);
  return norm;
}

void AdamW::upload_scalars(const StepScalars& now, const StepScalars& next) {
  std::vector<ops::AdamWRates> rows;
  for (const StepScalars* scalars : {&now, &next}) {
    ops::AdamWRates row;
    row.num_updates = scalars->num_updates;
    const double decay = scalars->weight_decay.value_or(config_.weight_decay);
    for (const auto& [lr_scale, weight_decay] : rates_) {
      row.groups.push_back({scalars->lr * lr_scale, weight_decay.value_or(decay)});
    }
    rows.push_back(std::move(row));
  }
  fused().upload_scalars(rows[0], rows[1]);
}

void AdamW::enqueue_step() {
  const at::NoGradGuard no_grad;
  collect_grads();
  fused().bind_grads(grads_);
  fused().step();
}

void AdamW::enqueue_norm() {
  const at::NoGradGuard no_grad;
  collect_grads();
  fused().bind_grads(grads_);
  fused().norm();
}

void AdamW::enqueue_update() {
  const at::NoGradGuard no_grad;
  fused().update();
}

at::Tensor AdamW::norm() const {
  return report().narrow(0, kernels::kAdamWNorm, 1);
}

const at::Tensor& AdamW::report() const {
  LS_CHECK(fused_ != nullptr, InternalError, "no asynchronous step was made");
  return fused_->report();
}

const at::Tensor& AdamW::fault_flag() const {
  LS_CHECK(fused_ != nullptr, InternalError, "no asynchronous step was made");
  return fused_->fault_flag();
}

void AdamW::clear_fault() {
  if (!fused_) return;
  fused_->clear_fault();
  fused_->wait();
}

void AdamW::set_num_updates(int64_t num_updates) {
  num_updates_ = num_updates;
  if (!fused_) return;
  fused_->set_num_updates(num_updates);
  fused_->wait();
}

void AdamW::zero_grad(GradReset how) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> kept;
  for (Entry& e : entries_) {
    if (how == GradReset::kDrop) {
      e.param.mutable_grad() = at::Tensor();
    } else if (e.param.grad().defined()) {
      kept.push_back(e.param.grad());
    }
  }
  if (!kept.empty()) at::_foreach_zero_(kept);
  zero_row_sparse();
  for (at::Tensor& grad : grads_) grad = at::Tensor();
}

void AdamW::zero_row_sparse() {
  if (!on_cpu_ && fused_) {
    fused_->zero_rows();
    return;
  }
  for (Entry& e : entries_) {
    if (!e.row_sparse) continue;
    const at::Tensor& grad = e.row_sparse->grad;
    if (!on_cpu_) {
      grad.zero_();
      continue;
    }
    for_runs(e, 0, grad.numel(), [&](int64_t begin, int64_t end, bool live) {
      if (live) zero_range(grad, begin, end);
    });
  }
}

}  // namespace longship::train
