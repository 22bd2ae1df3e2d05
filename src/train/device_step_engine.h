#pragma once
// The engine of train/step_engine.h for CUDA devices.

#include <memory>

#include "train/step_engine.h"

namespace longship::train {

std::unique_ptr<StepEngine> make_device_step_engine(models::Policy& policy, AdamW& optimizer,
                                                    const StepEngineOptions& options);

}  // namespace longship::train
