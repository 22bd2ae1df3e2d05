#pragma once

#include <memory>

#include "models/parity.h"

namespace longship::models {

/// Reads config.json, inputs.json, inputs.safetensors and weights.safetensors of a pi05 case.
std::unique_ptr<ParityAdapter> make_pi05_parity_adapter(const ParityCase& c,
                                                        const ParityOptions& options);

}  // namespace longship::models
