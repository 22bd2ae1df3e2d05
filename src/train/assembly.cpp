#include "train/assembly.h"

#include <set>

#include "train/checkpoint_io.h"
#include "train/session.h"

namespace longship::train {

Assembly assemble(const Recipe& bound, at::Device device) {
  Assembly out;
  out.policy = bound.family->build(*bound.model, build_options(bound, device));
  AdamWConfig config = bound.optim.adamw();
  config.fused = bound.perf.fused_optimizer;
  out.optimizer = std::make_unique<AdamW>(out.policy->parameters(), config);
  std::set<std::string> updated;
  for (const AdamW::Entry& entry : out.optimizer->entries()) updated.insert(entry.name);
  const models::PreciseSink sink = [&](const std::string& name, const at::Tensor& value) {
    if (updated.contains(name)) out.optimizer->set_master(name, value);
  };
  fill_weights(*out.policy, bound, sink);
  StepEngineOptions options;
  options.device = device;
  options.graph = parse_graph_mode(bound.train.cuda_graph);
  options.copy_ahead = bound.perf.copy_ahead;
  options.fused_update = bound.perf.fused_optimizer;
  out.engine = make_step_engine(*out.policy, *out.optimizer, options);
  return out;
}

}  // namespace longship::train
