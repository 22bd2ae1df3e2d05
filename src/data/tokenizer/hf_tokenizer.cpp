#include "data/tokenizer/hf_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/strings.h"
#include "data/tokenizer/hf_added_tokens.h"
#include "data/tokenizer/hf_bpe.h"
#include "data/tokenizer/hf_decoder.h"
#include "data/tokenizer/hf_normalizer.h"
#include "data/tokenizer/hf_post_processor.h"
#include "data/tokenizer/hf_pretokenizer.h"
#include "data/tokenizer/hf_unicode.h"

namespace longship::data {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{128} << 20;
constexpr int kMaxDepth = 32;
constexpr size_t kMaxTextBytes = size_t{64} << 20;

/// From bytes of a text to its code points.
class CodePointIndex {
 public:
  explicit CodePointIndex(std::string_view text) : size_(text.size()) {
    if (std::all_of(text.begin(), text.end(),
                    [](char c) { return static_cast<uint8_t>(c) < 0x80; })) {
      return;
    }
    of_byte_.reserve(text.size());
    uint32_t point = 0;
    for (size_t pos = 0; pos < text.size(); ++point) {
      const uint32_t n = hf::code_point_at(text, pos).num_bytes;
      of_byte_.insert(of_byte_.end(), n, point);
      pos += n;
    }
  }

  /// Offsets that begin behind the text stay bytes, as in the library.
  std::pair<uint64_t, uint64_t> convert(uint64_t begin, uint64_t end) const {
    if (begin >= size_) return {begin, end};
    const uint64_t first = at(begin);
    if (end < size_) return {first, at(end)};
    const uint64_t last = end - 1 < size_ ? at(end - 1) : first + 1;
    return {first, last + 1};
  }

 private:
  uint64_t at(uint64_t byte) const { return of_byte_.empty() ? byte : of_byte_[byte]; }

  size_t size_;
  std::vector<uint32_t> of_byte_;  // empty for ASCII
};

class JsonTokenizer final : public HfTokenizer {
 public:
  JsonTokenizer(const nlohmann::json& document, const std::string& name) : name_(name) {
    const hf::JsonField root(document, name_, "");
    if (const auto version = root.find("version");
        version && version->as_string(hf::kMaxTokenBytes) != "1.0") {
      version->fail("only version \"1.0\" is known");
    }
    for (const char* key : {"truncation", "padding"}) {
      if (const auto field = root.find(key)) {
        field->fail("is not supported; set it to null and cut or fill the ids afterwards");
      }
    }
    model_ = hf::BpeModel::parse(root.at("model"));
    if (const auto field = root.find("normalizer")) normalizer_ = hf::parse_normalizer(*field);
    if (const auto field = root.find("pre_tokenizer")) {
      pre_tokenizer_ = hf::parse_pre_tokenizer(*field);
    }
    if (const auto field = root.find("added_tokens")) {
      added_ = hf::AddedTokens::parse(*field, *model_, normalizer_.get());
    }
    if (const auto field = root.find("post_processor")) {
      post_processor_ = hf::PostProcessor::parse(*field, id_bound());
    }
    if (const auto field = root.find("decoder")) decoder_ = hf::parse_decoder(*field);
  }

  HfEncoding encode(std::string_view text, bool add_special_tokens) const override {
    LS_CHECK(text.size() <= kMaxTextBytes, DataError,
             "{}: a text of {} cannot be encoded, the limit is {}", name_, human_bytes(text.size()),
             human_bytes(kMaxTextBytes));
    std::string valid;
    if (find_invalid_utf8(text) != std::string_view::npos) {
      valid = hf::to_valid_utf8(text);
      text = valid;
    }
    hf::PieceText pieces = added_.extract(text, normalizer_.get());
    if (pre_tokenizer_) pre_tokenizer_->apply(pieces);
    const auto tokens = post_processor_.apply(tokens_of(pieces, text), add_special_tokens);
    HfEncoding encoding;
    encoding.ids.reserve(tokens.size());
    encoding.offsets.reserve(tokens.size());
    for (const hf::PlacedToken& token : tokens) {
      encoding.ids.push_back(token.id);
      encoding.offsets.emplace_back(token.begin, token.end);
    }
    return encoding;
  }

  std::string decode(std::span<const int64_t> ids, bool skip_special_tokens) const override {
    std::vector<std::string> parts;
    parts.reserve(ids.size());
    for (const int64_t id : ids) {
      const std::string& text = text_of(id);
      if (!skip_special_tokens || !added_.is_special(text)) parts.push_back(text);
    }
    if (!decoder_) return join(parts, " ");
    decoder_->apply(parts);
    return join(parts, "");
  }

  std::optional<int64_t> token_id(std::string_view token) const override {
    if (const auto id = added_.find(token)) return *id;
    if (const auto id = model_->find(token)) return *id;
    return std::nullopt;
  }

  std::string token(int64_t id) const override { return text_of(id); }
  bool is_special(int64_t id) const override {
    text_of(id);
    const hf::AddedToken* token = added_.token(id);
    return token != nullptr && token->special;
  }
  int64_t vocab_size() const override { return model_->size() + added_.num_new(); }
  int64_t id_bound() const override { return std::max(model_->id_bound(), added_.id_bound()); }

 private:
  const std::string& text_of(int64_t id) const {
    if (const hf::AddedToken* token = added_.token(id)) return token->decoded;
    const std::string* token = model_->token(id);
    LS_CHECK(token != nullptr, ShapeError, "{}: no token has id {}; ids are below {}", name_, id,
             id_bound());
    return *token;
  }

  /// The tokens of every piece, with their texts and their places in the original text.
  std::vector<hf::PlacedToken> tokens_of(const hf::PieceText& pieces,
                                         std::string_view original) const {
    const CodePointIndex index(original);
    const auto& spans = pieces.aligned.spans();
    std::vector<hf::PlacedToken> out;
    const auto place = [&](const hf::Piece& piece, int64_t id, std::string_view text,
                           const hf::Token& token) {
      // A token that reaches behind its piece keeps its own offsets, as in the library.
      uint64_t begin = token.begin, end = token.end;
      if (token.begin < token.end && token.end <= piece.end - piece.begin) {
        begin = spans[piece.begin + token.begin].begin;
        end = spans[piece.begin + token.end - 1].end;
      }
      std::tie(begin, end) = index.convert(begin, end);
      out.push_back({id, text, begin, end});
    };
    std::vector<hf::Token> tokens;
    for (const hf::Piece& piece : pieces.pieces) {
      const std::string_view text = pieces.text(piece);
      if (piece.added_token >= 0) {
        place(piece, piece.added_token, text, {0, 0, static_cast<uint32_t>(text.size())});
        continue;
      }
      tokens.clear();
      model_->encode(text, tokens);
      for (const hf::Token& token : tokens) {
        place(piece, token.id, *model_->token(token.id), token);
      }
    }
    return out;
  }

  std::string name_;
  std::unique_ptr<const hf::BpeModel> model_;
  std::unique_ptr<const hf::Normalizer> normalizer_;
  std::unique_ptr<const hf::PreTokenizer> pre_tokenizer_;
  std::unique_ptr<const hf::Decoder> decoder_;
  hf::PostProcessor post_processor_;
  hf::AddedTokens added_;
};

}  // namespace

std::shared_ptr<const HfTokenizer> HfTokenizer::load(const std::filesystem::path& path) {
  return from_bytes(read_file(path, kMaxFileBytes, ExitCode::kData), path.string());
}

std::shared_ptr<const HfTokenizer> HfTokenizer::from_bytes(std::string_view bytes,
                                                           const std::string& name) {
  const nlohmann::json document =
      parse_json_text(bytes, name, {.max_bytes = kMaxFileBytes, .max_depth = kMaxDepth});
  return std::make_shared<const JsonTokenizer>(document, name);
}

}  // namespace longship::data
