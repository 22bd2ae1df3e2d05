#include "data/tokenizer/hf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "data/golden_arrays.h"
#include "data/tokenizer/hf_compose.h"
#include "data/tokenizer/hf_regex.h"
#include "data/tokenizer/hf_unicode.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace longship::data {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using Ids = std::vector<int64_t>;
using Offsets = std::vector<std::pair<int64_t, int64_t>>;

std::shared_ptr<const HfTokenizer> golden_tokenizer(const std::string& name) {
  return HfTokenizer::load(testing::golden_path("tokenizers/" + name + "/tokenizer.json"));
}

class HfTokenizerGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(HfTokenizerGolden, EveryStringEncodesAndDecodesExactly) {
  const auto tokenizer = golden_tokenizer(GetParam());
  const json golden =
      testing::golden_json(std::string("tokenizers/") + GetParam() + "/encodings.json");
  ASSERT_GT(golden["encodings"].size(), 200U);
  for (const json& row : golden["encodings"]) {
    const auto text = row["text"].get<std::string>();
    const auto ids = row["ids"].get<Ids>();
    const HfEncoding plain = tokenizer->encode(text, false);
    EXPECT_EQ(plain.ids, ids) << row["text"];
    const auto flat = row["offsets"].get<Ids>();
    Offsets offsets;
    for (size_t i = 0; i < flat.size(); i += 2) offsets.emplace_back(flat[i], flat[i + 1]);
    EXPECT_EQ(plain.offsets, offsets) << row["text"];

    auto with_special = row.value("special_prefix", Ids{});
    Offsets special_offsets(with_special.size(), {0, 0});
    with_special.insert(with_special.end(), ids.begin(), ids.end());
    special_offsets.insert(special_offsets.end(), offsets.begin(), offsets.end());
    const HfEncoding special = tokenizer->encode(text, true);
    EXPECT_EQ(special.ids, with_special) << row["text"];
    EXPECT_EQ(special.offsets, special_offsets) << row["text"];

    const auto decoded = row["decoded"].get<std::string>();
    EXPECT_EQ(tokenizer->decode(ids, false), decoded) << row["text"];
    EXPECT_EQ(tokenizer->decode(ids, true), row.value("decoded_skip_special", decoded));
  }
}

TEST_P(HfTokenizerGolden, EveryListOfIdsDecodesExactly) {
  const auto tokenizer = golden_tokenizer(GetParam());
  const json golden =
      testing::golden_json(std::string("tokenizers/") + GetParam() + "/encodings.json");
  ASSERT_EQ(golden["decodings"].size(), 40U);
  for (const json& row : golden["decodings"]) {
    const auto ids = row["ids"].get<Ids>();
    const auto decoded = row["decoded"].get<std::string>();
    EXPECT_EQ(tokenizer->decode(ids, false), decoded) << row["ids"];
    EXPECT_EQ(tokenizer->decode(ids, true), row.value("decoded_skip_special", decoded));
  }
}

TEST_P(HfTokenizerGolden, VocabularyAndAddedTokens) {
  const auto tokenizer = golden_tokenizer(GetParam());
  const json file =
      testing::golden_json(std::string("tokenizers/") + GetParam() + "/tokenizer.json");
  int64_t added = 0;
  for (const json& entry : file["added_tokens"]) {
    const auto id = entry["id"].get<int64_t>();
    EXPECT_EQ(tokenizer->token_id(entry["content"].get<std::string>()), id);
    EXPECT_EQ(tokenizer->is_special(id), entry["special"].get<bool>());
    added += file["model"]["vocab"].contains(entry["content"].get<std::string>()) ? 0 : 1;
  }
  EXPECT_EQ(tokenizer->vocab_size(), static_cast<int64_t>(file["model"]["vocab"].size()) + added);
  EXPECT_EQ(tokenizer->id_bound(), tokenizer->vocab_size());
  for (const auto& entry : file["model"]["vocab"].items()) {
    const auto id = entry.value().get<int64_t>();
    EXPECT_EQ(tokenizer->token_id(entry.key()), id);
    EXPECT_EQ(tokenizer->token(id), entry.key());
  }
  EXPECT_EQ(tokenizer->token_id("no such token"), std::nullopt);
  EXPECT_THROW(tokenizer->token(tokenizer->id_bound()), ShapeError);
  EXPECT_THROW(tokenizer->token(-1), ShapeError);
  EXPECT_THROW(tokenizer->decode(Ids{0, 1 << 30}, false), ShapeError);
}

TEST_P(HfTokenizerGolden, SharedByThreads) {
  const auto tokenizer = golden_tokenizer(GetParam());
  const json golden =
      testing::golden_json(std::string("tokenizers/") + GetParam() + "/encodings.json");
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const json& row : golden["encodings"]) {
        const auto& text = row["text"].get_ref<const std::string&>();
        wrong += tokenizer->encode(text, false).ids != row["ids"].get<Ids>();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(All, HfTokenizerGolden,
                         ::testing::Values("qwen3_bbpe", "llama3_bbpe", "gpt2_bbpe",
                                           "deepseek3_bbpe", "llama2_spbpe", "gemma_spbpe"),
                         [](const auto& test) { return std::string(test.param); });

/// A small sound file; tests change it.
json small_file() {
  return json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
      {"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true},
      {"id": 9, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": false,
      "byte_fallback": false, "ignore_merges": false,
      "vocab": {"<unk>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "bc": 5, "abc": 6, "_": 7, "1": 8},
      "merges": ["a b", "b c", ["ab", "c"]]}})");
}

std::shared_ptr<const HfTokenizer> tokenizer_of(const json& file) {
  return HfTokenizer::from_bytes(file.dump(), "small.json");
}

TEST(HfTokenizer, MergesByRankAndUnknownTokens) {
  json file = small_file();
  EXPECT_THAT(tokenizer_of(file)->encode("abcbcxyab", false).ids, ElementsAre(6, 5, 0, 0, 4));
  file["model"]["fuse_unk"] = true;
  const HfEncoding fused = tokenizer_of(file)->encode("axyb", false);
  EXPECT_THAT(fused.ids, ElementsAre(1, 0, 2));
  EXPECT_EQ(fused.offsets, (Offsets{{0, 1}, {1, 3}, {3, 4}}));
  // Without one, characters that no token has are dropped, and places move up: as the library does.
  file["model"]["unk_token"] = nullptr;
  const HfEncoding dropped = tokenizer_of(file)->encode("axyb", false);
  EXPECT_THAT(dropped.ids, ElementsAre(4));
  EXPECT_EQ(dropped.offsets, (Offsets{{0, 2}}));
  file["model"]["unk_token"] = "<none>";
  testing::expect_error<DataError>([&] { tokenizer_of(file)->encode("ax", false); },
                                   {"small.json", "model", "<none>"});
}

TEST(HfTokenizer, WholeWordsBeforeMerges) {
  json file = small_file();
  file["model"]["vocab"]["cab"] = 9;
  file["added_tokens"][1]["id"] = 10;
  EXPECT_THAT(tokenizer_of(file)->encode("cab", false).ids, ElementsAre(3, 4));
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(tokenizer_of(file)->encode("cab", false).ids, ElementsAre(9));
}

TEST(HfTokenizer, TemplateBeforeAndBehind) {
  json file = small_file();
  file["post_processor"] = json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "end", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [9], "tokens": ["<s>"]},
                                   "end": {"id": "end", "ids": [1, 2], "tokens": ["a", "b"]}}})");
  const HfEncoding encoding = tokenizer_of(file)->encode("ab", true);
  EXPECT_THAT(encoding.ids, ElementsAre(9, 4, 1, 2));
  EXPECT_EQ(encoding.offsets, (Offsets{{0, 0}, {0, 2}, {0, 0}, {0, 0}}));
  EXPECT_THAT(tokenizer_of(file)->encode("ab", false).ids, ElementsAre(4));
  EXPECT_THAT(tokenizer_of(file)->encode("", true).ids, ElementsAre(9, 1, 2));
}

TEST(HfTokenizer, AddedTokensAreFoundByTheirRules) {
  json file = small_file();
  json& token = file["added_tokens"][1];
  token["content"] = "ab";
  token["id"] = 4;
  token["single_word"] = true;
  token["lstrip"] = token["rstrip"] = true;
  const HfEncoding encoding = tokenizer_of(file)->encode("c  ab c", false);
  EXPECT_THAT(encoding.ids, ElementsAre(3, 4, 3));
  EXPECT_EQ(encoding.offsets, (Offsets{{0, 1}, {1, 6}, {6, 7}}));
  EXPECT_THAT(tokenizer_of(file)->encode("abc", false).ids, ElementsAre(6)) << "goes on in a word";
  EXPECT_THAT(tokenizer_of(file)->encode("ab\xC2\xBD", false).ids, ElementsAre(4, 0));
}

TEST(HfTokenizer, ASpecialTokenOfNormalisedTextIsDecodedNormalised) {
  const auto tokenizer = golden_tokenizer("llama2_spbpe");
  const auto id = tokenizer->token_id("[INST]");
  ASSERT_TRUE(id);
  EXPECT_EQ(tokenizer->token(*id), "\xE2\x96\x81[INST]");
  EXPECT_EQ(tokenizer->decode(Ids{277, *id}, false),
            tokenizer->decode(Ids{277}, false) + " [INST]");
}

TEST(HfTokenizer, OffsetsPointIntoTheTextBeforeNormalisation) {
  json file = small_file();
  file["normalizer"] = json::parse(R"({"type": "Sequence", "normalizers": [
    {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": true, "strip_right": true},
    {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": "_"}, {"type": "Prepend", "prepend": "_"}]})");
  // Space, fullwidth A and B, three spaces, C.
  const HfEncoding encoding = tokenizer_of(file)->encode(" \xEF\xBC\xA1\xEF\xBC\xA2   C", false);
  EXPECT_THAT(encoding.ids, ElementsAre(7, 4, 7, 3));
  EXPECT_EQ(encoding.offsets, (Offsets{{1, 2}, {1, 3}, {5, 6}, {6, 7}}));
}

TEST(HfTokenizer, PreTokenizersCutWords) {
  const auto ids = [](const char* pre_tokenizer, const char* text) {
    json file = small_file();
    file["pre_tokenizer"] = json::parse(pre_tokenizer);
    return tokenizer_of(file)->encode(text, false).ids;
  };
  const auto split = [](const char* behavior, bool invert) {
    return json{{"type", "Split"},
                {"pattern", {{"String", "b"}}},
                {"behavior", behavior},
                {"invert", invert}}
        .dump();
  };
  EXPECT_THAT(ids(split("Removed", false).c_str(), "abbc"), ElementsAre(1, 3));
  EXPECT_THAT(ids(split("Removed", true).c_str(), "abbc"), ElementsAre(2, 2));
  EXPECT_THAT(ids(split("Isolated", false).c_str(), "abbc"), ElementsAre(1, 2, 2, 3));
  EXPECT_THAT(ids(split("MergedWithPrevious", false).c_str(), "abbc"), ElementsAre(4, 2, 3));
  EXPECT_THAT(ids(split("MergedWithNext", false).c_str(), "abbc"), ElementsAre(1, 2, 5));
  EXPECT_THAT(ids(split("Contiguous", false).c_str(), "abbc"), ElementsAre(1, 2, 2, 3));
  EXPECT_THAT(ids(R"({"type": "Digits", "individual_digits": true})", "11ab"),
              ElementsAre(8, 8, 4));
  EXPECT_THAT(ids(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always",
                      "split": true})",
                  "ab c"),
              ElementsAre(7, 4, 7, 3));
  EXPECT_THAT(
      ids(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "never"})", "ab c"),
      ElementsAre(4, 7, 3));
  EXPECT_THAT(ids(R"({"type": "Sequence", "pretokenizers": [
                  {"type": "Split", "pattern": {"Regex": "\\p{L}"}, "behavior": "Isolated", "invert": false},
                  {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})",
                  "abc"),
              ElementsAre(1, 2, 3));
}

TEST(HfTokenizer, DecodersJoinTheirParts) {
  const auto decoded = [](const char* decoder, const Ids& ids) {
    json file = small_file();
    file["model"]["vocab"]["<0xE2>"] = 9;
    file["model"]["vocab"]["<0x82>"] = 10;
    file["model"]["vocab"]["<0xac>"] = 11;
    file["added_tokens"][1]["id"] = 12;
    file["decoder"] = json::parse(decoder);
    return tokenizer_of(file)->decode(ids, true);
  };
  EXPECT_EQ(decoded("null", {1, 12, 2}), "a b");
  EXPECT_EQ(decoded(R"({"type": "ByteFallback"})", {9, 10, 11, 1}),
            "\xE2\x82\xAC"
            "a");
  EXPECT_EQ(decoded(R"({"type": "ByteFallback"})", {9, 10, 1}),
            "\xEF\xBF\xBD\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(decoded(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"})",
                    {7, 4, 7, 3}),
            "ab c");
  EXPECT_EQ(decoded(R"({"type": "Sequence", "decoders": [
                    {"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 1}]})",
                    {7, 7, 4, 7, 7}),
            " ab ");
}

TEST(HfTokenizer, InvalidUtf8IsReplaced) {
  const auto tokenizer = golden_tokenizer("qwen3_bbpe");
  const HfEncoding broken = tokenizer->encode("a\xE2\x82z\xFF", false);
  const HfEncoding replaced = tokenizer->encode("a\xEF\xBF\xBDz\xEF\xBF\xBD", false);
  EXPECT_EQ(broken.ids, replaced.ids);
  EXPECT_EQ(broken.offsets.back().second, 4);
  // One for each maximal part: surrogates and overlong forms have none longer than a byte.
  EXPECT_EQ(hf::count_code_points(hf::to_valid_utf8("\xED\xA0\x80\xC0\xAF\xF0\x9F\x98"
                                                    "a")),
            7U);
}

TEST(HfTokenizer, LongTextsEndInTime) {
  for (const char* name : {"qwen3_bbpe", "llama2_spbpe", "gemma_spbpe"}) {
    const auto tokenizer = golden_tokenizer(name);
    for (const char* part : {"a", " ", "\n", "1", "\xCC\x81", "\xE4\xBD\xA0", "ab \n"}) {
      std::string text;
      while (text.size() < 200'000) text += part;
      const HfEncoding encoding = tokenizer->encode(text, false);
      EXPECT_EQ(encoding.offsets.back().second, static_cast<int64_t>(hf::count_code_points(text)));
    }
  }
}

TEST(HfTokenizer, ARegularExpressionThatRunsAwayIsStopped) {
  json file = small_file();
  file["pre_tokenizer"] = json::parse(
      R"({"type": "Split", "pattern": {"Regex": "(?:a+)+[cd]"}, "behavior": "Isolated", "invert": false})");
  const auto tokenizer = tokenizer_of(file);
  testing::expect_error<DataError>([&] { tokenizer->encode(std::string(60, 'a'), false); },
                                   {"small.json", "pre_tokenizer.pattern.Regex", "60 bytes"});
}

TEST(HfTokenizer, ReplacementsThatGrowWithoutBoundAreStopped) {
  json file = small_file();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
  for (int i = 0; i < 60; ++i) {
    file["normalizer"]["normalizers"].push_back(
        {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  }
  const auto tokenizer = tokenizer_of(file);
  testing::expect_error<DataError>([&] { tokenizer->encode("a", false); }, {"grow"});
}

struct BrokenFile {
  const char* name;
  std::function<void(json&)> change;
  std::vector<std::string> mentions;
};

const std::vector<BrokenFile>& broken_files() {
  static const std::vector<BrokenFile> files = {
      {"no model", [](json& f) { f.erase("model"); }, {"\"model\" is missing"}},
      {"a list", [](json& f) { f = json::array(); }, {"expected an object", "array"}},
      {"another version", [](json& f) { f["version"] = "2.0"; }, {"version", "1.0"}},
      {"truncation",
       [](json& f) {
         f["truncation"] = {{"max_length", 3}};
       },
       {"truncation"}},
      {"padding",
       [](json& f) {
         f["padding"] = {{"pad_id", 3}};
       },
       {"padding"}},
      {"another model", [](json& f) { f["model"]["type"] = "Unigram"; }, {"model.type", "Unigram"}},
      {"dropout", [](json& f) { f["model"]["dropout"] = 0.1; }, {"model.dropout"}},
      {"vocabulary as a list", [](json& f) { f["model"]["vocab"] = {"a"}; }, {"model.vocab"}},
      {"id as text", [](json& f) { f["model"]["vocab"]["a"] = "1"; }, {"vocab[\"a\"]", "string"}},
      {"id with a fraction", [](json& f) { f["model"]["vocab"]["a"] = 1.5; }, {"vocab[\"a\"]"}},
      {"negative id", [](json& f) { f["model"]["vocab"]["a"] = -1; }, {"vocab[\"a\"]", "-1"}},
      {"huge id",
       [](json& f) { f["model"]["vocab"]["a"] = 1ULL << 63; },
       {"vocab[\"a\"]", "9223372036854775808", "2097151"}},
      {"id used twice", [](json& f) { f["model"]["vocab"]["a"] = 2; }, {"id 2", "\"a\""}},
      {"no merges", [](json& f) { f["model"].erase("merges"); }, {"\"merges\" is missing"}},
      {"merges as text", [](json& f) { f["model"]["merges"] = "a b"; }, {"model.merges"}},
      {"merge of an unknown token",
       [](json& f) { f["model"]["merges"][0] = "a z"; },
       {"model.merges[0]", "\"z\""}},
      {"merge into an unknown token",
       [](json& f) { f["model"]["merges"][1] = "c c"; },
       {"model.merges[1]", "\"cc\""}},
      {"merge of three", [](json& f) { f["model"]["merges"][0] = "a b c"; }, {"model.merges[0]"}},
      {"merge of one", [](json& f) { f["model"]["merges"][2] = {"a"}; }, {"model.merges[2]"}},
      {"merge of numbers",
       [](json& f) {
         f["model"]["merges"][2] = {1, 2};
       },
       {"model.merges[2]"}},
      {"switch as a number", [](json& f) { f["model"]["fuse_unk"] = 1; }, {"model.fuse_unk"}},
      {"added token elsewhere",
       [](json& f) { f["added_tokens"][0]["id"] = 3; },
       {"added_tokens[0]", "\"<unk>\" has id 3"}},
      {"added token with a gap",
       [](json& f) { f["added_tokens"][1]["id"] = 11; },
       {"added_tokens[1]", "11", "9"}},
      {"added token twice",
       [](json& f) { f["added_tokens"][1]["content"] = "<unk>"; },
       {"added_tokens[1]", "twice"}},
      {"empty added token",
       [](json& f) { f["added_tokens"][1]["content"] = ""; },
       {"added_tokens[1].content", "empty"}},
      {"added token without a switch",
       [](json& f) { f["added_tokens"][1].erase("special"); },
       {"added_tokens[1]", "special"}},
      {"added id beyond bounds",
       [](json& f) { f["added_tokens"][1]["id"] = 1LL << 40; },
       {"added_tokens[1].id"}},
      {"too many added tokens",
       [](json& f) { f["added_tokens"] = json::array_t((1 << 18) + 1, json()); },
       {"added_tokens", "262145"}},
      {"long token",
       [](json& f) { f["model"]["vocab"][std::string(5000, 'a')] = 9; },
       {"5000 bytes", "4096"}},
      {"another normalizer",
       [](json& f) {
         f["normalizer"] = {{"type", "BertNormalizer"}};
       },
       {"normalizer.type", "BertNormalizer"}},
      {"another pre-tokenizer",
       [](json& f) {
         f["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "X"}}}}};
       },
       {"pre_tokenizer.pretokenizers[0].type", "\"X\""}},
      {"another decoder",
       [](json& f) {
         f["decoder"] = {{"type", "CTC"}};
       },
       {"decoder.type", "CTC"}},
      {"another post-processor",
       [](json& f) {
         f["post_processor"] = {{"type", "BertProcessing"}};
       },
       {"post_processor.type", "BertProcessing"}},
      {"template with an unknown token",
       [](json& f) {
         f["post_processor"] = json::parse(
             R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {}})");
       },
       {"post_processor.single[0].SpecialToken.id", "\"x\""}},
      {"template with an id beyond the vocabulary",
       [](json& f) {
         f["post_processor"] = json::parse(
             R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}],
                 "special_tokens": {"x": {"ids": [10], "tokens": ["x"]}}})");
       },
       {"special_tokens.x.ids[0]", "10"}},
      {"unsound regular expression",
       [](json& f) {
         f["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "(a"}}}, {"content", ""}};
       },
       {"normalizer.pattern.Regex", "\"(a\""}},
      {"pattern of no kind",
       [](json& f) {
         f["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Glob", "*"}}}, {"content", ""}};
       },
       {"normalizer.pattern", "Regex"}},
      {"another behavior",
       [](json& f) {
         f["pre_tokenizer"] = {{"type", "Split"},
                               {"pattern", {{"String", "a"}}},
                               {"behavior", "Kept"},
                               {"invert", false}};
       },
       {"pre_tokenizer.behavior", "Kept"}},
  };
  return files;
}

TEST(HfTokenizer, BrokenFilesAreRefusedByName) {
  for (const BrokenFile& broken : broken_files()) {
    SCOPED_TRACE(broken.name);
    json file = small_file();
    broken.change(file);
    const std::string message = testing::message_of<DataError>([&] { tokenizer_of(file); });
    EXPECT_THAT(message, ::testing::HasSubstr("small.json"));
    for (const std::string& text : broken.mentions)
      EXPECT_THAT(message, ::testing::HasSubstr(text));
  }
}

TEST(HfTokenizer, TruncatedFilesAreRefused) {
  const std::string whole = small_file().dump();
  for (size_t n = 0; n < whole.size(); n += 7) {
    EXPECT_THROW(HfTokenizer::from_bytes(whole.substr(0, n), "cut.json"), DataError) << n;
  }
  EXPECT_THROW(HfTokenizer::from_bytes("{\"model\": {\"model\": 1, \"model\": 2}}", "twice.json"),
               DataError);
  const auto dir = testing::scratch_dir("hf_tokenizer_files");
  testing::expect_error<DataError>([&] { HfTokenizer::load(dir / "absent.json"); },
                                   {"absent.json"});
  std::ofstream(dir / "model.json") << whole.substr(0, 100);
  testing::expect_error<DataError>([&] { HfTokenizer::load(dir / "model.json"); }, {"model.json"});
}

std::vector<std::string> matches(const char* pattern, std::string_view text) {
  const hf::Regex regex(pattern, "test");
  std::vector<hf::TextRange> ranges;
  regex.find_all(text, ranges);
  std::vector<std::string> out;
  for (const hf::TextRange& range : ranges) {
    out.emplace_back(text.substr(range.begin, range.end - range.begin));
  }
  return out;
}

TEST(HfRegex, DialectOfTheLibrary) {
  EXPECT_THAT(matches("^.$", "a\nb\n"), ElementsAre("a", "b")) << "lines without a switch";
  EXPECT_THAT(matches("(?m:.)+", "a\nb"), ElementsAre("a\nb")) << "m is for line ends";
  EXPECT_THAT(matches("a(?i)b|c", "aBaC"), ElementsAre("aB", "aC")) << "options reach over |";
  EXPECT_THAT(matches("a{1,2}+b", "aaaab"), ElementsAre("aaaab")) << "no possessive interval";
  EXPECT_THAT(matches("a{2}?", "aaa"), ElementsAre("aa", "")) << "an optional pair";
  EXPECT_THAT(matches("a{,2}b", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(matches("\\h+", "xbeef"), ElementsAre("beef"));
  EXPECT_THAT(matches("\\v", "\n\v"), ElementsAre("\v"));
  EXPECT_THAT(matches("\\s", "\xE1\xA0\x8E\xC2\x85"), ElementsAre("\xC2\x85")) << "not U+180E";
  EXPECT_THAT(matches("[^\\W_]+", "a_b"), ElementsAre("a", "b"));
  EXPECT_THAT(matches("[\\S\\n]+", "a \n"), ElementsAre("a", "\n"));
  EXPECT_THAT(matches("\\w|[\\w-]", "\xC2\xBD-"), ElementsAre("\xC2\xBD", "-"));
  EXPECT_THAT(matches("[\\w]", "\xC2\xBD"), ElementsAre());
  EXPECT_THAT(matches("(?i:'s)", "'\xC5\xBF"), ElementsAre("'\xC5\xBF")) << "long s";
  EXPECT_THAT(matches("[\\u4e00-\\u9fa5]", "\xE4\xBD\xA0"), ElementsAre("\xE4\xBD\xA0"));
  EXPECT_THAT(matches("a*", "baac"), ElementsAre("", "aa", ""));
}

TEST(HfRegex, CodePointsOfUnicode16) {
  // U+31350, a letter since 15.0; U+1FAE8, a symbol since 15.0; U+1CC00, a symbol since 16.0.
  const std::string letter = "\xF0\xB1\x8D\x90", symbols = "\xF0\x9F\xAB\xA8\xF0\x9C\xB0\x80";
  EXPECT_THAT(matches("\\p{L}+", letter + symbols), ElementsAre(letter));
  EXPECT_THAT(matches("\\p{Han}", letter), ElementsAre(letter));
  EXPECT_THAT(matches("[^\\s\\p{L}\\p{N}]+", letter + symbols), ElementsAre(symbols));
  EXPECT_THAT(matches("\\p{S}+", symbols), ElementsAre(symbols));
  EXPECT_THAT(matches("\\p{Cn}|\\p{C}", letter + symbols), ElementsAre());
}

TEST(HfRegex, WhatIsNotTranslatedIsRefused) {
  for (const char* pattern :
       {"[a[b]]",      "[a&&b]",    "(?<name>a)", "\\K",       "\\X",  "\\g<1>",
        "\\k<a>",      "(?x)a",     "(?~a)",      "(?(1)a)",   "[]",   "[b-a]",
        "[a",          "(a",        "a)",         "\\p{Nope}", "\\pL", "\\xFF",
        "\\x{110000}", "a{100000}", "*a",         "{2}",       "\\",   "\\q",
        "[[:alpha:]]", "(?#a",      "\\2(a)",     "(?<=a*)b"}) {
    testing::expect_error<DataError>([&] { hf::Regex(pattern, "place"); }, {"place"});
  }
}

std::vector<std::pair<uint32_t, int64_t>> changes(std::string_view text,
                                                  hf::NormalisationForm form) {
  std::vector<std::pair<uint32_t, int64_t>> out;
  for (const hf::Change& change : hf::normalise(text, form)) {
    out.emplace_back(static_cast<uint32_t>(change.c), change.change);
  }
  return out;
}

TEST(HfCompose, FormsTellWhatCameFromWhere) {
  using hf::NormalisationForm;
  using Changes = std::vector<std::pair<uint32_t, int64_t>>;
  // e, dot below after acute: reordered, and the dot composed.
  EXPECT_EQ(changes("e\xCC\x81\xCC\xA3", NormalisationForm::kNfc),
            (Changes{{0x1EB9, -1}, {0x301, 0}}));
  EXPECT_EQ(changes("\xC3\xA9", NormalisationForm::kNfd), (Changes{{'e', 0}, {0x301, 1}}));
  EXPECT_EQ(changes("\xEF\xAC\x81", NormalisationForm::kNfkc), (Changes{{'f', 0}, {'i', 1}}));
  EXPECT_EQ(changes("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", NormalisationForm::kNfc),
            (Changes{{0xAC01, -2}}));
  // A syllable and U+11A7, the empty tail: not composed.
  EXPECT_EQ(changes("\xEA\xB0\x80\xE1\x86\xA7", NormalisationForm::kNfc),
            (Changes{{0xAC00, 0}, {0x11A7, 0}}));
  // Newer than Unicode 9.0: U+32FF stays.
  EXPECT_EQ(changes("\xE3\x8B\xBF", NormalisationForm::kNfkd), (Changes{{0x32FF, 0}}));
}

}  // namespace
}  // namespace longship::data
