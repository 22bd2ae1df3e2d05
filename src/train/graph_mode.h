#pragma once
// How much of a step is one CUDA graph.

#include <string>

namespace longship::train {

enum class GraphMode {
  kNone,           // every operator is launched
  kPerMicrobatch,  // forward and backward of a micro-batch are one graph
  kFullIteration,  // the whole step, optimizer included, is one graph
};
/// train.cuda_graph. Throws ConfigError.
GraphMode parse_graph_mode(const std::string& name);

}  // namespace longship::train
