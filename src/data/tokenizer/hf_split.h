#pragma once
// Cutting pieces at the places that a pattern finds.

#include <functional>
#include <string_view>
#include <vector>

#include "data/tokenizer/hf_regex.h"
#include "data/tokenizer/hf_text.h"

namespace longship::data::hf {

/// What happens to the delimiter: "the-final--countdown" cut at "-" gives
enum class SplitBehavior {
  kRemoved,             // the final countdown
  kIsolated,            // the - final - - countdown
  kMergedWithPrevious,  // the- final- - countdown
  kMergedWithNext,      // the -final - -countdown
  kContiguous,          // the - final -- countdown
};

/// Matches of a pattern in a text, in order and without overlap.
using FindAll = std::function<void(std::string_view text, std::vector<TextRange>& matches)>;

/// Cuts every piece that is no added token. With `invert` the matches are what lies between
/// delimiters. Empty pieces go.
void split_pieces(PieceText& text, const FindAll& find, SplitBehavior behavior, bool invert);

/// The piece [begin, end) of a piece's text, in bytes from its begin.
Piece sub_piece(const AlignedText& text, const Piece& piece, size_t begin, size_t end);

}  // namespace longship::data::hf
