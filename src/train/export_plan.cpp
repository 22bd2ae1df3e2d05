#include "train/export_plan.h"

#include <ATen/ops/empty.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"

namespace longship::train {
namespace {

// Values that replace parameters in the export, in the parameters' own dtype.
std::vector<models::NamedTensor> export_values(const AdamW& optimizer) {
  std::vector<models::NamedTensor> out;
  if (!optimizer.has_ema()) return out;
  for (const AdamW::Entry& e : optimizer.entries()) {
    out.push_back({e.name, e.ema.to(e.param.scalar_type())});
  }
  return out;
}

class Planner {
 public:
  Planner(models::Policy& policy, const AdamW& optimizer, bool whole)
      : policy_(policy),
        optimizer_(optimizer),
        whole_(whole),
        values_(optimizer.has_ema() ? "ema." : "weights.") {
    if (const models::StoredWeights* stored = policy.stored_weights()) stored_ = *stored;
    io::NamedTensors state;
    for (models::NamedTensor& t : policy.training_state()) state.emplace_back(t.name, t.tensor);
    tables_ = tables_of(state);
    for (const models::ParamInfo& info : policy.parameters()) {
      parameters_[info.name] = info.tensor;
      if (info.role == models::ParamRole::kFrozen) continue;
      updated_.insert(info.name);
      trained_memory_.insert(info.tensor.storage().data());
    }
  }

  std::vector<ExportTensor> plan() {
    for (const models::NamedTensor& t : policy_.export_weights(table_shapes())) {
      const bool updated = updated_.contains(t.name);
      if (!updated && stored_.absent.contains(t.name)) continue;
      ExportTensor e;
      e.spec = {t.name, dtype_of(t), t.tensor.sizes().vec()};
      const auto table = tables_.find(t.name);
      if (table != tables_.end()) {
        e.pieces = pieces_of(t.name, e.spec.shape, parts_of(table->second));
      } else if (updated ? is_parameter(t) : is_kept_elsewhere(t.name)) {
        take(t.name, e);
      } else {
        take_literal(t, e);
      }
      out_.push_back(std::move(e));
    }
    average_derived();
    add_unused();
    return std::move(out_);
  }

 private:
  // Tables are written from their parts; the policy need not put them together for the plan.
  std::vector<models::NamedTensor> table_shapes() const {
    std::vector<models::NamedTensor> out;
    for (const auto& [name, parts] : tables_) {
      const auto found = parameters_.find(name);
      if (found == parameters_.end()) continue;
      const at::TensorOptions options = found->second.options().device(at::kMeta);
      out.push_back({name, at::empty(found->second.sizes(), options)});
    }
    return out;
  }

  io::DType dtype_of(const models::NamedTensor& t) const {
    const auto stored = stored_.dtypes.find(t.name);
    return io::to_dtype(stored == stored_.dtypes.end() ? t.tensor.scalar_type() : stored->second);
  }

  // Whether a frozen parameter's values are not those that the policy holds.
  bool is_kept_elsewhere(const std::string& name) const {
    return stored_.exact.contains(name) || (!whole_ && parameters_.contains(name));
  }

  // Whether an exported tensor is the parameter of its name, and not made from several.
  bool is_parameter(const models::NamedTensor& t) const {
    const auto found = parameters_.find(t.name);
    return found != parameters_.end() && found->second.sizes() == t.tensor.sizes() &&
           found->second.const_data_ptr() == t.tensor.const_data_ptr();
  }

  // Where a parameter's values are, for a tensor or a piece of one.
  template <class Export>
  void take(const std::string& parameter, Export& out) const {
    if (updated_.contains(parameter)) {
      out.source = values_ + parameter;
    } else if (const auto exact = stored_.exact.find(parameter); exact != stored_.exact.end()) {
      out.literal = exact->second;
    } else if (whole_) {
      out.literal = parameters_.at(parameter).detach();
    } else {
      out.source = "param." + parameter;
    }
  }

  std::vector<ExportRows> parts_of(const TableParts& table) const {
    std::vector<ExportRows> out;
    for (const auto& [parameter, rows] : table) {
      ExportRows& part = out.emplace_back();
      part.rows = rows;
      take(parameter, part.part);
    }
    return out;
  }

  void take_literal(const models::NamedTensor& t, ExportTensor& e) {
    LS_CHECK(whole_ || t.tensor.numel() == 0 || t.tensor.storage().nbytes() > 0, InternalError,
             "the exported '{}' is made from parameters that no process holds as a whole", t.name);
    LS_CHECK(!updated_.contains(t.name), InternalError,
             "the exported '{}' is not the parameter of that name", t.name);
    e.literal = t.tensor.detach();
    e.literal_moves = trained_memory_.contains(t.tensor.storage().data());
    if (e.literal_moves) derived_.push_back(out_.size());
  }

  // What a family makes from several parameters has no tensor of its own in the state.
  void average_derived() {
    if (derived_.empty() || !optimizer_.has_ema()) return;
    for (const AdamW::Entry& e : optimizer_.entries()) {
      LS_CHECK(e.param.sizes() == parameters_.at(e.name).sizes(), InternalError,
               "'{}' is exported from the moving average of several parameters, which no process "
               "holds as a whole",
               out_[derived_.front()].spec.name);
    }
    std::map<std::string, at::Tensor> averages;
    for (models::NamedTensor& t : policy_.export_weights(export_values(optimizer_))) {
      averages[t.name] = t.tensor;
    }
    for (const size_t i : derived_) out_[i].literal = averages.at(out_[i].spec.name).detach();
  }

  // Tensors of the file that are no parameters.
  void add_unused() {
    for (const auto& [name, tensor] : stored_.unused) {
      ExportTensor& e = out_.emplace_back();
      e.spec = {name, io::to_dtype(tensor.scalar_type()), tensor.sizes().vec()};
      e.literal = tensor;
    }
    for (const auto& [name, parameter] : stored_.copies) {
      ExportTensor& e = out_.emplace_back();
      e.spec = {name, io::to_dtype(stored_.dtypes.at(name)),
                parameters_.at(parameter).sizes().vec()};
      take(parameter, e);
    }
  }

  models::Policy& policy_;
  const AdamW& optimizer_;
  const bool whole_;
  const std::string values_;  // what names in the state begin with
  models::StoredWeights stored_;
  std::map<std::string, TableParts> tables_;
  std::map<std::string, at::Tensor> parameters_;
  std::set<std::string> updated_;
  std::set<const void*> trained_memory_;  // that updates change
  std::vector<ExportTensor> out_;
  std::vector<size_t> derived_;  // of out_: made from trained parameters
};

}  // namespace

std::vector<ExportTensor> export_plan(models::Policy& policy, const AdamW& optimizer, bool whole) {
  return Planner(policy, optimizer, whole).plan();
}

}  // namespace longship::train
