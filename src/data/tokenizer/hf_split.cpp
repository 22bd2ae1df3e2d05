#include "data/tokenizer/hf_split.h"

#include <algorithm>

namespace longship::data::hf {
namespace {

struct Part {
  size_t begin = 0, end = 0;
  bool is_match = false;
};

/// Matches and what lies between them: together the whole text.
void cover(size_t size, const std::vector<TextRange>& matches, bool invert,
           std::vector<Part>& parts) {
  parts.clear();
  size_t done = 0;
  for (const TextRange& match : matches) {
    if (done != match.begin) parts.push_back({done, match.begin, invert});
    parts.push_back({match.begin, match.end, !invert});
    done = match.end;
  }
  if (done != size) parts.push_back({done, size, invert});
}

/// Joins parts in place; walks them from the last one when `backwards`.
template <class Joins>
void join(std::vector<Part>& parts, bool backwards, Joins joins) {
  if (backwards) std::reverse(parts.begin(), parts.end());
  size_t kept = 0;
  bool previous_match = false;
  for (const Part part : parts) {
    if (kept > 0 && joins(part.is_match, previous_match)) {
      Part& last = parts[kept - 1];
      last.begin = std::min(last.begin, part.begin);
      last.end = std::max(last.end, part.end);
    } else {
      parts[kept++] = part;
    }
    previous_match = part.is_match;
  }
  parts.resize(kept);
  if (backwards) std::reverse(parts.begin(), parts.end());
}

void apply_behavior(std::vector<Part>& parts, SplitBehavior behavior) {
  const auto match_after_none = [](bool now, bool before) { return now && !before; };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      std::erase_if(parts, [](const Part& part) { return part.is_match; });
      return;
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kMergedWithPrevious:
      return join(parts, false, match_after_none);
    case SplitBehavior::kMergedWithNext:
      return join(parts, true, match_after_none);
    case SplitBehavior::kContiguous:
      return join(parts, false, [](bool now, bool before) { return now == before; });
  }
}

}  // namespace

Piece sub_piece(const AlignedText& text, const Piece& piece, size_t begin, size_t end) {
  Piece part;
  part.begin = piece.begin + static_cast<uint32_t>(begin);
  part.end = piece.begin + static_cast<uint32_t>(end);
  part.original_begin = begin == end ? piece.original_begin : text.spans()[part.begin].begin;
  return part;
}

void split_pieces(PieceText& text, const FindAll& find, SplitBehavior behavior, bool invert) {
  std::vector<Piece> pieces;
  pieces.reserve(text.pieces.size());
  std::vector<TextRange> matches;
  std::vector<Part> parts;
  for (const Piece& piece : text.pieces) {
    if (piece.added_token >= 0) {
      pieces.push_back(piece);
      continue;
    }
    find(text.text(piece), matches);
    cover(piece.end - piece.begin, matches, invert, parts);
    apply_behavior(parts, behavior);
    for (const Part& part : parts) {
      if (part.begin == part.end) continue;
      pieces.push_back(sub_piece(text.aligned, piece, part.begin, part.end));
    }
  }
  text.pieces = std::move(pieces);
}

}  // namespace longship::data::hf
