#include "models/groot/prompt.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/golden_arrays.h"
#include "data/tokenizer/hf_tokenizer.h"
#include "groot_toy_tokens.h"
#include "models/groot/layout.h"
#include "support/expect_error.h"

namespace longship::models {
namespace {

using testing::array;
using ::testing::ElementsAre;
using testing::expect_error;

const std::string kCase = "groot_preprocess/prompt_n16/";

/// Rows of the picture's features: pixels of the resized picture / (28 * 28).
std::vector<int64_t> golden_counts(const nlohmann::json& info, size_t sample) {
  const auto views = info.at("views").get<std::vector<size_t>>();
  size_t first = 0;
  for (size_t s = 0; s < sample; ++s) first += views[s];
  std::vector<int64_t> out;
  for (size_t k = first; k < first + views[sample]; ++k) {
    const auto size = info.at("resized_pil_sizes")[k].get<std::vector<int64_t>>();
    out.push_back(size[0] * size[1] / 784);
  }
  return out;
}

TEST(GrootPrompt, TextsMatchTheChatTemplate) {
  const auto info = testing::golden_json(kCase + "inputs.json");
  const auto texts = info.at("texts").get<std::vector<std::string>>();
  ASSERT_EQ(texts.size(), 3U);
  for (size_t s = 0; s < texts.size(); ++s) {
    EXPECT_EQ(groot_prompt(GrootVersion::kN16, info.at("languages")[s].get<std::string>(),
                           info.at("views")[s].get<int64_t>()),
              texts[s]);
  }
}

TEST(GrootPrompt, ExpansionMatchesTheReference) {
  const auto info = testing::golden_json(kCase + "inputs.json");
  std::string want = info.at("decoded_sample1");
  const std::string pad = "<|endoftext|>";
  while (want.starts_with(pad)) want.erase(0, pad.size());
  EXPECT_EQ(groot_expanded_prompt(GrootVersion::kN16, info.at("languages")[1].get<std::string>(),
                                  golden_counts(info, 1)),
            want);
}

/// The special tokens that prompts hold; every other byte is a token of its own.
std::vector<int64_t> toy_tokens(std::string_view text) {
  static constexpr std::pair<std::string_view, int64_t> kSpecial[] = {{"<|im_start|>", 151644},
                                                                      {"<|im_end|>", 151645},
                                                                      {"<img>", 151670},
                                                                      {"</img>", 151671},
                                                                      {"<IMG_CONTEXT>", 151669}};
  return testing::toy_tokens_with(text, kSpecial, 0);
}

TEST(GrootPrompt, RepeatedTokensAreThoseOfTheExpandedText) {
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{}, std::vector<int64_t>{81}, std::vector<int64_t>{4, 108, 1}}) {
    EXPECT_EQ(groot_tokens(GrootVersion::kN16, "pick up", counts, 151669, toy_tokens),
              toy_tokens(groot_expanded_prompt(GrootVersion::kN16, "pick up", counts)));
  }
}

// The tokenizer has the published pieces that these texts need, under the published ids
// (tools/make_groot_prompt_tokenizer.py).
TEST(GrootPrompt, IdsOfTheBatchMatchTheReference) {
  const auto info = testing::golden_json(kCase + "inputs.json");
  const auto want = testing::golden_tensors(kCase + "expected.safetensors");
  const auto ids = array<int64_t>(want, "input_ids");
  const auto mask = array<int64_t>(want, "attention_mask");
  ASSERT_EQ(want.at("input_ids").shape, (std::vector<int64_t>{3, 197}));
  const auto tokenizer =
      data::HfTokenizer::load(testing::dataset_path("tokenizers/groot_prompt_n16.json"));
  const GrootTokenize tokenize = [&](std::string_view text) {
    return tokenizer->encode(text, false).ids;
  };
  GrootConfig config(GrootVersion::kN16);
  config.size = "full";
  const GrootSizes sizes = config.sizes();
  GrootLayoutRequest request;
  std::vector<int64_t> packed;
  for (size_t s = 0; s < 3; ++s) {
    const std::vector<int64_t> row =
        groot_tokens(GrootVersion::kN16, info.at("languages")[s].get<std::string>(),
                     golden_counts(info, s), sizes.text.image_token, tokenize);
    request.lengths.push_back(static_cast<int64_t>(row.size()));
    request.pictures.push_back(info.at("views")[s].get<int64_t>());
    packed.insert(packed.end(), row.begin(), row.end());
  }
  for (const auto& size : info.at("resized_pil_sizes")) {  // (width, height)
    request.grids.push_back({size[1].get<int64_t>() / sizes.vision.patch_size,
                             size[0].get<int64_t>() / sizes.vision.patch_size});
  }
  request.token_ids = at::empty({static_cast<int64_t>(packed.size())}, at::kLong);
  std::copy(packed.begin(), packed.end(), request.token_ids.mutable_data_ptr<int64_t>());
  const GrootLayout layout = make_groot_layout(request, sizes);
  ASSERT_EQ(layout.pad_index.numel(), static_cast<int64_t>(ids.size()));
  const at::Tensor rows = layout.tokens.index_select(0, layout.pad_index);
  const int64_t* got = rows.const_data_ptr<int64_t>();
  const bool* valid = layout.valid.const_data_ptr<bool>();
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(got[i], ids[i]) << "sample " << i / 197 << " column " << i % 197;
    EXPECT_EQ(valid[i], mask[i] != 0) << "sample " << i / 197 << " column " << i % 197;
  }
}

TEST(GrootPrompt, N17PutsPicturesFirst) {
  EXPECT_EQ(groot_prompt(GrootVersion::kN17, "go", 2),
            "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|><|vision_start|>"
            "<|image_pad|><|vision_end|>go<|im_end|>\n");
  const std::vector<int64_t> counts = {2, 1};
  EXPECT_EQ(groot_expanded_prompt(GrootVersion::kN17, "go", counts),
            "<|im_start|>user\n<|vision_start|><|image_pad|><|image_pad|><|vision_end|>"
            "<|vision_start|><|image_pad|><|vision_end|>go<|im_end|>\n");
}

TEST(GrootPrompt, N17TokensOfATokenizerFile) {
  const auto tokenizer =
      data::HfTokenizer::load(testing::golden_path("tokenizers/qwen3_bbpe/tokenizer.json"));
  const GrootTokenize tokenize = [&](std::string_view text) {
    return tokenizer->encode(text, false).ids;
  };
  const auto id = [&](const char* token) { return tokenizer->token_id(token).value(); };
  const int64_t image = id("<|image_pad|>");
  const std::vector<int64_t> counts = {3, 64};
  std::vector<int64_t> want = {id("<|im_start|>")};
  const auto add = [&](const std::vector<int64_t>& ids) {
    want.insert(want.end(), ids.begin(), ids.end());
  };
  add(tokenize("user\n"));
  for (const int64_t count : counts) {
    want.push_back(id("<|vision_start|>"));
    want.insert(want.end(), static_cast<size_t>(count), image);
    want.push_back(id("<|vision_end|>"));
  }
  add(tokenize("pick up the bowl"));
  want.push_back(id("<|im_end|>"));
  add(tokenize("\n"));
  const auto got = groot_tokens(GrootVersion::kN17, "pick up the bowl", counts, image, tokenize);
  EXPECT_EQ(got, want);
  EXPECT_EQ(got, tokenize(groot_expanded_prompt(GrootVersion::kN17, "pick up the bowl", counts)));
}

TEST(GrootPrompt, ATokenizerWithoutThePlaceholderIsRefused) {
  const std::vector<int64_t> counts = {3};
  expect_error<CheckpointError>(
      [&] { groot_tokens(GrootVersion::kN17, "go", counts, 151655, toy_tokens); },
      {"0 tokens 151655", "1 places", "<|image_pad|>"});
}

TEST(GrootPrompt, LanguageIsFormalizedAsPythonDoes) {
  const auto info = testing::golden_json("groot_preprocess/state_action/inputs.json");
  const std::string packed = info.at("packed_text");
  EXPECT_EQ(formalize_language(info.at("text").get<std::string>()),
            packed.substr(packed.rfind('|') + 1));
  EXPECT_EQ(formalize_language(""), "");
  EXPECT_EQ(formalize_language("a_B-c\td\ne.F!"), "a_bc\td\nef");
  EXPECT_EQ(formalize_language("\u00c4pfel \u2019n \u8336\u58f6\u3002\u0661\u00bd\u2167"),
            "\u00e4pfel n \u8336\u58f6\u0661\u00bd\u2177");
  EXPECT_EQ(formalize_language("e\u0301 \u0130"), "e i");  // marks do not stay
  EXPECT_EQ(formalize_language("\u039f\u0394\u039f\u03a3 \u03a3\u0391\u03a3."),
            "\u03bf\u03b4\u03bf\u03c2 \u03c3\u03b1\u03c2");  // a final sigma
  EXPECT_EQ(formalize_language("a\u00a0b\u3000c\u200bd\u0085"), "a\u00a0b\u3000cd\u0085");
  EXPECT_EQ(formalize_language("\x1c\x1f\x01"), "\x1c\x1f");
  expect_error<DataError>([] { formalize_language("go \xff"); }, {"byte 3", "go \\xff"});
}

}  // namespace
}  // namespace longship::models
