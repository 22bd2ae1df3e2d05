#pragma once
// Inner part of Sha256 for processors with SHA instructions.

#include <cstddef>
#include <cstdint>

namespace longship {

/// Whether sha256_blocks_x86() can run here.
bool has_sha256_instructions();
/// Takes blocks of 64 bytes into `state` [8]; `round` [64] are the constants of the standard.
void sha256_blocks_x86(uint32_t* state, const uint32_t* round, const uint8_t* bytes,
                       size_t num_blocks);

}  // namespace longship
