// libFuzzer target: the index of a state in several files. Whatever it accepts covers every tensor
// exactly once, names files beside it only, and prints and parses back to itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "io/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace io = longship::io;
  io::ShardIndex index;
  try {
    index =
        io::parse_shard_index(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  } catch (const longship::CheckpointError&) {
    return 0;
  }
  for (const std::string& file : index.files) {
    if (file.empty() || file.find('/') != std::string::npos || file.front() == '.') std::abort();
  }
  for (const io::ShardedTensor& tensor : index.tensors) {
    int64_t next = 0;
    for (const io::ShardedSlice& slice : tensor.slices) {
      if (slice.begin != next || slice.end <= slice.begin || slice.file >= index.files.size()) {
        std::abort();
      }
      next = slice.end;
    }
    if (next != tensor.numel()) std::abort();
  }
  const std::string printed = io::to_json(index);
  if (io::to_json(io::parse_shard_index(printed, "printed")) != printed) std::abort();
  return 0;
}
