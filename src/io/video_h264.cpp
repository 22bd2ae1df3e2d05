#include "io/video_h264.h"

#include <algorithm>

namespace longship::io {
namespace {

enum UnitType { kSlice = 1, kIdrSlice = 5, kSequenceSet = 7, kPictureSet = 8, kDelimiter = 9 };

int type_of(std::span<const uint8_t> unit) {
  return unit.empty() ? 0 : unit[0] & 31;
}

/// Reads a big-endian length and the bytes it counts; moves `at` behind them. False when they are
/// not all there.
bool take(std::span<const uint8_t> bytes, size_t length_bytes, size_t& at,
          std::span<const uint8_t>& out) {
  if (bytes.size() - at < length_bytes) return false;
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length = length << 8 | bytes[at + i];
  if (length > bytes.size() - at - length_bytes) return false;
  out = bytes.subspan(at + length_bytes, length);
  at += length_bytes + length;
  return true;
}

}  // namespace

H264Scanner::H264Scanner(std::span<const uint8_t> header) {
  if (header.size() < 7 || header[0] != 1) return;
  size_t at = 5;
  for (const uint8_t mask : {uint8_t{31}, uint8_t{255}}) {  // sequence sets, then picture sets
    if (at >= header.size()) return;
    const int count = header[at++] & mask;
    for (int i = 0; i < count; ++i) {
      std::span<const uint8_t> unit;
      if (!take(header, 2, at, unit)) return;
      sets_.emplace_back(unit.begin(), unit.end());
    }
  }
  length_bytes_ = (header[4] & 3) + 1u;
}

bool H264Scanner::is_header_set(std::span<const uint8_t> unit) const {
  return std::any_of(sets_.begin(), sets_.end(), [unit](const std::vector<uint8_t>& set) {
    return std::equal(set.begin(), set.end(), unit.begin(), unit.end());
  });
}

H264Packet H264Scanner::scan(std::span<const uint8_t> packet) const {
  H264Packet out;
  if (!is_usable()) return out;
  bool at_front = true, has_picture = false;
  std::span<const uint8_t> unit;
  for (size_t at = 0; at < packet.size() && take(packet, length_bytes_, at, unit);) {
    const int type = type_of(unit);
    const bool is_set = type == kSequenceSet || type == kPictureSet;
    if (is_set && !is_header_set(unit)) out.has_own_sets = true;
    at_front = at_front && (is_set || type == kDelimiter);
    if (at_front) out.repeated_bytes = at;
    if (!has_picture && type >= kSlice && type <= kIdrSlice) {
      has_picture = true;
      out.is_idr = type == kIdrSlice;
    }
  }
  // A packet without a picture stays as it is.
  if (!has_picture || out.has_own_sets) out.repeated_bytes = 0;
  return out;
}

}  // namespace longship::io
