#include "train/optimizer.h"

// Parameters, groups and state of the optimizer; its arithmetic is in optimizer_update.cpp.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/strings.h"
#include "ops/adamw.h"

namespace longship::train {
namespace {

using models::ParamRole;

bool is_fp32(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat;
}

void check_row_sparse(const AdamW::Entry& e) {
  const at::Tensor &grad = e.row_sparse->grad, &flags = e.row_sparse->row_flags;
  LS_CHECK(
      e.role == ParamRole::kTrainable && e.param.dim() >= 1 && grad.defined() && flags.defined() &&
          grad.sizes() == e.param.sizes() && grad.is_contiguous() &&
          grad.device() == e.param.device() &&
          (is_fp32(grad) || grad.scalar_type() == at::kBFloat16) &&
          flags.numel() == e.param.size(0) && flags.scalar_type() == at::kByte &&
          flags.is_contiguous() && flags.device() == e.param.device(),
      InternalError,
      "the row-sparse gradient of '{}' must be fp32 or bf16 in the parameter's shape, with one "
      "uint8 flag per row",
      e.name);
}

// Rows of which any element is not zero, bool [rows], without a copy of the whole tensor.
at::Tensor nonzero_rows(const at::Tensor& t) {
  const at::Tensor rows = t.view({t.size(0), -1});
  return rows.amax({1}).ne(0).logical_or_(rows.amin({1}).ne(0));
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

AdamW::AdamW(std::vector<models::ParamInfo> parameters, const AdamWConfig& config,
             std::vector<std::string> all_names)
    : config_(config), on_cpu_(config.fused) {
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
    e.row_sparse = std::move(info.row_sparse);
    if (e.row_sparse) check_row_sparse(e);
    on_cpu_ = on_cpu_ && e.param.device().is_cpu();
    entries_.push_back(std::move(e));
  }
  LS_CHECK(!entries_.empty(), ConfigError,
           "nothing to train: every parameter is frozen (see model.freeze)");
  if (all_names.empty()) {
    for (const Entry& e : entries_) all_names.push_back(e.name);
  }
  assign_groups(all_names);
  make_chunks();
  grads_.resize(entries_.size());
  const c10::DeviceType device = entries_.front().param.device().type();
  if (config_.fused && !on_cpu_ && ops::FusedAdamW::available(device)) fused();
}

AdamW::~AdamW() = default;

ops::FusedAdamW& AdamW::fused() {
  if (fused_) return *fused_;
  LS_CHECK(config_.fused, InternalError, "asynchronous steps need AdamWConfig::fused");
  std::vector<ops::AdamWTensor> tensors;
  for (const Entry& e : entries_) {
    ops::AdamWTensor t;
    t.master = e.master;
    if (!is_fp32(e.param)) t.param = e.param.detach();
    t.exp_avg = e.exp_avg;
    t.exp_avg_sq = e.exp_avg_sq;
    t.ema = e.ema;
    if (e.row_sparse) {
      t.row_grad = e.row_sparse->grad;
      t.row_flags = e.row_sparse->row_flags;
    }
    t.group = e.rate;
    tensors.push_back(std::move(t));
  }
  ops::AdamWHyper hyper;
  hyper.beta1 = config_.beta1;
  hyper.beta2 = config_.beta2;
  hyper.eps = config_.eps;
  hyper.max_norm = config_.clip_norm;
  hyper.ema = config_.ema;
  fused_ = ops::FusedAdamW::create(std::move(tensors), hyper);
  if (num_updates_ != 0) set_num_updates(num_updates_);
  return *fused_;
}

void AdamW::assign_groups(const std::vector<std::string>& all_names) {
  const size_t none = config_.groups.size();
  const auto group_of = [&](const std::string& name) {
    size_t i = 0;
    while (i < none && !matches_glob(config_.groups[i].pattern, name)) ++i;
    return i;
  };
  for (Entry& e : entries_) {
    const size_t i = group_of(e.name);
    if (i != none) {
      e.lr_scale = config_.groups[i].lr_scale;
      e.weight_decay = config_.groups[i].weight_decay;
    }
    const std::pair rate(e.lr_scale, e.weight_decay);
    const auto known = std::find(rates_.begin(), rates_.end(), rate);
    e.rate = known - rates_.begin();
    if (known == rates_.end()) rates_.push_back(rate);
  }
  std::vector<int64_t> matched(none, 0), taken(none + 1, 0);
  for (const std::string& name : all_names) {
    ++taken[group_of(name)];
    for (size_t i = 0; i < none; ++i) {
      matched[i] += matches_glob(config_.groups[i].pattern, name) ? 1 : 0;
    }
  }
  for (size_t i = 0; i < none; ++i) {
    LS_CHECK(matched[i] > 0, ConfigError,
             "optim.groups.{}.pattern: '{}' matches none of the {} parameters that are trained; "
             "the first is '{}', the last '{}'",
             i, config_.groups[i].pattern, all_names.size(), all_names.front(), all_names.back());
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
  rebuild_row_flags();
  if (fused_) fused_->clear_fault();
  set_num_updates(num_updates);
}

void AdamW::rebuild_row_flags() {
  for (Entry& e : entries_) {
    if (!e.row_sparse || e.param.numel() == 0) continue;
    e.row_sparse->row_flags.copy_(nonzero_rows(e.exp_avg).logical_or_(nonzero_rows(e.exp_avg_sq)));
    e.row_sparse->grad.zero_();
  }
}

}  // namespace longship::train
