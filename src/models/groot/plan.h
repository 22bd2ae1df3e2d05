#pragma once
// The ordered units of the network, for recomputation, sharding and overlap, and the role of every
// parameter.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/groot/model.h"
#include "models/spec.h"

namespace longship::models {

/// The names that the model runs its layers under (nn::run_unit): "vision.<l>", "text.<l>",
/// "vl.<l>", "dit.<l>". Modulations, encoders, decoder, norms between the parts and everything
/// outside of layers belong to the root.
std::string groot_vision_unit(int64_t layer);
std::string groot_text_unit(int64_t layer);
/// In the order in which they run.
std::vector<std::string> groot_units(const GrootSizes& sizes);

/// Role of a parameter by the tune_* settings and model.freeze, and its unit. What no pass reads
/// (the pooling head, N1.7's final norm where the head reads what is before it, slots of other
/// robots) is frozen. Throws
/// ConfigError when the settings train nothing, a freeze pattern matches nothing, or nothing is
/// left to train.
std::vector<ParamInfo> groot_parameters(const GrootModel& model);

/// Text layers in front of which nothing trains; nullopt where the towers or the first text layers
/// (those that pictures' features are added behind) train.
std::optional<int64_t> groot_frozen_layers(const std::vector<ParamInfo>& parameters,
                                           const GrootSizes& sizes);

/// Names of all parameters in the order in which the forward pass first needs them.
std::vector<std::string> groot_use_order(const GrootModel& model);

}  // namespace longship::models
