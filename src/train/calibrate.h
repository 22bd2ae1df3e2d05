#pragma once
// Which layers multiply in FP8: measured on a batch, written to a table, read by train.fp8.

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "train/bench.h"
#include "train/recipe.h"

namespace longship::train {

struct CalibrateOptions {
  double min_cosine = 0.99;        // of a layer's gradients against those in bf16
  double max_output_error = 0.08;  // relative L2
  double min_speedup = 1.05;       // forward and backward, casts included; CUDA only
};

/// Runs one training batch in the recipe's dtype and notes, for every layer that could, what FP8
/// would have given; on a CUDA device also times each distinct shape both ways. Returns {"layers":
/// [{"layer", "rows", "in", "out", "output_error", "input_grad_cos", "weight_grad_cos", "speedup",
/// "fp8", "why"}], "chosen", "candidates", ...}; "fp8" is the choice. Needs train.dtype bf16 on
/// CUDA (fp32 works on the CPU, for trying it out).
nlohmann::json calibrate(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
                         const BenchOptions& batch, const CalibrateOptions& options,
                         const FamilyLookup& lookup);

/// The chosen layers of a table. Throws ConfigError naming file and key.
std::vector<std::string> read_fp8_table(const std::filesystem::path& file);

/// A few lines of a table for a person.
std::string calibration_text(const nlohmann::json& table);

}  // namespace longship::train
