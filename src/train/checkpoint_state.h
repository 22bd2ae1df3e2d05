#pragma once
// The state of a run as slices of tensors, whoever owns them: written by the ranks, read by any
// other number of ranks.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/sharded_state.h"
#include "io/tensor_io.h"
#include "train/checkpoint.h"

namespace longship::train {

/// Elements [begin, end) of a state tensor, flattened row-major. Names are those of AdamW::state():
/// "weights.<parameter>", "exp_avg.<parameter>", "exp_avg_sq.<parameter>", "ema.<parameter>"; and
/// "param.<parameter>" for a frozen parameter that no rank holds as a whole.
struct StateSlice {
  std::string name;
  int64_t begin = 0, end = 0;
  std::vector<int64_t> shape;  // of the whole tensor
  at::Tensor tensor;           // end - begin elements in any shape, contiguous, any device
};

/// Whole tensors as slices.
std::vector<StateSlice> whole_slices(
    const std::vector<std::pair<std::string, at::Tensor>>& tensors);
/// The part of one of `world_size` ranks that all hold the same whole state: elements
/// [r, r + 1) * total / world_size of all of them, one after the other. Tensors alias.
std::vector<StateSlice> even_share(std::span<const StateSlice> all, int64_t rank,
                                   int64_t world_size);
uint64_t bytes_of(std::span<const StateSlice> slices);

/// Writes state/optimizer.rRRRR-of-WWWW.safetensors of one rank into a checkpoint folder whose
/// state/ exists. Adjacent slices of a tensor become one. Throws CheckpointError when it cannot be
/// written, InternalError for slices that overlap or do not fit their tensors.
WrittenFile write_shard(const std::filesystem::path& checkpoint, int64_t rank, int64_t world_size,
                        std::span<const StateSlice> slices);
/// Writes state/index.json from the files of all ranks. Throws CheckpointError.
WrittenFile write_shard_index(const std::filesystem::path& checkpoint, int64_t world_size,
                              const std::string& strategy);

/// Compares names, dtypes and shapes of a state with those expected, "param." tensors aside. Throws
/// CheckpointError listing all that is missing, unexpected or different.
void check_state(const io::ShardedState& state, std::span<const io::TensorSpec> expected);
/// Fills the slices' tensors, reading only their elements, in pieces. The names must be there.
/// Throws CheckpointError.
void load_slices(const io::ShardedState& state, std::span<const StateSlice> slices);

/// Elements [begin, end) of a tensor of the state, or of `literal` where `source` is "".
struct ExportPiece {
  std::string source;
  at::Tensor literal;  // contiguous, never changed by training
  int64_t begin = 0, end = 0;
};

/// A tensor of model.safetensors and where its values come from.
struct ExportTensor {
  io::TensorSpec spec;
  std::string source;                    // tensor of the state, cast to spec.dtype; "": `literal`
  at::Tensor literal;                    // of spec's shape, cast to spec.dtype, any device
  bool literal_moves = false;            // training changes it
  std::vector<ExportPiece> pieces = {};  // where not empty, these in order, cast to spec.dtype
};
/// A part of an exported tensor and the rows of it that the part is, ascending.
struct ExportRows {
  ExportPiece part;  // whole; begin and end are not read
  std::vector<int64_t> rows;
};
/// The pieces of a tensor of this shape whose rows are those of `parts`. Throws CheckpointError
/// naming `name` unless every row is in exactly one.
std::vector<ExportPiece> pieces_of(const std::string& name, const std::vector<int64_t>& shape,
                                   std::span<const ExportRows> parts);
/// The tables of a training state by exported name: parameter and rows of every part. See
/// models::Policy::training_state().
using TableParts = std::vector<std::pair<std::string, std::vector<int64_t>>>;
std::map<std::string, TableParts> tables_of(
    std::span<const std::pair<std::string, at::Tensor>> policy_state);
uint64_t bytes_of(std::span<const ExportTensor> tensors);
/// Streams a weights file from the state: never more than a piece of a tensor in memory (of a
/// literal on a device: that tensor). `written` gets the bytes of every piece. Throws
/// CheckpointError.
io::FileSum write_model(const std::filesystem::path& file, std::span<const ExportTensor> tensors,
                        const io::ShardedState& state,
                        const std::function<void(uint64_t num_bytes)>& written = {});

/// Elements that are in memory at a time while a tensor is streamed.
inline constexpr int64_t kPieceElements = int64_t{4} << 20;

}  // namespace longship::train
