// libFuzzer target: the header parser of safetensors files. Whatever it accepts must lie inside the
// file.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const longship::io::SafetensorsHeader header =
        longship::io::parse_header(std::as_bytes(std::span(data, size)), "fuzz");
    uint64_t next = 0;
    for (const longship::io::TensorInfo& tensor : header.tensors) {
      const auto bytes =
          static_cast<uint64_t>(tensor.numel() * longship::io::dtype_bytes(tensor.dtype));
      if (tensor.begin != next || bytes != tensor.num_bytes()) std::abort();
      next = tensor.end;
    }
    if (header.data_offset + next != size) std::abort();
  } catch (const longship::CheckpointError&) {
  }
  return 0;
}
