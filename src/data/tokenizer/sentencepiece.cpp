#include "data/tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <exception>

#include "base/error.h"
#include "base/fs.h"
#include "data/tokenizer/model_check.h"

namespace longship::data {
namespace {

class LibraryTokenizer final : public SentencePieceTokenizer {
 public:
  LibraryTokenizer(std::string_view bytes, const std::string& name) : name_(name) {
    check_tokenizer_model(bytes, name);
    std::string reason;
    try {
      const auto status =
          library_.LoadFromSerializedProto(absl::string_view(bytes.data(), bytes.size()));
      if (!status.ok()) reason = status.ToString();
    } catch (const std::exception& e) {
      reason = e.what();
    }
    LS_CHECK(reason.empty(), CheckpointError, "{}: the SentencePiece library refuses the model: {}",
             name, reason);
    vocab_size_ = library_.GetPieceSize();
    bos_id_ = special(library_.bos_id());
    eos_id_ = special(library_.eos_id());
    pad_id_ = special(library_.pad_id());
  }

  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    const auto status = library_.Encode(absl::string_view(text.data(), text.size()), &ids);
    LS_CHECK(status.ok(), CheckpointError, "{}: the SentencePiece library cannot encode a text: {}",
             name_, status.ToString());
    return {ids.begin(), ids.end()};
  }

  std::string decode(std::span<const int64_t> ids) const override {
    std::vector<int> library_ids;
    library_ids.reserve(ids.size());
    for (const int64_t id : ids) library_ids.push_back(checked(id));
    std::string text;
    const auto status = library_.Decode(library_ids, &text);
    LS_CHECK(status.ok(), CheckpointError, "{}: the SentencePiece library cannot decode: {}", name_,
             status.ToString());
    return text;
  }

  std::string piece(int64_t id) const override { return library_.IdToPiece(checked(id)); }
  int64_t vocab_size() const override { return vocab_size_; }
  int64_t bos_id() const override { return bos_id_; }
  int64_t eos_id() const override { return eos_id_; }
  int64_t pad_id() const override { return pad_id_; }
  int64_t unk_id() const override { return library_.unk_id(); }

 private:
  /// The library answers the unknown piece's id for a name that the model lacks.
  int64_t special(int id) const {
    return id >= 0 && id < vocab_size_ && library_.IsControl(id) ? id : -1;
  }

  int checked(int64_t id) const {
    LS_CHECK(id >= 0 && id < vocab_size_, ShapeError,
             "{}: token id {} is outside the vocabulary 0..{}", name_, id, vocab_size_ - 1);
    return static_cast<int>(id);
  }

  std::string name_;
  sentencepiece::SentencePieceProcessor library_;
  int64_t vocab_size_ = 0, bos_id_ = -1, eos_id_ = -1, pad_id_ = -1;
};

}  // namespace

std::shared_ptr<const SentencePieceTokenizer> SentencePieceTokenizer::load(
    const std::filesystem::path& path) {
  std::string bytes;
  try {
    bytes = read_file(path, kMaxTokenizerBytes);
  } catch (const Error& e) {
    throw CheckpointError(fmt::format("tokenizer {}: {}", path.string(), e.what()));
  }
  return from_bytes(bytes, path.string());
}

std::shared_ptr<const SentencePieceTokenizer> SentencePieceTokenizer::from_bytes(
    std::string_view bytes, const std::string& name) {
  return std::make_shared<const LibraryTokenizer>(bytes, name);
}

}  // namespace longship::data
