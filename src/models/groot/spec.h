#pragma once

#include "models/spec.h"

namespace longship::models {

/// The families "groot_n16" and "groot_n17".
const ModelFamily& groot_n16_family();
const ModelFamily& groot_n17_family();

}  // namespace longship::models
