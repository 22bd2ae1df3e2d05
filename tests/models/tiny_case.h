#pragma once
// The golden case tiny_train as a policy and batches, and a plain optimizer for recorded runs.

#include <memory>
#include <string>
#include <vector>

#include "models/parity.h"
#include "models/pi05/policy.h"

namespace longship::models::testing {

/// Inputs in the padded layout of the reference, so that a test can change masks before packing.
struct PaddedInputs {
  at::Tensor images, image_masks, tokens, token_mask, state, actions, action_is_pad, noise, time;
  Pi05Batch pack_batch() const;
};
PaddedInputs tiny_inputs(const std::string& golden = "pi05/tiny_train", int64_t batch = 0);

/// Policy with the case's weights; `change` edits the configuration first.
std::unique_ptr<Pi05Policy> tiny_policy(const std::string& golden = "pi05/tiny_train",
                                        const std::function<void(Pi05Config&)>& change = {},
                                        at::ScalarType dtype = at::kFloat,
                                        const BuildOptions& build = {});

/// AdamW, clipping and the two recorded schedules, written out plainly: an oracle independent of
/// the trainer's.
std::unique_ptr<ParityOptimizer> plain_optimizer(std::vector<ParamInfo> parameters,
                                                 const ParityRecipe& recipe);

/// Largest difference over largest reference value.
double relative(const at::Tensor& ours, const at::Tensor& ref);

}  // namespace longship::models::testing
