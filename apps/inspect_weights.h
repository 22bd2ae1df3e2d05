#pragma once

#include <filesystem>

namespace longship::apps {

/// Prints the tensors of a safetensors file, of a checkpoint folder or of a sharded set, grouped by
/// module. `list_all` prints every tensor. Returns the exit code; throws CheckpointError when the
/// file is not sound.
int inspect_weights(const std::filesystem::path& path, bool list_all, bool json);

}  // namespace longship::apps
