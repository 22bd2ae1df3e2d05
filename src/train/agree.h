#pragma once
// How far two settings of one recipe agree: loss and gradients of one batch, from equal weights.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/bench.h"

namespace longship::train {

/// Runs forward and backward of one batch (the dataset's first, or a random one) under the recipe
/// and under the recipe with `overrides`, both from the weights that the recipe has after
/// `num_updates` steps on that batch. Returns {"loss": a, "loss_other": b, "loss_error": |a-b|/|b|,
/// "worst_cosine", "groups": [{"group", "cosine", "norm", "norm_other", "l1_other",
/// "sign_agreement"}], "tensors": [the same by parameter]}; groups are layers. The sign agreement
/// weighs each sign with the other gradient's size: AdamW's first updates follow signs. Gradients
/// that are zero in both count as equal; the biases of keys, whose true gradient is zero, are left
/// out where they stand alone.
nlohmann::json agree(const Recipe& recipe, const std::vector<std::string>& overrides,
                     std::shared_ptr<const data::Dataset> dataset, const BenchOptions& options,
                     int64_t num_updates, const FamilyLookup& lookup);

std::string agreement_text(const nlohmann::json& report);

/// The group of a parameter: its name up to and with the layer number, or without the last word.
std::string layer_group(const std::string& name);

}  // namespace longship::train
