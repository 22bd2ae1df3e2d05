// ModelProto (sentencepiece_model.proto): 1 pieces {1 piece, 2 score, 3 type}, 2 trainer_spec, 3
// normalizer_spec, 4 self_test_data, 5 denormalizer_spec. Only these and, inside the specs, the
// fields the library acts upon are read; others are skipped by their wire type.

#include "data/tokenizer/model_check.h"

#include <cmath>
#include <cstring>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/strings.h"

namespace longship::data {
namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
enum PieceType : uint64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

constexpr size_t kMaxPieceBytes = 4096;

struct Field {
  uint32_t number = 0;
  uint32_t type = 0;
  uint64_t value = 0;      // varint, fixed32, fixed64
  std::string_view bytes;  // length-delimited
};

/// Walks the fields of one message.
class Message {
 public:
  Message(std::string_view bytes, std::string place) : bytes_(bytes), place_(std::move(place)) {}

  bool next(Field& field) {
    if (pos_ == bytes_.size()) return false;
    const uint64_t tag = varint();
    field = {};
    field.number = static_cast<uint32_t>(tag >> 3);
    field.type = static_cast<uint32_t>(tag & 7);
    if ((tag >> 3) == 0 || (tag >> 3) > 0x1FFFFFFF) fail("a field number is out of range");
    switch (field.type) {
      case kVarint:
        field.value = varint();
        break;
      case kFixed64:
        field.value = fixed(8);
        break;
      case kFixed32:
        field.value = fixed(4);
        break;
      case kBytes: {
        const uint64_t n = varint();
        if (n > bytes_.size() - pos_) fail("a field reaches behind the end");
        field.bytes = bytes_.substr(pos_, n);
        pos_ += n;
        break;
      }
      default:
        fail(fmt::format("field {} has unsupported wire type {}", field.number, field.type));
    }
    return true;
  }

  void expect(const Field& field, uint32_t type) const {
    if (field.type != type) {
      fail(fmt::format("field {} has wire type {}, expected {}", field.number, field.type, type));
    }
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw CheckpointError(fmt::format("{}: not a sound SentencePiece model: {}", place_, why));
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (pos_ == bytes_.size()) fail("the file ends inside a number");
      const auto byte = static_cast<uint8_t>(bytes_[pos_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    fail("a number is longer than ten bytes");
  }

  uint64_t fixed(size_t n) {
    if (bytes_.size() - pos_ < n) fail("the file ends inside a number");
    uint64_t value = 0;
    for (size_t i = 0; i < n; ++i) {
      value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes_[pos_ + i])) << (8 * i);
    }
    pos_ += n;
    return value;
  }

  std::string_view bytes_;
  std::string place_;
  size_t pos_ = 0;
};

struct Pieces {
  std::unordered_set<std::string_view> names;
  int64_t unknown = 0;
  int64_t bytes = 0;
};

bool is_byte_name(std::string_view piece) {
  static constexpr std::string_view kHex = "0123456789ABCDEF";
  return piece.size() == 6 && piece.substr(0, 3) == "<0x" && piece[5] == '>' &&
         kHex.find(piece[3]) != std::string_view::npos &&
         kHex.find(piece[4]) != std::string_view::npos;
}

void check_piece(std::string_view bytes, const std::string& name, Pieces& pieces) {
  Message message(bytes, fmt::format("{}: piece {}", name, pieces.names.size()));
  Field field;
  std::string_view piece;
  float score = 0;
  uint64_t type = kNormal;
  while (message.next(field)) {
    if (field.number == 1) {
      message.expect(field, kBytes);
      piece = field.bytes;
    } else if (field.number == 2) {
      message.expect(field, kFixed32);
      const auto bits = static_cast<uint32_t>(field.value);
      std::memcpy(&score, &bits, sizeof score);
    } else if (field.number == 3) {
      message.expect(field, kVarint);
      type = field.value;
    }
  }
  if (piece.empty()) message.fail("it is empty");
  if (piece.size() > kMaxPieceBytes)
    message.fail(fmt::format("it has {} bytes, the limit is {}", piece.size(), kMaxPieceBytes));
  if (piece.find('\0') != std::string_view::npos) message.fail("it holds a zero byte");
  if (find_invalid_utf8(piece) != std::string_view::npos) message.fail("it is no valid UTF-8");
  if (!std::isfinite(score)) message.fail("its score is not a finite number");
  if (type < kNormal || type > kByte) message.fail(fmt::format("type {} is unknown", type));
  if (!pieces.names.insert(piece).second)
    message.fail(fmt::format("'{}' occurs twice", printable(piece)));
  if (type == kUnknown) ++pieces.unknown;
  if (type == kByte) {
    if (!is_byte_name(piece))
      message.fail(fmt::format("byte piece '{}' is not of the form <0x41>", printable(piece)));
    ++pieces.bytes;
  }
}

uint32_t read_u32(std::string_view bytes, size_t i) {
  uint32_t value = 0;
  for (size_t k = 0; k < 4; ++k)
    value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[i + k])) << (8 * k);
  return value;
}

/// A compiled character map is [u32 size of trie][trie][replacement texts]. The trie is a Darts
/// double array which the library walks without bounds; it stays inside when the array is made of
/// whole blocks of 256 units, every unit leads to a block inside, and every leaf points at a text
/// that ends inside.
void check_charsmap(std::string_view map, const Message& message) {
  if (map.empty()) return;
  if (map.size() < 5) message.fail("the character map is cut");
  const uint64_t trie_bytes = read_u32(map, 0);
  if (trie_bytes % 1024 != 0 || trie_bytes == 0 || trie_bytes >= map.size() - 4) {
    message.fail(
        fmt::format("the character map's trie claims {} of {} bytes", trie_bytes, map.size()));
  }
  const std::string_view trie = map.substr(4, trie_bytes);
  const std::string_view texts = map.substr(4 + trie_bytes);
  if (texts.back() != '\0') message.fail("the character map's texts do not end");
  const auto num_units = static_cast<uint32_t>(trie_bytes / 4);
  for (uint32_t i = 0; i < num_units; ++i) {
    const uint32_t unit = read_u32(trie, size_t{i} * 4);
    if ((unit >> 31) != 0) continue;  // a leaf: its value is checked where a unit leads to it
    const uint32_t target = i ^ ((unit >> 10) << ((unit & (1U << 9)) >> 6));
    if (target >= num_units)
      message.fail(fmt::format("unit {} of the character map leads outside", i));
    const bool has_leaf = ((unit >> 8) & 1) != 0;
    if (has_leaf && (read_u32(trie, size_t{target} * 4) & 0x7FFFFFFFU) >= texts.size()) {
      message.fail(fmt::format("unit {} of the character map points at a text outside", i));
    }
  }
}

void check_normalizer(std::string_view bytes, const std::string& place) {
  Message message(bytes, place);
  Field field;
  while (message.next(field)) {
    if (field.number == 1 || field.number == 2 || field.number == 6) message.expect(field, kBytes);
    if (field.number >= 3 && field.number <= 5) message.expect(field, kVarint);
    if (field.number == 2) check_charsmap(field.bytes, message);
  }
}

void check_trainer(std::string_view bytes, const std::string& place, TokenizerModelFacts& facts) {
  Message message(bytes, place);
  Field field;
  while (message.next(field)) {
    switch (field.number) {
      case 3:
        message.expect(field, kVarint);
        facts.model_type = static_cast<int64_t>(field.value);
        break;
      case 35:
        message.expect(field, kVarint);
        facts.byte_fallback = field.value != 0;
        break;
      case 44:  // unk_surface
      case 45:  // unk_piece, bos_piece, eos_piece, pad_piece
      case 46:
      case 47:
      case 48:
        message.expect(field, kBytes);
        if (field.bytes.size() > kMaxPieceBytes ||
            find_invalid_utf8(field.bytes) != std::string_view::npos) {
          message.fail(fmt::format("field {} is no short UTF-8 text", field.number));
        }
        break;
      default:
        break;
    }
  }
  if (facts.model_type != 1 && facts.model_type != 2) {
    message.fail(fmt::format("model type {} is not supported, only 1 (unigram) and 2 (BPE) are",
                             facts.model_type));
  }
}

}  // namespace

TokenizerModelFacts check_tokenizer_model(std::string_view bytes, const std::string& name) {
  Message model(bytes, name);
  if (bytes.empty()) model.fail("the file is empty");
  if (bytes.size() > kMaxTokenizerBytes) {
    model.fail(fmt::format("it has {}, the limit is {}", human_bytes(bytes.size()),
                           human_bytes(kMaxTokenizerBytes)));
  }
  TokenizerModelFacts facts;
  Pieces pieces;
  int trainers = 0, normalizers = 0, denormalizers = 0;
  Field field;
  while (model.next(field)) {
    if (field.number > 5) continue;
    model.expect(field, kBytes);
    if (field.number == 1) {
      if (++facts.num_pieces > kMaxTokenizerPieces) {
        model.fail(fmt::format("it has more than {} pieces", kMaxTokenizerPieces));
      }
      check_piece(field.bytes, name, pieces);
    } else if (field.number == 2 && ++trainers == 1) {
      check_trainer(field.bytes, name + ": trainer_spec", facts);
    } else if (field.number == 3 && ++normalizers == 1) {
      check_normalizer(field.bytes, name + ": normalizer_spec");
    } else if (field.number == 5 && ++denormalizers == 1) {
      check_normalizer(field.bytes, name + ": denormalizer_spec");
    }
  }
  if (trainers != 1 || normalizers != 1 || denormalizers > 1) {
    model.fail(
        "it needs one trainer_spec and one normalizer_spec, and at most one denormalizer_spec");
  }
  if (facts.num_pieces == 0) model.fail("it has no pieces");
  if (pieces.unknown != 1)
    model.fail(fmt::format("it has {} unknown pieces, expected 1", pieces.unknown));
  if (facts.byte_fallback ? pieces.bytes != 256 : pieces.bytes != 0) {
    model.fail(fmt::format("it has {} byte pieces, expected {}", pieces.bytes,
                           facts.byte_fallback ? 256 : 0));
  }
  return facts;
}

}  // namespace longship::data
