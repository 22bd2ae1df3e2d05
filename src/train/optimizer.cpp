#include "train/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "train/adamw_kernel.h"

namespace longship::train {
namespace {

using models::ParamRole;

// Elements per unit of parallel work. Fixed, so that the order of the norm's sum does not depend on
// threads.
constexpr int64_t kChunk = 16384;

bool is_fp32(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat;
}

}  // namespace

void ParamGroupConfig::reflect(config::Visitor& visitor) {
  visitor.field("pattern", pattern,
                {.doc = "Glob over public parameter names: * is any run of characters, ? one; the "
                        "first group that matches wins",
                 .required = true});
  visitor.field("lr_scale", lr_scale, {.doc = "Factor of the learning rate", .min = 0});
  visitor.field("weight_decay", weight_decay,
                {.doc = "Weight decay of these parameters; null: optim.weight_decay", .min = 0});
}

bool glob_match(const std::string& pattern, const std::string& name) {
  size_t p = 0, n = 0, star = std::string::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n]) && pattern[p] != '*') {
      ++p;
      ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (star != std::string::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

AdamW::AdamW(std::vector<models::ParamInfo> parameters, const AdamWConfig& config)
    : config_(config), on_cpu_(!config.library_kernels) {
  const at::NoGradGuard no_grad;
  for (models::ParamInfo& info : parameters) {
    if (info.role == ParamRole::kFrozen) continue;
    Entry e;
    e.name = std::move(info.name);
    e.param = info.tensor;
    e.role = info.role;
    LS_CHECK(e.param.is_contiguous(), InternalError, "parameter '{}' is not contiguous", e.name);
    LS_CHECK(is_fp32(e.param) || e.param.scalar_type() == at::kBFloat16, InternalError,
             "parameter '{}' is neither fp32 nor bf16", e.name);
    e.master = is_fp32(e.param) ? e.param.detach() : e.param.detach().to(at::kFloat);
    if (e.role == ParamRole::kTrainable) {
      e.exp_avg = at::zeros_like(e.master);
      e.exp_avg_sq = at::zeros_like(e.master);
    }
    if (config_.ema) e.ema = e.master.clone();
    on_cpu_ = on_cpu_ && e.param.device().is_cpu();
    entries_.push_back(std::move(e));
  }
  LS_CHECK(!entries_.empty(), ConfigError,
           "nothing to train: every parameter is frozen (see model.freeze)");
  assign_groups();
  make_chunks();
  grads_.resize(entries_.size());
}

void AdamW::assign_groups() {
  std::vector<int64_t> matched(config_.groups.size(), 0);
  std::vector<int64_t> taken(config_.groups.size(), 0);
  for (Entry& e : entries_) {
    bool found = false;
    for (size_t i = 0; i < config_.groups.size(); ++i) {
      const ParamGroupConfig& group = config_.groups[i];
      if (!glob_match(group.pattern, e.name)) continue;
      ++matched[i];
      if (found) continue;
      found = true;
      ++taken[i];
      e.lr_scale = group.lr_scale;
      e.weight_decay = group.weight_decay;
    }
  }
  for (size_t i = 0; i < config_.groups.size(); ++i) {
    LS_CHECK(matched[i] > 0, ConfigError,
             "optim.groups.{}.pattern: '{}' matches none of the {} parameters that are trained; "
             "the first is '{}', the last '{}'",
             i, config_.groups[i].pattern, entries_.size(), entries_.front().name,
             entries_.back().name);
    LS_CHECK(taken[i] > 0, ConfigError,
             "optim.groups.{}.pattern: all {} parameters that '{}' matches are taken by earlier "
             "groups; put the narrower pattern first",
             i, matched[i], config_.groups[i].pattern);
  }
}

void AdamW::make_chunks() {
  for (size_t e = 0; e < entries_.size(); ++e) {
    const int64_t n = entries_[e].master.numel();
    for (int64_t begin = 0; begin < n; begin += kChunk) {
      chunks_.push_back({static_cast<int64_t>(e), begin, std::min(n, begin + kChunk)});
    }
  }
  partial_.resize(chunks_.size());
}

void AdamW::set_master(const std::string& name, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  for (Entry& e : entries_) {
    if (e.name != name) continue;
    LS_CHECK(value.sizes() == e.master.sizes(), ShapeError,
             "master of '{}' has another shape than the parameter", name);
    e.master.copy_(value);
    if (!is_fp32(e.param)) e.param.detach().copy_(e.master);
    if (e.ema.defined()) e.ema.copy_(e.master);
    return;
  }
}

bool AdamW::has_masters() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& e) { return !is_fp32(e.param); });
}

int64_t AdamW::num_elements() const {
  int64_t n = 0;
  for (const Entry& e : entries_) n += e.master.numel();
  return n;
}

double AdamW::grad_norm() {
  std::vector<std::string> missing;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    if (e.role != ParamRole::kTrainable) continue;
    grads_[i] = e.param.grad();
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
  if (!on_cpu_) {
    double sum = 0;
    at::Tensor total;
    for (const at::Tensor& g : grads_) {
      if (!g.defined()) continue;
      const at::Tensor square = g.to(at::kFloat).square().sum(at::kDouble);
      total = total.defined() ? total.add(square) : square;
    }
    if (total.defined()) sum = total.item<double>();
    return std::sqrt(sum);
  }
  const auto n = static_cast<int64_t>(chunks_.size());
  at::parallel_for(0, n, 1, [&](int64_t from, int64_t to) {
    std::array<float, kChunk> buffer;
    for (int64_t c = from; c < to; ++c) {
      const Chunk& chunk = chunks_[static_cast<size_t>(c)];
      const at::Tensor& g = grads_[static_cast<size_t>(chunk.entry)];
      const int64_t count = chunk.end - chunk.begin;
      double& out = partial_[static_cast<size_t>(c)];
      out = 0;
      if (!g.defined()) continue;
      if (is_fp32(g)) {
        out = sum_of_squares(g.const_data_ptr<float>() + chunk.begin, count);
      } else {
        from_bf16(static_cast<const uint16_t*>(g.const_data_ptr()) + chunk.begin, buffer.data(),
                  count);
        out = sum_of_squares(buffer.data(), count);
      }
    }
  });
  double sum = 0;
  for (const double x : partial_) sum += x;
  return std::sqrt(sum);
}

void AdamW::apply(double lr, double norm, std::optional<double> weight_decay) {
  const at::NoGradGuard no_grad;
  ++num_updates_;
  double clip = 1.0;
  if (config_.clip_norm) clip = std::min(1.0, *config_.clip_norm / (norm + 1e-6));
  const double decay = weight_decay.value_or(config_.weight_decay);
  if (on_cpu_) {
    apply_cpu(lr, static_cast<float>(clip), decay);
  } else {
    apply_generic(lr, clip, decay);
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
      const int64_t count = chunk.end - chunk.begin;
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
      float* p = e.master.mutable_data_ptr<float>() + chunk.begin;
      float* ema = e.ema.defined() ? e.ema.mutable_data_ptr<float>() + chunk.begin : nullptr;
      if (e.role == ParamRole::kDecayOnly) {
        decay_update(p, ema, count, s);
      } else {
        const at::Tensor& g = grads_[static_cast<size_t>(chunk.entry)];
        const float* grad = nullptr;
        if (is_fp32(g)) {
          grad = g.const_data_ptr<float>() + chunk.begin;
        } else {
          from_bf16(static_cast<const uint16_t*>(g.const_data_ptr()) + chunk.begin, buffer.data(),
                    count);
          grad = buffer.data();
        }
        adamw_update(p, grad, e.exp_avg.mutable_data_ptr<float>() + chunk.begin,
                     e.exp_avg_sq.mutable_data_ptr<float>() + chunk.begin, ema, count, s);
      }
      if (!is_fp32(e.param)) {
        to_bf16(p, static_cast<uint16_t*>(e.param.mutable_data_ptr()) + chunk.begin, count);
      }
    }
  });
}

// Other devices: the library's fused kernel per learning rate and decay.
void AdamW::apply_generic(double lr, double clip, double weight_decay) {
  std::map<std::pair<double, double>, std::array<std::vector<at::Tensor>, 5>> groups;
  const at::Tensor step_base = at::empty({}, entries_.front().master.options());
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    const double entry_lr = lr * e.lr_scale;
    const double entry_decay = e.weight_decay.value_or(weight_decay);
    if (e.role == ParamRole::kDecayOnly) {
      e.master.mul_(1.0 - entry_lr * entry_decay);
      continue;
    }
    auto& [params, grads, means, squares, steps] = groups[{entry_lr, entry_decay}];
    params.push_back(e.master);
    grads.push_back(grads_[i].to(at::kFloat).mul(clip));
    means.push_back(e.exp_avg);
    squares.push_back(e.exp_avg_sq);
    steps.push_back(at::empty_like(step_base).fill_(static_cast<double>(num_updates_)));
  }
  for (auto& [key, lists] : groups) {
    auto& [params, grads, means, squares, steps] = lists;
    at::_fused_adamw_(params, grads, means, squares, {}, steps, key.first, config_.beta1,
                      config_.beta2, key.second, config_.eps, false, false);
  }
  for (Entry& e : entries_) {
    if (e.ema.defined()) e.ema.mul_(*config_.ema).add_(e.master, 1.0 - *config_.ema);
    if (!is_fp32(e.param)) e.param.detach().copy_(e.master);
  }
}

double AdamW::step(double lr) {
  const double norm = grad_norm();
  if (std::isfinite(norm)) apply(lr, norm);
  return norm;
}

void AdamW::zero_grad() {
  for (Entry& e : entries_) {
    e.param.mutable_grad() = at::Tensor();
  }
  for (at::Tensor& grad : grads_) grad = at::Tensor();
}

std::vector<models::NamedTensor> AdamW::export_values() const {
  std::vector<models::NamedTensor> values;
  for (const Entry& e : entries_) values.push_back({e.name, e.ema.defined() ? e.ema : e.master});
  return values;
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (const Entry& e : entries_) {
    out.emplace_back("weights." + e.name, e.master);
    if (e.exp_avg.defined()) {
      out.emplace_back("exp_avg." + e.name, e.exp_avg);
      out.emplace_back("exp_avg_sq." + e.name, e.exp_avg_sq);
    }
    if (e.ema.defined()) out.emplace_back("ema." + e.name, e.ema);
  }
  return out;
}

void AdamW::load_state(const std::vector<std::pair<std::string, at::Tensor>>& given,
                       int64_t num_updates) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> by_name(given.begin(), given.end());
  std::vector<std::string> faults;
  const auto own = state();
  for (const auto& [name, tensor] : own) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      faults.push_back("missing " + name);
    } else if (found->second.sizes() != tensor.sizes() || !is_fp32(found->second)) {
      faults.push_back("wrong shape or type of " + name);
    }
    if (found != by_name.end()) by_name.erase(found);
  }
  for (const auto& [name, tensor] : by_name) faults.push_back("unexpected " + name);
  LS_CHECK(faults.empty(), CheckpointError, "the optimizer state does not fit the model: {}",
           fmt::join(faults, "; "));
  by_name = std::map<std::string, at::Tensor>(given.begin(), given.end());
  for (const auto& [name, tensor] : own) tensor.copy_(by_name.at(name));
  for (Entry& e : entries_) {
    if (!is_fp32(e.param)) e.param.detach().copy_(e.master);
  }
  num_updates_ = num_updates;
}

}  // namespace longship::train
