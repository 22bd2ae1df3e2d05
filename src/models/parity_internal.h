#pragma once
// What the parts of the parity runner share.

#include <set>
#include <string>
#include <string_view>

#include "models/parity.h"

namespace longship::models {

/// A row of something that could not be judged.
ParityRow parity_fault(std::string kind, std::string name, std::string note);

/// Figures of a recording that say how far the reference's own variants lie apart: fp32 from fp64
/// (`*_fp64`, `fp32_vs_fp64`) and the like (`max_abs_*`, `*_max_abs_diff`). They describe how the
/// recording was made; no program can repeat them.
bool parity_figure(std::string_view name);

/// Judges the recorded runs of `file`. `noisy`: parameters whose gradient is zero in exact
/// arithmetic and rounding noise in the recording. Adam turns such noise into steps of the size of
/// the learning rate that leave the loss as it is, so their weights are left out.
void run_parity_trajectory(const ParityCase& c, ParityAdapter& adapter, const std::string& file,
                           const std::string& description,
                           const ParityOptimizerFactory& make_optimizer,
                           const std::set<std::string>& noisy, ParityReport& report);

/// The file of weights that belongs to a trajectory: train.safetensors to train.json.
std::string parity_weights_file(const std::string& trajectory);

}  // namespace longship::models
