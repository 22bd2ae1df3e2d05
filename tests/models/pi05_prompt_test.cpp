#include "models/pi05/prompt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "data/golden_arrays.h"

namespace longship::models {
namespace {

using testing::array;

const data::SentencePieceTokenizer& tokenizer() {
  static const auto t = data::SentencePieceTokenizer::load(
      testing::golden_path("pi05/paligemma_tokenizer/tokenizer.model"));
  return *t;
}

TEST(Pi05Prompt, BinsMatchTheReference) {
  const auto in = testing::golden_tensors("pi05/preprocess/inputs.safetensors");
  const auto want = testing::golden_tensors("pi05/preprocess/expected.safetensors");
  EXPECT_EQ(discretise_state(array<float>(in, "state.normalised")),
            array<int64_t>(want, "state.bins"));
}

TEST(Pi05Prompt, BinEdges) {
  EXPECT_EQ(state_bin(-1e-30F), 127);
  EXPECT_EQ(state_bin(0), 128);
  EXPECT_EQ(state_bin(-0.0F), 128);
  EXPECT_EQ(state_bin(-1), 0);
  EXPECT_EQ(state_bin(std::nextafter(-1.0F, -2.0F)), -1);
  EXPECT_EQ(state_bin(127.0F / 128), 255);
  EXPECT_EQ(state_bin(std::nextafter(127.0F / 128, 0.0F)), 254);
  EXPECT_EQ(state_bin(1e30F), 255);
  EXPECT_EQ(state_bin(-std::numeric_limits<float>::infinity()), -1);
  EXPECT_EQ(state_bin(NAN), 255);
}

TEST(Pi05Prompt, TextsMatchTheReference) {
  const auto in = testing::golden_tensors("pi05/preprocess/inputs.safetensors");
  const auto states = array<float>(in, "state.normalised");
  const auto golden = testing::golden_json("pi05/preprocess/prompts.json");
  ASSERT_GE(golden.size(), 8U);
  for (const auto& row : golden) {
    const auto task = row["task"].get<std::string>();
    const auto bins = discretise_state({&states[row["state_row"].get<size_t>() * 8], 8});
    EXPECT_EQ(pi05_prompt(task, bins), row["pi05_prompt"].get<std::string>());
    EXPECT_EQ(loongforge_prompt_without_state(task),
              row["loongforge_prompt_no_state"].get<std::string>());
    EXPECT_EQ(clean_task(task), row["pi0_pieces_encoded"][0].get<std::string>());
  }
}

TEST(Pi05Prompt, EveryGoldenCallOfOpenpisTokenizer) {
  const auto golden = testing::golden_json("pi05/paligemma_tokenizer/prompts.json");
  ASSERT_EQ(golden.size(), 73U);
  for (const auto& row : golden) {
    const auto task = row["task"].get<std::string>();
    std::vector<int64_t> ids;
    if (row["state"].is_null()) {
      ids = pi0_tokens(tokenizer(), task);
    } else {
      ids =
          pi05_tokens(tokenizer(), task, discretise_state(row["state"].get<std::vector<float>>()));
    }
    const PaddedTokens padded = pad_tokens(ids, row["max_len"], tokenizer().pad_id());
    EXPECT_EQ(padded.ids, row["ids"].get<std::vector<int64_t>>()) << task;
    EXPECT_EQ(padded.mask, row["mask"].get<std::vector<uint8_t>>()) << task;
  }
}

TEST(Pi05Prompt, StripsAsPythonDoes) {
  EXPECT_EQ(strip_unicode("\xC2\xA0\xE3\x80\x80 a b\xC2\x85\x1C\t\r\n"), "a b");
  EXPECT_EQ(strip_unicode("  \n"), "");
  EXPECT_EQ(strip_unicode(""), "");
  EXPECT_EQ(strip_unicode("\xE2\x80\x8B"
                          "a"),
            "\xE2\x80\x8B"
            "a");  // zero-width space is no white space in Python
  EXPECT_EQ(strip_unicode("\xE6\x8B\xBF"), "\xE6\x8B\xBF");
  EXPECT_EQ(strip_unicode("a\x80\x80\x80"), "a\x80\x80\x80");  // broken UTF-8 stays
  EXPECT_EQ(clean_task("_a_\tb\r\n"), " a \tb");
}

}  // namespace
}  // namespace longship::models
