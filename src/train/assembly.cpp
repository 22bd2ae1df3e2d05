#include "train/assembly.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/log.h"
#include "train/checkpoint_io.h"
#include "train/session.h"

namespace longship::train {

namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// What happens with a frozen part: in the step, beside it, or kept.
void choose_frozen_part(const Recipe& bound, const models::Policy& policy, bool several,
                        StepEngineOptions& options) {
  const bool divided = several && shards_weights(bound.parallel);
  if (bound.perf.feature_cache > 0) {
    const std::string random = bound.model->random_frozen_inputs();
    LS_CHECK(policy.has_frozen_part(), ConfigError,
             "perf.feature_cache: this model trains from its first layers on, so there is nothing "
             "to keep; freeze its backbone or set perf.feature_cache=0");
    LS_CHECK(random.empty(), ConfigError,
             "perf.feature_cache: what a sample's backbone gives changes every time, because of "
             "{}; turn that off or set perf.feature_cache=0",
             random);
    LS_CHECK(!divided, ConfigError,
             "perf.feature_cache: not with parallel.strategy {}, which divides frozen weights; use "
             "ddp or zero1, or set perf.feature_cache=0",
             bound.parallel.strategy);
    options.feature_cache_bytes = static_cast<int64_t>(bound.perf.feature_cache * kGiB);
  }
  options.frozen_beside = bound.perf.two_graphs && policy.has_frozen_part() && !divided &&
                          options.device.is_cuda() && options.fused_update &&
                          options.graph == GraphMode::kFullIteration;
  if (!policy.has_frozen_part()) return;
  log::info(
      "the frozen backbone runs {}{}",
      options.frozen_beside ? "as a graph of its own beside the step before" : "in every step",
      options.feature_cache_bytes > 0
          ? fmt::format("; its results are kept, up to {} GiB", bound.perf.feature_cache)
          : "");
}

}  // namespace

Assembly assemble(const Recipe& bound, at::Device device, Parallel* parallel) {
  Assembly out;
  const bool several = parallel != nullptr && parallel->distributed();
  models::BuildOptions build = build_options(bound, device);
  // No process ever holds all weights then: they come tensor by tensor, and each keeps its part.
  build.allocate = !several || !shards_weights(bound.parallel);
  if (!device.is_cuda() && !bound.perf.cpu_oracles) {
    log::info(
        "on this device the library's operators do all work: the kernels of perf are for CUDA");
  }
  out.policy = bound.family->build(*bound.model, build);
  AdamWConfig config = bound.optim.adamw();
  config.fused = bound.perf.fused_optimizer;
  std::vector<std::string> trained;
  for (const models::ParamInfo& info : out.policy->parameters()) {
    if (info.role != models::ParamRole::kFrozen) trained.push_back(info.name);
  }
  if (several) {
    const int64_t world = parallel->world_size();
    const StepSize step{bound.train.num_micro(world), bound.train.global_batch / world};
    out.sync = make_gradient_sync(*parallel->data(), parallel->replicas(), bound.parallel,
                                  parse_graph_mode(bound.train.cuda_graph), step, *out.policy);
  }
  out.optimizer = std::make_unique<AdamW>(out.sync ? out.sync->updated() : out.policy->parameters(),
                                          config, trained);
  const models::PreciseSink sink = [&](const std::string& name, const at::Tensor& value) {
    if (out.sync) return out.sync->set_values(*out.optimizer, name, value);
    out.optimizer->set_master(name, value);
  };
  fill_weights(*out.policy, bound, sink);
  StepEngineOptions options;
  options.device = device;
  options.graph = parse_graph_mode(bound.train.cuda_graph);
  options.copy_ahead = bound.perf.copy_ahead;
  options.fused_update = bound.perf.fused_optimizer;
  options.hand_over_gradients = bound.perf.hand_over_gradients;
  options.sync = out.sync.get();
  choose_frozen_part(bound, *out.policy, several, options);
  if (out.sync) {
    options.while_waiting = [parallel](double waited_s) { parallel->watch(waited_s); };
  }
  out.engine = make_step_engine(*out.policy, *out.optimizer, options);
  return out;
}

}  // namespace longship::train
