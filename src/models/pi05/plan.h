#pragma once
// The ordered units of the network, for recomputation, sharding and overlap, and the role of every
// parameter.

#include <string>
#include <vector>

#include "models/pi05/config.h"
#include "models/pi05/model.h"
#include "models/spec.h"

namespace longship::models {

/// Parameters used together, in forward order.
struct Pi05Unit {
  std::string name;
  std::vector<std::string> parameters;
};

/// Vision embeddings, vision layers, projector and token embedding, joint layers (both streams),
/// heads. Every parameter is in exactly one unit.
std::vector<Pi05Unit> pi05_units(const Pi05Model& model);

/// Names of all parameters in the order in which the forward pass first needs them (see
/// Policy::use_order): time and modulations, pictures, text, prefix layers, suffix, expert layers,
/// head.
std::vector<std::string> pi05_use_order(const Pi05Model& model);

/// Role of a parameter: frozen by configuration, dead by structure, decay only, or trainable.
/// Throws ConfigError when a freeze pattern matches nothing or nothing is left to train.
std::vector<ParamInfo> pi05_parameters(const Pi05Model& model);

/// Glob with * and ?, or a dotted prefix of the name.
bool matches_parameter(std::string_view pattern, std::string_view name);

}  // namespace longship::models
