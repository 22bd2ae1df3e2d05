#pragma once
// Which bytes move when ranks of one host read each other's memory: parts, pieces, and the order in
// which a rank asks its peers. Numbers only.

#include <cstdint>
#include <vector>

namespace longship::dist {

/// Elements [begin, end).
struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

/// The part of a tensor of `numel` elements that rank `rank` adds up in an all-reduce: equal parts
/// of whole runs of kPeerAlign elements; the last ones may be shorter, or empty.
constexpr int64_t kPeerAlign = 64;
ElementRange all_reduce_part(int64_t numel, int64_t world_size, int64_t rank);
/// Of a reduce-scatter and an all-gather: exactly numel / world_size elements.
ElementRange even_part(int64_t numel, int64_t world_size, int64_t rank);

/// The other ranks in the order in which `rank` reads from them: the next one first, so that no
/// two ranks read from the same one at a time.
std::vector<int64_t> peer_order(int64_t world_size, int64_t rank);

/// Copies of what the peers have, on their way into this rank's memory: two slots by turns, each
/// with room for one piece from every peer.
struct Staging {
  int64_t world_size = 2;
  int64_t bytes = 0;  // of both slots

  /// What a piece may have at most, a multiple of 256.
  int64_t piece_bytes() const;
  /// Where the piece from `peer` lies, from the begin of the memory.
  int64_t offset(int64_t slot, int64_t rank, int64_t peer) const;
};

/// A stretch of this rank's part: copied from every peer into `slot`, then added up while the next
/// one is copied into the other slot. A piece may be copied once the piece two before it has been
/// added up.
struct PeerPiece {
  ElementRange range;  // of the whole tensor
  int64_t slot = 0;
};
/// `part` in pieces that fit the staging memory; even ones of whole runs, of kLeastPiece bytes or
/// more where the part has as many. Empty for an empty part.
constexpr int64_t kLeastPiece = 8 << 20;
std::vector<PeerPiece> plan_pieces(ElementRange part, int64_t element_bytes,
                                   const Staging& staging);

}  // namespace longship::dist
