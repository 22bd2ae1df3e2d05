#pragma once
// What `longship checkpoint` does: look into checkpoints, put them together, cut them anew, compare
// them. Everything streams: no tensor is in memory as a whole.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "train/checkpoint.h"

namespace longship::train {

/// What is known about a checkpoint after its files were read.
struct Verified {
  std::filesystem::path folder;
  int64_t step = -1;       // -1: unknown
  int64_t world_size = 0;  // ranks that wrote the state; 0: there is none
  std::string strategy;
  int64_t num_files = 0;            // in the manifest
  int64_t num_tensors = 0;          // of the state
  uint64_t bytes = 0;               // of all files in the manifest
  std::vector<std::string> faults;  // empty: sound
};

/// Checks a checkpoint: every file against the manifest (size, SHA-256, none missing, none extra),
/// the state's index and every rank's file against it, the weights file, state/trainer.json. Lists
/// every fault instead of the first.
Verified verify_checkpoint(const std::filesystem::path& checkpoint,
                           const BytesProgress& progress = {});
/// The checkpoints meant by a path: itself, or all step_N of a run folder, ascending. Throws
/// CheckpointError when there is none.
std::vector<std::filesystem::path> checkpoints_at(const std::filesystem::path& path);

struct ConsolidateOptions {
  std::string values = "auto";  // "ema", "weights" (masters), auto: the average when there is one
  std::string dtype = "keep";   // "fp32", "bf16", keep: as in model.safetensors
};

/// Writes one public weights file from a checkpoint of any number of ranks: names, and tensors that
/// are not trained, as in its model.safetensors, values from the state. `out` is a file that ends
/// in .safetensors, or a folder that gets model.safetensors, config.json, config.yaml and
/// stats.json. With the default options the file is the checkpoint's model.safetensors, byte for
/// byte. Throws CheckpointError; ConfigError when `out` exists.
void consolidate_checkpoint(const std::filesystem::path& checkpoint,
                            const std::filesystem::path& out, const ConsolidateOptions& options,
                            const BytesProgress& progress = {});

/// Writes the same checkpoint as `world_size` ranks would have, with even parts, to the new folder
/// `out`. Throws CheckpointError; ConfigError when `out` exists or for a size below 1.
void reshard_checkpoint(const std::filesystem::path& checkpoint, int64_t world_size,
                        const std::filesystem::path& out, const BytesProgress& progress = {});

struct TensorDiff {
  enum class Kind { kEqual, kDiffers, kOtherDtype, kOtherShape, kOnlyA, kOnlyB };
  std::string part;  // "model" or "state"
  std::string name;
  Kind kind = Kind::kEqual;
  std::string a, b;         // "[2, 3] F32"; "" where it is missing
  int64_t numel = 0;        // of the compared ones
  int64_t num_unequal = 0;  // elements whose values (or, with one dtype, bits) differ
  double max_abs = 0;       // largest |a - b|; NaN when one of them is NaN and the other is not
};
std::string_view to_string(TensorDiff::Kind kind);  // "equal", "differs", "dtype", ...

/// Compares two checkpoints, run folders (their newest), or weights files tensor by tensor:
/// weights, and the state where both have one. Throws CheckpointError when one cannot be read.
std::vector<TensorDiff> diff_checkpoints(const std::filesystem::path& a,
                                         const std::filesystem::path& b,
                                         const BytesProgress& progress = {});

}  // namespace longship::train
