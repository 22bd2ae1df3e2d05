#include "train/assembly.h"

#include "train/checkpoint_io.h"
#include "train/session.h"

namespace longship::train {

Assembly assemble(const Recipe& bound, at::Device device, Parallel* parallel) {
  Assembly out;
  const bool several = parallel != nullptr && parallel->distributed();
  models::BuildOptions build = build_options(bound, device);
  // No process ever holds all weights then: they come tensor by tensor, and each keeps its part.
  build.allocate = !several || !shards_weights(bound.parallel);
  out.policy = bound.family->build(*bound.model, build);
  AdamWConfig config = bound.optim.adamw();
  config.fused = bound.perf.fused_optimizer;
  std::vector<std::string> trained;
  for (const models::ParamInfo& info : out.policy->parameters()) {
    if (info.role != models::ParamRole::kFrozen) trained.push_back(info.name);
  }
  if (several) {
    out.sync = make_gradient_sync(*parallel->data(), parallel->replicas(), bound.parallel,
                                  parse_graph_mode(bound.train.cuda_graph), *out.policy);
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
  options.sync = out.sync.get();
  if (out.sync) {
    options.while_waiting = [parallel](double waited_s) { parallel->watch(waited_s); };
  }
  out.engine = make_step_engine(*out.policy, *out.optimizer, options);
  return out;
}

}  // namespace longship::train
