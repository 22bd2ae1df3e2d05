#include "data/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "base/rng.h"

namespace longship::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Lengths from 1 to 600, pictures 0 to 3, drawn per position.
PackItem random_item(int64_t position) {
  const uint64_t bits =
      random_bits(make_key(11, RngStream::kTest), static_cast<uint64_t>(position));
  PackItem item;
  item.position = position;
  item.sample_id = 1000 + position * 7 % 900;
  item.tokens = 1 + static_cast<int64_t>(bits % 600);
  item.pictures = static_cast<int64_t>((bits >> 20) % 4);
  item.labels = item.tokens / 2;
  return item;
}

std::function<PackItem(int64_t)> lengths(std::vector<int64_t> tokens) {
  return [tokens](int64_t position) {
    return PackItem{position, position, tokens[static_cast<size_t>(position)], 0, 1};
  };
}

std::vector<std::vector<int64_t>> positions(Packer& packer, int64_t count) {
  std::vector<std::vector<int64_t>> out;
  for (int64_t i = 0; i < count; ++i) {
    const Pack pack = packer.next();
    if (pack.items.empty()) break;
    std::vector<int64_t>& ids = out.emplace_back();
    for (const PackItem& item : pack.items) ids.push_back(item.position);
  }
  return out;
}

TEST(Packing, FirstFitInTheOrderOfTheStream) {
  PackOptions options;
  options.token_budget = 10;
  options.window = 4;
  Packer packer(options, lengths({6, 5, 4, 3, 2, 2, 9, 1}), 8);
  // 6 + 4; then 5 3 2 (2 is looked at, 9 too); then 2 and 1; 9 alone.
  EXPECT_THAT(positions(packer, 100), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3, 4),
                                                  ElementsAre(5, 7), ElementsAre(6)));
  EXPECT_EQ(packer.state().num_packs, 4);
}

TEST(Packing, PicturesAreBounded) {
  PackOptions options;
  options.token_budget = 100;
  options.max_pictures = 2;
  Packer packer(
      options,
      [](int64_t p) {
        return PackItem{p, p, 1, p % 3, 0};
      },
      6);
  EXPECT_THAT(positions(packer, 100),
              ElementsAre(ElementsAre(0, 1, 3, 4), ElementsAre(2), ElementsAre(5)));
}

TEST(Packing, EverySampleOnceWithinTheBudgetAndNoneWaitsLong) {
  PackOptions options;
  options.token_budget = 1024;
  options.max_pictures = 7;
  options.window = 32;
  const int64_t count = 5000;
  Packer packer(options, random_item, count);
  std::set<int64_t> seen;
  std::vector<int64_t> looked_at;  // packs made when a position came into the window
  int64_t tokens = 0, packs = 0;
  for (;;) {
    const int64_t before = packer.state().next_position;
    const Pack pack = packer.next();
    if (pack.items.empty()) break;
    looked_at.resize(static_cast<size_t>(packer.state().next_position), packs);
    static_cast<void>(before);
    int64_t own_tokens = 0, own_pictures = 0, last = -1;
    for (const PackItem& item : pack.items) {
      EXPECT_TRUE(seen.insert(item.position).second);
      EXPECT_GT(item.position, last) << "order of the stream";
      last = item.position;
      own_tokens += item.tokens;
      own_pictures += item.pictures;
      EXPECT_LT(packs - looked_at[static_cast<size_t>(item.position)], options.window);
      EXPECT_EQ(item, random_item(item.position));
    }
    EXPECT_EQ(own_tokens, pack.tokens);
    EXPECT_EQ(own_pictures, pack.pictures);
    EXPECT_LE(pack.tokens, options.token_budget);
    EXPECT_LE(pack.pictures, options.max_pictures);
    tokens += pack.tokens;
    ++packs;
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), count);
  EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(packs * options.token_budget), 0.9);
}

TEST(Packing, ResumesExactlyAtEveryPack) {
  PackOptions options;
  options.token_budget = 1500;
  options.window = 16;
  Packer straight(options, random_item);
  const auto want = positions(straight, 60);
  for (int64_t stop = 0; stop < 60; stop += 7) {
    Packer before(options, random_item);
    auto got = positions(before, stop);
    const std::string saved = to_json(before.state());
    int64_t first_asked = -1;
    Packer after(
        options,
        [&](int64_t position) {
          if (first_asked < 0) first_asked = position;
          return random_item(position);
        },
        -1, parse_packer_state(saved, "state"));
    for (auto& pack : positions(after, 60 - stop)) got.push_back(std::move(pack));
    EXPECT_EQ(got, want) << stop;
    EXPECT_EQ(first_asked, before.state().next_position) << "nothing is measured twice";
    EXPECT_EQ(after.state().num_packs, 60);
  }
}

TEST(Packing, SamplesLargerThanAPack) {
  PackOptions options;
  options.token_budget = 10;
  options.max_pictures = 3;
  const auto item = [](int64_t p) {
    return PackItem{p, p + 40, p == 2 ? 11 : 4, p == 4 ? 4 : 0, 1};
  };
  Packer strict(options, item, 6);
  try {
    strict.next();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("sample 42 has 11 tokens and 0 pictures, a pack holds 10 "
                                        "tokens and 3 pictures"));
  }
  options.skip_too_long = true;
  Packer lenient(options, item, 6);
  EXPECT_THAT(positions(lenient, 9), ElementsAre(ElementsAre(0, 1), ElementsAre(3, 5)));
  EXPECT_EQ(lenient.state().num_skipped, 2);
}

TEST(Packing, Faults) {
  const auto bad = [](PackOptions options) {
    EXPECT_THROW(Packer(options, random_item), ConfigError);
  };
  bad({.token_budget = 0});
  bad({.max_pictures = -1});
  bad({.window = 0});
  Packer no_tokens(
      {},
      [](int64_t p) {
        return PackItem{p, p, 0, 0, 0};
      },
      1);
  EXPECT_THROW(no_tokens.next(), DataError);
  Packer many_labels(
      {},
      [](int64_t p) {
        return PackItem{p, p, 2, 0, 3};
      },
      1);
  EXPECT_THROW(many_labels.next(), DataError);
  for (const char* text : {"", "{}", "[]", R"({"next_position":1,"num_packs":0,"num_skipped":0})",
                           R"({"next_position":1,"num_packs":0,"num_skipped":0,"waiting":[[1]]})",
                           R"({"next_position":"x","num_packs":0,"num_skipped":0,"waiting":[]})"}) {
    EXPECT_THROW(parse_packer_state(text, "packer.json"), CheckpointError) << text;
  }
}

TEST(Packing, LayoutOfRows) {
  Pack pack;
  pack.items = {{0, 0, 3, 1, 0}, {1, 1, 1, 0, 0}, {2, 2, 2, 2, 0}};
  pack.tokens = 6;
  pack.pictures = 3;
  const PackLayout layout = make_pack_layout(pack, 8);
  EXPECT_THAT(layout.cu_seqlens, ElementsAre(0, 3, 4, 6));
  EXPECT_THAT(layout.cu_pictures, ElementsAre(0, 1, 1, 3));
  EXPECT_THAT(layout.segment_ids, ElementsAre(1, 1, 1, 2, 3, 3, 0, 0));
  EXPECT_THAT(layout.position_ids, ElementsAre(0, 1, 2, 0, 0, 1, 0, 0));
  EXPECT_EQ(layout.longest, 3);
  EXPECT_THROW(make_pack_layout(pack, 5), ShapeError);
  pack.tokens = 7;
  EXPECT_THROW(make_pack_layout(pack, 8), ShapeError);
}

TEST(Packing, LossWeightsSumToOne) {
  std::vector<Pack> packs(2);
  packs[0].items = {{0, 0, 5, 0, 3}, {1, 1, 5, 0, 0}};
  packs[1].items = {{2, 2, 9, 0, 6}, {3, 3, 2, 0, 1}};
  const auto tokens = pack_loss_weights(packs, LossMean::kTokens);
  EXPECT_THAT(tokens, ElementsAre(ElementsAre(0.1, 0.0), ElementsAre(0.1, 0.1)));
  const auto samples = pack_loss_weights(packs, LossMean::kSamples);
  EXPECT_THAT(samples, ElementsAre(ElementsAre(1.0 / 9, 0.0), ElementsAre(1.0 / 18, 1.0 / 3)));
  packs[0].items = {{0, 0, 5, 0, 0}};
  packs.pop_back();
  EXPECT_THROW(pack_loss_weights(packs, LossMean::kTokens), DataError);
}

}  // namespace
}  // namespace longship::data
