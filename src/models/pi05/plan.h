#pragma once
// The ordered units of the network, for recomputation, sharding and overlap, and the role of every
// parameter.

#include <string>
#include <vector>

#include "models/pi05/config.h"
#include "models/pi05/model.h"
#include "models/spec.h"

namespace longship::models {

/// The names that the model runs its layers under (nn::run_unit). The two streams of a joint layer
/// are two units, because the whole prefix is encoded before the expert begins; recomputation names
/// them together, "joint.<layer>".
std::string pi05_vision_unit(int64_t layer);  // "vision.<layer>"
std::string pi05_prefix_unit(int64_t layer);  // "prefix.<layer>"
std::string pi05_expert_unit(int64_t layer);  // "expert.<layer>"

/// Parameters that are read together.
struct Pi05Unit {
  std::string name;
  std::vector<std::string> parameters;
};

/// Every parameter is in exactly one unit: the one in whose call it is read.
///   vision.<l>  layer l without its first norm, and the norm behind it: layer_norm1 of layer l +
///   1,
///               post_layernorm for the last
///   prefix.<l>  the same of the prefix stream; the last layer has key and value projections only
///   expert.<l>  the same of the expert; in Pi0 its plain norms, the final one too
///   ""          the root, read outside the layers: patch and position embedding, projector, token
///               table, the first norms, time MLP, state and action projections, and Pi0.5's
///               modulations, which one product gives for all expert layers at once
///   "unread"    dead or decay only: the last prefix layer's query, output and MLP, the prefix norm
/// In order of registration, which for the layers is the order in which they run.
std::vector<Pi05Unit> pi05_units(const Pi05Model& model);

/// Names of all parameters in the order in which the forward pass first needs them (see
/// Policy::use_order): time and modulations, pictures, text, prefix layers, suffix, expert layers,
/// head.
std::vector<std::string> pi05_use_order(const Pi05Model& model);

/// Role of a parameter: frozen by configuration, dead by structure, decay only, or trainable; and
/// its unit.
/// Throws ConfigError when a freeze pattern matches nothing or nothing is left to train.
std::vector<ParamInfo> pi05_parameters(const Pi05Model& model);

}  // namespace longship::models
