#pragma once

#include "models/spec.h"

namespace longship::models {

/// The family "pi05": Pi0 and Pi0.5.
const ModelFamily& pi05_family();

}  // namespace longship::models
