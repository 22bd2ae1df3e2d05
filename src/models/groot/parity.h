#pragma once

#include <memory>

#include "models/parity.h"

namespace longship::models {

/// Cases of groot_n16 and groot_n17: whole models (kind "full"), the action head alone ("head") and
/// N1.7's backbone alone ("vision"), by inputs.json.
std::unique_ptr<ParityAdapter> make_groot_parity_adapter(const ParityCase& c,
                                                         const ParityOptions& options);

}  // namespace longship::models
