#pragma once
// Reads any elements of any tensor of a state, however many ranks wrote it.

#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "io/shard_index.h"

namespace longship::io {

/// The state folder of a checkpoint: index.json with the files of the ranks, or the single
/// optimizer.safetensors of older checkpoints, which reads like one rank's. Files are opened when
/// they are needed, checked against the index then, and read in ranges; few are open at a time.
/// Const methods are thread-safe.
class ShardedState {
 public:
  /// Throws CheckpointError: neither form is there (or both), the index is wrong.
  static ShardedState open(const std::filesystem::path& state_folder);

  /// The folder.
  const std::filesystem::path& path() const { return folder_; }
  const ShardIndex& index() const { return index_; }
  const std::vector<ShardedTensor>& tensors() const { return index_.tensors; }
  /// nullptr when there is no such tensor.
  const ShardedTensor* find(std::string_view name) const;
  /// Throws CheckpointError naming the folder and the tensor.
  const ShardedTensor& at(std::string_view name) const;

  /// Elements [begin, end) of a tensor of this state, (end - begin) * dtype_bytes bytes. Throws
  /// CheckpointError naming file, tensor and elements: the file is missing or damaged, does not
  /// hold what the index says, or cannot be read.
  void read(const ShardedTensor& tensor, int64_t begin, int64_t end, void* out) const;

  /// Checks every file against the index: none missing, every slice there with dtype and size,
  /// nothing else in it. Throws CheckpointError.
  void check_files() const;
  /// Of all tensors.
  uint64_t total_bytes() const;

 private:
  struct OpenFile {
    size_t index = 0;
    std::shared_ptr<const SafetensorsRanges> file;
  };
  struct Cache {
    std::mutex mutex;
    std::list<OpenFile> open;  // latest use first
  };

  ShardedState() = default;
  std::shared_ptr<const SafetensorsRanges> file(size_t index) const;
  void check_file(size_t index, const SafetensorsRanges& file) const;

  std::filesystem::path folder_;
  ShardIndex index_;
  bool has_index_ = true;
  std::unique_ptr<Cache> cache_;
};

}  // namespace longship::io
