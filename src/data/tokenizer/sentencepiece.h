#pragma once
// SentencePiece tokenizer files (.model), read through libsentencepiece behind an own check of the
// bytes.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longship::data {

/// Immutable and thread-safe.
class SentencePieceTokenizer {
 public:
  /// Throws CheckpointError naming the file and the defect (missing, too large, corrupt,
  /// unsupported model type).
  static std::shared_ptr<const SentencePieceTokenizer> load(const std::filesystem::path& path);
  /// `name` stands for the file in messages.
  static std::shared_ptr<const SentencePieceTokenizer> from_bytes(std::string_view bytes,
                                                                  const std::string& name);

  virtual ~SentencePieceTokenizer() = default;
  /// Ids of UTF-8 text, without BOS or EOS. Invalid UTF-8 is encoded as U+FFFD, as the library
  /// does.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// Text of ids; control pieces give nothing. Throws ShapeError for an id outside the vocabulary.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  virtual std::string piece(int64_t id) const = 0;
  virtual int64_t vocab_size() const = 0;
  // -1 when the model has no such piece.
  virtual int64_t bos_id() const = 0;
  virtual int64_t eos_id() const = 0;
  virtual int64_t pad_id() const = 0;
  virtual int64_t unk_id() const = 0;
};

}  // namespace longship::data
