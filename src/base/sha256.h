#pragma once
// SHA-256 (FIPS 180-4), for manifests and for naming files by content.

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace longship {

class Sha256 {
 public:
  Sha256();
  void update(const void* data, size_t num_bytes);
  /// 64 lower-case hexadecimal digits. Ends the computation.
  std::string hex();

 private:
  void blocks(const uint8_t* bytes, size_t num_blocks);
  void block(const uint8_t* bytes);
  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> buffer_;
  uint64_t num_bytes_ = 0;
};

std::string sha256_hex(std::string_view bytes);
/// Reads in pieces. `progress`, when given, gets the bytes read so far. Throws Error when the file
/// cannot be read.
std::string sha256_file(const std::filesystem::path& path,
                        const std::function<void(uint64_t num_bytes)>& progress = {});

}  // namespace longship
