#include "data/tokenizer/sentencepiece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <thread>

#include "base/error.h"
#include "base/fs.h"
#include "base/rng.h"
#include "data/golden_arrays.h"
#include "data/tokenizer/model_check.h"

namespace longship::data {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

const std::string& golden_model() {
  static const std::string bytes =
      read_file(testing::golden_path("pi05/paligemma_tokenizer/tokenizer.model"), 1 << 20);
  return bytes;
}

const SentencePieceTokenizer& golden_tokenizer() {
  static const auto tokenizer = SentencePieceTokenizer::load(
      testing::golden_path("pi05/paligemma_tokenizer/tokenizer.model"));
  return *tokenizer;
}

TEST(Tokenizer, EveryGoldenStringEncodesAndDecodesExactly) {
  const auto golden = testing::golden_json("pi05/paligemma_tokenizer/encodings.json");
  ASSERT_EQ(golden["raw"].size(), 70U);
  for (const auto& row : golden["raw"]) {
    const auto text = row["text"].get<std::string>();
    const auto ids = row["ids"].get<std::vector<int64_t>>();
    EXPECT_EQ(golden_tokenizer().encode(text), ids) << row["text"];
    EXPECT_EQ(golden_tokenizer().decode(ids), row["decoded"].get<std::string>()) << row["text"];
    std::vector<int64_t> with_bos = {golden_tokenizer().bos_id()};
    with_bos.insert(with_bos.end(), ids.begin(), ids.end());
    EXPECT_EQ(with_bos, row["ids_with_bos"].get<std::vector<int64_t>>());
    for (size_t i = 0; i < ids.size(); ++i)
      EXPECT_EQ(golden_tokenizer().piece(ids[i]), row["pieces"][i].get<std::string>());
  }
}

TEST(Tokenizer, PiecesAndSpecialIds) {
  const auto pieces = testing::golden_json("pi05/paligemma_tokenizer/pieces.json");
  const auto& t = golden_tokenizer();
  ASSERT_EQ(t.vocab_size(), static_cast<int64_t>(pieces.size()));
  for (int64_t i = 0; i < t.vocab_size(); ++i)
    EXPECT_EQ(t.piece(i), pieces[static_cast<size_t>(i)][0].get<std::string>());
  EXPECT_EQ(t.pad_id(), 0);
  EXPECT_EQ(t.eos_id(), 1);
  EXPECT_EQ(t.bos_id(), 2);
  EXPECT_EQ(t.unk_id(), 3);
}

TEST(Tokenizer, IdOutsideTheVocabularyIsRefused) {
  EXPECT_THROW(golden_tokenizer().decode(std::vector<int64_t>{900}), ShapeError);
  EXPECT_THROW(golden_tokenizer().decode(std::vector<int64_t>{-1}), ShapeError);
  EXPECT_THROW(golden_tokenizer().piece(1 << 20), ShapeError);
}

TEST(Tokenizer, InvalidUtf8DoesNotCrash) {
  EXPECT_FALSE(golden_tokenizer().encode("\xff\xfe pick \xc3").empty());
}

TEST(Tokenizer, SharedByThreads) {
  const std::string text = "Task: pick up the black bowl, State: 1 2 3;\nAction: ";
  const auto want = golden_tokenizer().encode(text);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) wrong += golden_tokenizer().encode(text) != want;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

std::string load_error(const std::filesystem::path& path) {
  try {
    SentencePieceTokenizer::load(path);
  } catch (const CheckpointError& e) {
    return e.what();
  }
  return "";
}

TEST(Tokenizer, FileErrorsNameThePath) {
  const auto dir = testing::scratch_dir("tokenizer_files");
  EXPECT_THAT(load_error(dir / "absent.model"), HasSubstr("absent.model"));
  std::ofstream(dir / "empty.model");
  EXPECT_THAT(load_error(dir / "empty.model"),
              AnyOf(HasSubstr("empty.model: not a sound"), HasSubstr("empty")));
  std::ofstream(dir / "json.model") << "{\"model\": {\"type\": \"BPE\"}}";
  EXPECT_THAT(load_error(dir / "json.model"), HasSubstr("json.model"));
  EXPECT_THAT(load_error(dir), HasSubstr(dir.string()));
}

// A hand-made model: the smallest that is sound, and one defect at a time.
std::string varint(uint64_t v) {
  std::string out;
  for (; v >= 0x80; v >>= 7) out += static_cast<char>((v & 0x7F) | 0x80);
  return out + static_cast<char>(v);
}
std::string text_field(uint32_t number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string number_field(uint32_t number, uint64_t value) {
  return varint(number << 3) + varint(value);
}
std::string float_field(uint32_t number, float value) {
  std::string raw(4, '\0');
  std::memcpy(raw.data(), &value, 4);
  return varint(number << 3 | 5) + raw;
}
std::string piece(const std::string& text, float score, uint64_t type) {
  return text_field(1, text_field(1, text) + float_field(2, score) + number_field(3, type));
}

struct Model {
  std::string pieces = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("a", -1, 1) +
                       piece("b", -2, 1) + piece("ab", -4, 1);
  std::string trainer = number_field(3, 2);
  std::string normalizer = text_field(1, "identity") + number_field(3, 0) + number_field(4, 0);
  std::string tail;
  std::string bytes() const {
    return pieces + text_field(2, trainer) + text_field(3, normalizer) + tail;
  }
};

std::string model_error(const std::string& bytes) {
  try {
    SentencePieceTokenizer::from_bytes(bytes, "t.model");
  } catch (const CheckpointError& e) {
    EXPECT_THAT(e.what(), HasSubstr("t.model"));
    return e.what();
  }
  return "";
}

TEST(TokenizerModel, SmallestSoundModelWorks) {
  const auto t = SentencePieceTokenizer::from_bytes(Model().bytes(), "t.model");
  EXPECT_EQ(t->encode("ab"), (std::vector<int64_t>{4}));
  EXPECT_EQ(t->bos_id(), 1);
  EXPECT_EQ(t->pad_id(), -1);
  EXPECT_EQ(t->decode(std::vector<int64_t>{4, 2}), "aba");
}

TEST(TokenizerModel, UnigramWorksToo) {
  Model m;
  m.trainer = number_field(3, 1);
  EXPECT_EQ(SentencePieceTokenizer::from_bytes(m.bytes(), "t.model")->encode("ab"),
            (std::vector<int64_t>{2, 3}));
}

TEST(TokenizerModel, EachDefectHasItsMessage) {
  const auto with = [](const std::function<void(Model&)>& change) {
    Model m;
    change(m);
    return model_error(m.bytes());
  };
  EXPECT_THAT(with([](Model& m) { m.pieces += piece("", 0, 1); }),
              HasSubstr("piece 5: not a sound SentencePiece model: it is empty"));
  EXPECT_THAT(with([](Model& m) { m.pieces += piece("ab", 0, 1); }),
              HasSubstr("'ab' occurs twice"));
  EXPECT_THAT(with([](Model& m) { m.pieces += piece("c", NAN, 1); }),
              HasSubstr("score is not a finite"));
  EXPECT_THAT(
      with([](Model& m) { m.pieces += piece("c", std::numeric_limits<float>::infinity(), 1); }),
      HasSubstr("finite"));
  EXPECT_THAT(with([](Model& m) { m.pieces += piece("c", 0, 9); }), HasSubstr("type 9 is unknown"));
  EXPECT_THAT(with([](Model& m) { m.pieces += piece("<unk2>", 0, 2); }),
              HasSubstr("2 unknown pieces"));
  EXPECT_THAT(with([](Model& m) { m.pieces += piece(std::string("c\0d", 3), 0, 1); }),
              HasSubstr("zero byte"));
  EXPECT_THAT(with([](Model& m) { m.pieces += piece("\xff", 0, 1); }), HasSubstr("UTF-8"));
  EXPECT_THAT(with([](Model& m) { m.pieces += piece(std::string(5000, 'x'), 0, 1); }),
              HasSubstr("5000 bytes"));
  EXPECT_THAT(with([](Model& m) { m.pieces += piece("<0x4G>", 0, 6); }), HasSubstr("byte piece"));
  EXPECT_THAT(with([](Model& m) { m.trainer += number_field(35, 1); }),
              HasSubstr("0 byte pieces, expected 256"));
  EXPECT_THAT(with([](Model& m) { m.trainer = number_field(3, 4); }),
              HasSubstr("model type 4 is not supported"));
  EXPECT_THAT(with([](Model& m) { m.trainer = text_field(3, "2"); }),
              HasSubstr("wire type 2, expected 0"));
  EXPECT_THAT(with([](Model& m) { m.pieces.clear(); }), HasSubstr("no pieces"));
  EXPECT_THAT(with([](Model& m) { m.tail = text_field(2, ""); }), HasSubstr("one trainer_spec"));
  EXPECT_THAT(with([](Model& m) { m.tail = "\x0b"; }), HasSubstr("wire type 3"));
  EXPECT_THAT(with([](Model& m) { m.tail = "\x0a\x7f"; }), HasSubstr("behind the end"));
  EXPECT_THAT(with([](Model& m) { m.tail = std::string(11, '\xff'); }),
              HasSubstr("longer than ten bytes"));
  EXPECT_THAT(model_error(""), HasSubstr("empty"));
}

TEST(TokenizerModel, CharacterMapThatLeadsOutsideIsRefused) {
  const auto with_map = [](uint32_t trie_bytes, uint32_t unit, const std::string& texts) {
    std::string map(4, '\0');
    std::memcpy(map.data(), &trie_bytes, 4);
    std::string trie(1024, '\0');
    std::memcpy(trie.data(), &unit, 4);
    Model m;
    m.normalizer = text_field(2, map + trie + texts);
    return model_error(m.bytes());
  };
  EXPECT_THAT(with_map(4096, 0, "x"), HasSubstr("trie claims 4096"));
  EXPECT_THAT(with_map(1024, 0, "x"), HasSubstr("texts do not end"));
  EXPECT_THAT(with_map(1024, 1U << 20, std::string(1, '\0')), HasSubstr("leads outside"));
  EXPECT_EQ(with_map(1024, 0, std::string(1, '\0')), "");
}

TEST(TokenizerModel, EveryCutIsRefusedOrSound) {
  const std::string& model = golden_model();
  for (size_t n = 0; n < model.size(); n += 97) {
    EXPECT_NE(model_error(model.substr(0, n)), "") << "cut at " << n;
  }
}

TEST(TokenizerModel, FlippedBytesGiveAnErrorOrAWorkingTokenizer) {
  std::vector<double> draws(3 * 300);
  fill_uniform({.seed = 11, .stream = 0, .step = 0, .sample = 0}, draws);
  int refused = 0;
  for (size_t k = 0; k < draws.size(); k += 3) {
    std::string bytes = golden_model();
    bytes[static_cast<size_t>(draws[k] * static_cast<double>(bytes.size()))] =
        static_cast<char>(draws[k + 1] * 256);
    bytes[static_cast<size_t>(draws[k + 2] * static_cast<double>(bytes.size()))] ^= 0x10;
    try {
      const auto t = SentencePieceTokenizer::from_bytes(bytes, "t.model");
      t->decode(t->encode("Task: pick up the bowl, State: 1 -1 255;\nAction: \xe6\x8b\xbf"));
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 20);
}

}  // namespace
}  // namespace longship::data
