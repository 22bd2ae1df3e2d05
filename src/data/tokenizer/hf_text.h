#pragma once
// A text on its way through a tokenizer, with the place in the original text for each of its bytes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longship::data::hf {

/// Bytes [begin, end) of the original text.
struct Span {
  uint32_t begin = 0, end = 0;
};

/// A change of a text: the new code points in order, each with what it does to the old ones.
/// 0: takes the place of the next old one; 1: is added; -n: takes the place of the next old one and
/// removes the n behind it.
struct Change {
  char32_t c = 0;
  int64_t change = 0;
};

/// Valid UTF-8; spans[i] is what byte i stands for, the same for all bytes of a code point.
class AlignedText {
 public:
  AlignedText() = default;
  /// A text that is its own original.
  explicit AlignedText(std::string_view original);

  const std::string& text() const { return text_; }
  std::string_view text(size_t begin, size_t end) const {
    return std::string_view(text_).substr(begin, end - begin);
  }
  const std::vector<Span>& spans() const { return spans_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }

  void reserve(size_t num_bytes);
  void append(const AlignedText& other, size_t begin, size_t end);
  void append(const AlignedText& other) { append(other, 0, other.size()); }
  /// Every byte of `text` stands for `span`.
  void append(std::string_view text, Span span);
  void append(char32_t c, Span span);

  /// Puts `prefix` in front; it stands for what the first code point stands for. Nothing happens to
  /// an empty text.
  void prepend(std::string_view prefix);
  /// Replaces the whole text. The changes take as many old code points as there are.
  void apply(const std::vector<Change>& changes);
  /// Throws DataError when the text has grown beyond what a normaliser of a published tokenizer
  /// does: more than 64 KiB and more than 64 times `num_bytes`.
  void check_growth(size_t num_bytes) const;

 private:
  std::string text_;
  std::vector<Span> spans_;
};

/// A part of an AlignedText that is tokenized by itself.
struct Piece {
  uint32_t begin = 0, end = 0;  // bytes of the AlignedText
  uint32_t original_begin = 0;  // byte of the original text where the part was cut
  int32_t added_token = -1;     // id when an added token was found here
};

/// A text and its pieces, in order; what lies between two pieces is dropped.
struct PieceText {
  AlignedText aligned;
  std::vector<Piece> pieces;

  std::string_view text(const Piece& piece) const { return aligned.text(piece.begin, piece.end); }
};

}  // namespace longship::data::hf
