#include "dist/peer_plan.h"

#include <algorithm>

#include "base/error.h"

namespace longship::dist {
namespace {

constexpr int64_t kSlots = 2;
constexpr int64_t kSlotAlign = 256;
// A part of many bytes goes in so many pieces at least: what is added up after the last copy is
// exposed.
constexpr int64_t kPieces = 4;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

ElementRange all_reduce_part(int64_t numel, int64_t world_size, int64_t rank) {
  const int64_t part = ceil_div(ceil_div(numel, world_size), kPeerAlign) * kPeerAlign;
  return {std::min(numel, rank * part), std::min(numel, (rank + 1) * part)};
}

ElementRange even_part(int64_t numel, int64_t world_size, int64_t rank) {
  const int64_t part = numel / world_size;
  return {rank * part, (rank + 1) * part};
}

std::vector<int64_t> peer_order(int64_t world_size, int64_t rank) {
  std::vector<int64_t> out;
  for (int64_t i = 1; i < world_size; ++i) out.push_back((rank + i) % world_size);
  return out;
}

int64_t Staging::piece_bytes() const {
  return bytes / (kSlots * (world_size - 1)) / kSlotAlign * kSlotAlign;
}

int64_t Staging::offset(int64_t slot, int64_t rank, int64_t peer) const {
  const int64_t place = peer < rank ? peer : peer - 1;
  return (slot * (world_size - 1) + place) * piece_bytes();
}

std::vector<PeerPiece> plan_pieces(ElementRange part, int64_t element_bytes,
                                   const Staging& staging) {
  const int64_t room = staging.piece_bytes() / element_bytes / kPeerAlign * kPeerAlign;
  LS_CHECK(room > 0, InternalError, "{} bytes of staging memory hold no piece of {} ranks",
           staging.bytes, staging.world_size);
  const int64_t least = std::max(kLeastPiece / element_bytes, ceil_div(part.count(), kPieces));
  const int64_t number = ceil_div(part.count(), std::min(room, least));
  std::vector<PeerPiece> out;
  if (number == 0) return out;
  const int64_t each =
      std::min(room, ceil_div(ceil_div(part.count(), number), kPeerAlign) * kPeerAlign);
  for (int64_t begin = part.begin; begin < part.end; begin += each) {
    out.push_back(
        {{begin, std::min(part.end, begin + each)}, static_cast<int64_t>(out.size()) % kSlots});
  }
  return out;
}

}  // namespace longship::dist
