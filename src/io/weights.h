#pragma once
// Model weights on disk: one safetensors file, or a folder with one file or with shards and an
// index.

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/safetensors.h"

namespace longship::io {

/// The tensors of one or several safetensors files under one set of names. Const methods are
/// thread-safe.
class Weights {
 public:
  /// The files that hold the tensors: one, or the shards in the order of their names.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  /// What was opened: the file or the folder.
  const std::filesystem::path& path() const { return path_; }
  /// All tensors, file after file.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// Of the single file, or of all shards together (the first shard that has a key wins).
  const Metadata& metadata() const { return metadata_; }
  /// nullptr when there is no such tensor.
  const TensorInfo* find(std::string_view name) const;
  /// Throws CheckpointError naming the place, the tensor and the nearest name.
  const TensorInfo& at(std::string_view name) const;
  /// First byte of a tensor of this object, see SafetensorsFile::data.
  const std::byte* data(const TensorInfo& info) const;
  /// The file a tensor of this object is in, for messages.
  const std::filesystem::path& file_of(const TensorInfo& info) const;
  /// Sum over all tensors.
  uint64_t total_bytes() const;

 private:
  friend Weights open_weights(const std::filesystem::path& path);
  size_t entry_of(std::string_view name) const;

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorInfo> tensors_;
  std::vector<size_t> file_of_tensor_;
  std::unordered_map<std::string, size_t> by_name_;
  Metadata metadata_;
};

/// `path` is a .safetensors file, a model.safetensors.index.json, or a folder with
/// model.safetensors.index.json or model.safetensors (both: an error, since nothing says which
/// holds). With an index, the index decides: every shard must exist, every tensor must be in the
/// shard the index names, and no shard may hold a tensor the index does not list. Throws
/// CheckpointError listing every such fault at once.
Weights open_weights(const std::filesystem::path& path);

}  // namespace longship::io
