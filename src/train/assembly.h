#pragma once
// Model, optimizer and step engine of a recipe, put together the same way for training and for
// measuring.

#include <memory>

#include "models/spec.h"
#include "train/gradient_sync.h"
#include "train/optimizer.h"
#include "train/parallel.h"
#include "train/recipe.h"
#include "train/step_engine.h"

namespace longship::train {

struct Assembly {
  std::unique_ptr<models::Policy> policy;
  std::unique_ptr<GradientSync> sync;  // null with one process
  std::unique_ptr<AdamW> optimizer;
  std::unique_ptr<StepEngine> engine;
};

/// `bound`: a recipe whose model section is bound to a dataset (or complete without one). Weights
/// as fill_weights() gives them; masters get the full fp32 values, not those rounded to the model's
/// dtype. `parallel`: several processes with an open data plane, which must outlive it; null:
/// one process.
Assembly assemble(const Recipe& bound, at::Device device, Parallel* parallel = nullptr);

}  // namespace longship::train
