#pragma once
// The kernels' form of a dropout.

#include "kernels/random/dropout.h"
#include "ops/dropout.h"
#include "ops/dropout_check.h"

namespace longship::ops {

inline kernels::DropoutSite dropout_site(const DropoutPlan& plan) {
  return {plan.site, kDropoutPurpose, plan.threshold, static_cast<float>(plan.multiplier)};
}

}  // namespace longship::ops
