#include "base/sha256.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/sha256_x86.h"

namespace longship {

namespace {

// First 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

}  // namespace

Sha256::Sha256()
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
      buffer_{} {}

// `num_blocks` blocks of 64 bytes.
void Sha256::blocks(const uint8_t* bytes, size_t num_blocks) {
  if (has_sha256_instructions()) {
    sha256_blocks_x86(state_.data(), kRound.data(), bytes, num_blocks);
    return;
  }
  for (size_t i = 0; i < num_blocks; ++i) block(bytes + 64 * i);
}

void Sha256::block(const uint8_t* bytes) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    w[i] = uint32_t{bytes[4 * i]} << 24 | uint32_t{bytes[4 * i + 1]} << 16 |
           uint32_t{bytes[4 * i + 2]} << 8 | uint32_t{bytes[4 * i + 3]};
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += add[i];
}

void Sha256::update(const void* data, size_t num_bytes) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  size_t filled = num_bytes_ % 64;
  num_bytes_ += num_bytes;
  while (num_bytes > 0) {
    if (filled == 0 && num_bytes >= 64) {
      const size_t whole = num_bytes / 64;
      blocks(bytes, whole);
      bytes += 64 * whole;
      num_bytes -= 64 * whole;
      continue;
    }
    const size_t n = std::min(num_bytes, 64 - filled);
    std::memcpy(buffer_.data() + filled, bytes, n);
    bytes += n;
    num_bytes -= n;
    filled += n;
    if (filled == 64) {
      blocks(buffer_.data(), 1);
      filled = 0;
    }
  }
}

std::string Sha256::hex() {
  const uint64_t num_bits = num_bytes_ * 8;
  const uint8_t one = 0x80;
  update(&one, 1);
  const std::array<uint8_t, 64> zeros{};
  update(zeros.data(), (120 - num_bytes_ % 64) % 64);
  std::array<uint8_t, 8> length;
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(num_bits >> (56 - 8 * i));
  update(length.data(), 8);
  std::string out;
  for (const uint32_t word : state_) out += fmt::format("{:08x}", word);
  return out;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 sha;
  sha.update(bytes.data(), bytes.size());
  return sha.hex();
}

std::string sha256_file(const std::filesystem::path& path,
                        const std::function<void(uint64_t num_bytes)>& progress) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  const auto fail = [&] {
    throw Error(ExitCode::kOther, fmt::format("cannot read {}: {}", path.string(),
                                              std::generic_category().message(errno)));
  };
  if (!file) fail();
  std::vector<char> piece(size_t{1} << 20);
  Sha256 sha;
  size_t n = 0;
  uint64_t done = 0;
  while ((n = std::fread(piece.data(), 1, piece.size(), file.get())) > 0) {
    sha.update(piece.data(), n);
    done += n;
    if (progress) progress(done);
  }
  if (std::ferror(file.get()) != 0) fail();
  return sha.hex();
}

}  // namespace longship
