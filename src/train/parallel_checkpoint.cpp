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

// Over Gloo on the host.
class ProcessesOfRun : public CheckpointGroup {
 public:
  explicit ProcessesOfRun(std::unique_ptr<dist::Communicator> group) : group_(std::move(group)) {}
  int64_t rank() const override { return group_->rank(); }
  int64_t world_size() const override { return group_->world_size(); }
  void barrier() override { group_->barrier("checkpoint"); }
  Agreement agree(bool ok, const std::string& note) override {
    const std::vector<std::string> texts =
        gather_texts(*group_, (ok ? '1' : '0') + note, "checkpoint");
    Agreement out;
    for (const std::string& text : texts) {
      const bool failed = text.front() != '1';
      out.ok = out.ok && !failed;
      out.failed.push_back(failed ? 1 : 0);
      out.notes.push_back(text.substr(1));
    }
    return out;
  }
  void working(const std::function<void()>& work) override { keep_beating(*group_, work); }
  void set_step(int64_t step) override { group_->set_step(step); }

 private:
  std::unique_ptr<dist::Communicator> group_;
};

}  // namespace

std::unique_ptr<CheckpointGroup> make_checkpoint_group(Parallel& parallel) {
  if (!parallel.distributed()) return std::make_unique<SingleProcess>();
  return std::make_unique<ProcessesOfRun>(parallel.make_host_group("checkpoint"));
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

void check_same_weights(Parallel& parallel, const GradientSync& sync) {
  const at::NoGradGuard no_grad;
  const auto named = sync.weight_sums();
  std::vector<at::Tensor> sums;
  for (const auto& [name, sum] : named) sums.push_back(sum);
  const at::Tensor all = at::stack(sums).cpu();
  const int64_t* values = all.const_data_ptr<int64_t>();
  std::vector<double> halves;  // a sum of 64 bits as two exact numbers
  for (size_t i = 0; i < named.size(); ++i) {
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
        dist::describe_ranks(others), named[i / 2].first));
  }
}

}  // namespace longship::train
