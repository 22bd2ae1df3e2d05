#pragma once
// The index of a state that is spread over one safetensors file a rank: which elements of which
// tensor lie in which file under which key. Files are untrusted: every number is checked.
//
// {"format": "longship-state-1", "world_size": W, "strategy": "zero1",
//  "files": ["optimizer.r0000-of-0002.safetensors", ...],            beside the index
//  "tensors": {"exp_avg.x": {"dtype": "F32", "shape": [3, 4],
//                            "slices": [[0, 7, 0, "exp_avg.x[0:7]"], [7, 12, 1, ...]]}}}
//
// A slice is [begin, end, number of the file, key] and holds elements [begin, end) of the tensor,
// flattened row-major. The slices of a tensor cover it exactly once, in ascending order; a tensor
// without elements has none.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace longship::io {

inline constexpr const char* kShardIndexFile = "index.json";

struct ShardedSlice {
  int64_t begin = 0, end = 0;  // elements
  size_t file = 0;             // index in ShardIndex::files
  std::string key;             // name of the tensor in that file
};

struct ShardedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<ShardedSlice> slices;  // ascending

  int64_t numel() const;
};

struct ShardIndex {
  int64_t world_size = 1;
  std::string strategy;
  std::vector<std::string> files;
  std::vector<ShardedTensor> tensors;  // by name
};

/// "optimizer.r0001-of-0004.safetensors".
std::string shard_file_name(int64_t rank, int64_t world_size);
/// The key of elements [begin, end) of a tensor with `numel`: the name itself for the whole tensor,
/// else "name[begin:end]".
std::string shard_key(std::string_view name, int64_t begin, int64_t end, int64_t numel);

/// Parses and checks an index; `name` is used in messages. Throws CheckpointError naming `name`,
/// the tensor and the element range: wrong form, sizes beyond any file, file names that lead
/// elsewhere, gaps, overlaps, a key that is used twice.
ShardIndex parse_shard_index(std::string_view text, std::string_view name);
std::string to_json(const ShardIndex& index);

/// Sorts the slices and checks them as parse_shard_index() does.
void check_shard_index(ShardIndex& index, std::string_view name);

/// What a file holds of which tensor, kept in its metadata so that an index can be made from the
/// files alone.
struct ShardRecord {
  std::string key, name;
  int64_t begin = 0, end = 0;
  std::vector<int64_t> shape;  // of the whole tensor
};
/// Metadata of the file of one rank.
Metadata shard_metadata(int64_t rank, int64_t world_size, const std::vector<ShardRecord>& records);
/// The index of the files of all ranks in `folder`, from their headers. Throws CheckpointError:
/// a file that is missing or says it is another rank's, and everything of check_shard_index().
ShardIndex index_of_shards(const std::filesystem::path& folder, int64_t world_size,
                           const std::string& strategy);

}  // namespace longship::io
