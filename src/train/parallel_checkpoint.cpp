#include "train/parallel_checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using models::ParamInfo;
using models::ParamRole;

// The tensors of state/optimizer.safetensors in the order in which they are written. Every rank
// makes the same list and gathers in the same order.
class StateGathering {
 public:
  StateGathering(const std::vector<ParamInfo>& parameters, const AdamW& optimizer,
                 GradientSync& sync)
      : sync_(sync) {
    const auto own = optimizer.state();
    const std::map<std::string, at::Tensor> parts(own.begin(), own.end());
    const auto add = [&](const std::string& kind, const ParamInfo& info) {
      const auto part = parts.find(kind + info.name);
      items_.push_back({kind + info.name, info.name, info.tensor.sizes().vec(),
                        part == parts.end() ? at::Tensor() : part->second});
    };
    for (const ParamInfo& info : parameters) {
      if (info.role == ParamRole::kFrozen) continue;
      add("weights.", info);
      if (info.role == ParamRole::kTrainable) {
        add("exp_avg.", info);
        add("exp_avg_sq.", info);
      }
      if (optimizer.has_ema()) add("ema.", info);
    }
    // All are fp32, so the file is in the order of the names.
    std::sort(items_.begin(), items_.end(),
              [](const Item& a, const Item& b) { return a.key < b.key; });
  }

  std::vector<io::LazyTensor> lazy() {
    std::vector<io::LazyTensor> out;
    for (size_t i = 0; i < items_.size(); ++i) {
      out.push_back({items_[i].key, at::kFloat, items_[i].shape, [this, i] {
                       LS_CHECK(i == next_, InternalError,
                                "checkpoint: tensor {} is asked for, {} is next", i, next_);
                       return gather_next();
                     }});
    }
    return out;
  }
  /// Takes part in what is left. Ranks that write nothing, and the one whose writing failed, keep
  /// the others from waiting.
  void drain() {
    while (next_ < items_.size()) gather_next();
  }

 private:
  struct Item {
    std::string key, name;
    std::vector<int64_t> shape;
    at::Tensor part;
  };
  at::Tensor gather_next() {
    const Item& item = items_[next_++];
    return sync_.gather_whole(item.name, item.part);
  }
  GradientSync& sync_;
  std::vector<Item> items_;
  size_t next_ = 0;
};

// The averages in the parameters' dtypes, on the host of rank 0.
std::vector<models::NamedTensor> gather_averages(const std::vector<ParamInfo>& parameters,
                                                 const AdamW& optimizer, GradientSync& sync) {
  std::vector<models::NamedTensor> out;
  if (!optimizer.has_ema()) return out;
  std::map<std::string, at::Tensor> parts;
  for (const AdamW::Entry& e : optimizer.entries()) parts[e.name] = e.ema;
  for (const ParamInfo& info : parameters) {
    if (info.role == ParamRole::kFrozen) continue;
    const at::Tensor whole = sync.gather_whole(info.name, parts[info.name]);
    if (whole.defined()) out.push_back({info.name, whole.to(info.tensor.scalar_type())});
  }
  return out;
}

}  // namespace

fs::path save_together(Parallel& parallel, CheckpointStore& store,
                       const CheckpointContents& contents, models::Policy& policy,
                       const AdamW& optimizer, GradientSync* sync, const TrainerState& state) {
  if (!parallel.distributed()) return save_checkpoint(store, contents, policy, optimizer, state);
  parallel.together([&] {
    if (!sync->sliced()) {
      if (parallel.first()) save_checkpoint(store, contents, policy, optimizer, state);
      return;
    }
    const at::NoGradGuard no_grad;
    sync->wait_weights();
    const std::vector<ParamInfo> parameters = policy.parameters();
    StateGathering gathering(parameters, optimizer, *sync);
    CheckpointTensors tensors;
    const auto averages = gather_averages(parameters, optimizer, *sync);
    if (!parallel.first()) return gathering.drain();
    tensors.weights = policy.export_weights(averages);
    tensors.optimizer = gathering.lazy();
    try {
      write_checkpoint(store, contents, policy, tensors, state);
    } catch (const Error&) {
      gathering.drain();
      throw;
    }
    gathering.drain();  // nothing was written where a valid checkpoint of this step exists
  });
  return store.folder_of(state.step);
}

StartPlan plan_start_together(Parallel& parallel, const Recipe& recipe, bool overwrite,
                              const DatasetIdentity& dataset, const FamilyLookup& lookup) {
  if (!parallel.distributed()) return plan_start(recipe, overwrite, dataset, lookup);
  StartPlan plan;
  parallel.together([&] {
    if (parallel.first()) plan = plan_start(recipe, overwrite, dataset, lookup);
  });
  nlohmann::json decision;
  decision["fork"] = plan.is_fork;
  if (plan.resume_from) decision["from"] = fs::absolute(*plan.resume_from).string();
  decision = nlohmann::json::parse(parallel.from_first(decision.dump()));
  parallel.together([&] {
    fs::create_directories(recipe.output_dir);  // on hosts of their own file system, for the log
    if (parallel.first() || !decision.contains("from")) return;
    plan.resume_from = decision["from"].get<std::string>();
    plan.is_fork = decision["fork"].get<bool>();
    LS_CHECK(fs::exists(*plan.resume_from), CheckpointError,
             "{}: rank 0 resumes from it, but it does not exist here; output_dir must be on a file "
             "system that all hosts share",
             plan.resume_from->string());
    plan.state = trainer_state_from(*plan.resume_from);
  });
  return plan;
}

void check_same_weights(Parallel& parallel, models::Policy& policy) {
  if (!parallel.distributed()) return;
  const at::NoGradGuard no_grad;
  const std::vector<ParamInfo> parameters = policy.parameters();
  std::vector<at::Tensor> sums;
  for (const ParamInfo& info : parameters) {
    // Sums of the bits as integers: exact, whatever the order.
    const at::ScalarType bits = info.tensor.element_size() == 4 ? at::kInt : at::kShort;
    sums.push_back(info.tensor.detach().view(bits).sum(at::kLong));
  }
  const at::Tensor all = at::stack(sums).cpu();
  const int64_t* values = all.const_data_ptr<int64_t>();
  std::vector<double> halves;  // a sum of 64 bits as two exact numbers
  for (size_t i = 0; i < parameters.size(); ++i) {
    halves.push_back(static_cast<double>(values[i] >> 32));
    halves.push_back(static_cast<double>(values[i] & 0xffffffff));
  }
  const auto rows = parallel.gather(halves);
  for (size_t i = 0; i < halves.size(); ++i) {
    std::vector<int64_t> others;
    for (size_t r = 1; r < rows.size(); ++r) {
      if (rows[r][i] != rows[0][i]) others.push_back(static_cast<int64_t>(r));
    }
    if (others.empty()) continue;
    parallel.all_leave();
    throw ConfigError(fmt::format(
        "{} do not start with the weights of rank 0: '{}' differs; give all hosts the same "
        "model.checkpoint (or checkpoint to resume)",
        dist::describe_ranks(others), parameters[i / 2].name));
  }
}

}  // namespace longship::train
