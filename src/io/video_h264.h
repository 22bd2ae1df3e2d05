#pragma once
// What the packets of an H.264 stream tell about decoding them out of order. Bytes only.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace longship::io {

struct H264Packet {
  /// The picture is an IDR picture: it needs nothing decoded before it, and nothing behind it
  /// refers to what came before. A decoder may go on here from anywhere.
  bool is_idr = false;
  /// Bytes at the front that only repeat parameter sets of the stream's header.
  size_t repeated_bytes = 0;
  /// It holds a parameter set that the header does not, so no packet of the stream may be cut.
  bool has_own_sets = false;
};

/// Reads packets of a stream whose header is an AVCDecoderConfigurationRecord (MP4, Matroska).
class H264Scanner {
 public:
  explicit H264Scanner(std::span<const uint8_t> header);
  /// False for another kind of header; scan() then finds nothing.
  bool is_usable() const { return length_bytes_ > 0; }
  /// Never reads outside the packet, whatever it holds.
  H264Packet scan(std::span<const uint8_t> packet) const;

 private:
  bool is_header_set(std::span<const uint8_t> unit) const;

  size_t length_bytes_ = 0;
  std::vector<std::vector<uint8_t>> sets_;
};

}  // namespace longship::io
