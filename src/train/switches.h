#pragma once
// Every optimisation that one setting of a recipe turns off, and where it can matter.

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "train/bench.h"
#include "train/recipe.h"

namespace longship::train {

/// What a switch needs in order to change anything.
enum class Need {
  kCuda,            // a CUDA device
  kOperators,       // fused operators: a CUDA device, or perf.cpu_oracles
  kBf16,            // train.dtype bf16
  kFusedUpdate,     // perf.fused_optimizer
  kWholeGraph,      // train.cuda_graph full_iteration
  kFrozenPart,      // a model whose passes begin with frozen layers
  kReading,         // batches that are made while steps run
  kWorkers,         // data.workers
  kLooseGradients,  // a step that may drop its gradients' buffers
};

struct Switch {
  std::string key;  // "perf.fused_norms"
  std::string off;  // the value that is the plain way
  std::vector<Need> needs = {};
  std::vector<std::string> with = {};  // further settings "a.b=c" that the plain way forces
  /// Settings that both sides of the comparison get, because the plain way cannot do without them:
  /// so the difference is the price of this switch alone.
  std::vector<std::string> both = {};
};

/// In the order in which they are listed.
const std::vector<Switch>& all_switches();

/// What decides whether a switch can matter, besides the recipe.
struct SwitchFacts {
  at::Device device = at::kCPU;
  bool frozen_part = false;     // of the model
  bool random_batches = false;  // made up, not read
  bool preloaded = false;       // read before the clock starts
};

/// Comparisons to run: settings of the recipe on either side.
struct SwitchRow {
  std::string key;
  std::vector<std::string> plain;  // "a.b=c", with the switch off
  std::vector<std::string> both;   // the same without that; empty: the recipe as it is
};
struct SwitchPlan {
  std::vector<SwitchRow> rows;
  std::vector<std::pair<std::string, std::string>> left_out;  // key, why it is not tried
};

/// The switches that are on and can matter, or those of `only`. Throws ConfigError for a name in
/// `only` that is no switch, is off already, or cannot matter here.
SwitchPlan plan_switches(const Recipe& recipe, const SwitchFacts& facts,
                         const std::vector<std::string>& only = {});

}  // namespace longship::train
