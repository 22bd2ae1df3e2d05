#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "base/config_support.h"
#include "base/rng.h"

namespace longship::config {
namespace {

using ::longship::testing::load_sample;
using ::longship::testing::SampleConfig;
using ::testing::HasSubstr;

SampleConfig filled() {
  SampleConfig c;
  c.data.datasets = {{"data/a", 1.0 / 3}, {"with space: # and \"quotes\"", 2}};
  c.data.val_episodes.count = 3;
  c.data.cameras = {{"base_0_rgb", "observation.images.top"}, {"odd: key", "- x"}};
  c.optim.lr = 0.1 + 0.2;
  c.optim.ema = 5e-324;
  c.keep_every = std::numeric_limits<int64_t>::max();
  c.checkpoint = "null";
  c.freeze = {"",    "true", "1e5", "~", "line\nbreak", "\x01\x7f",
              "ünï", "a: b", "[x",  "#", "\\",          "-"};
  return c;
}

TEST(DumpYaml, IsReadable) {
  SampleConfig c;
  c.data.datasets = {{"data/a", 1}};
  c.data.cameras = {{"base", "top"}};
  EXPECT_EQ(dump_yaml(c), R"(data:
  datasets:
    - path: data/a
      weight: 1.0
  val_episodes: 0
  cameras:
    base: top
  horizon: 50
optim:
  name: adamw
  lr: 2.5e-05
  betas: [0.9, 0.95]
  ema: null
  warmup: 1000
steps: 30000
deterministic: false
keep_every: null
checkpoint: null
shape: []
freeze: []
output_dir: runs/x
)");
}

TEST(DumpYaml, LoadsBackToTheSameValues) {
  const SampleConfig before = filled();
  const std::string text = dump_yaml(before);
  const SampleConfig after = load_sample(text);
  EXPECT_EQ(dump_yaml(after), text);
  EXPECT_EQ(after.optim.lr, 0.1 + 0.2);
  EXPECT_EQ(after.optim.ema, 5e-324);
  EXPECT_EQ(after.data.datasets[0].weight, 1.0 / 3);
  EXPECT_EQ(after.data.datasets[1].path, before.data.datasets[1].path);
  EXPECT_EQ(after.data.cameras, before.data.cameras);
  EXPECT_EQ(after.keep_every, before.keep_every);
  EXPECT_EQ(after.checkpoint, "null");
  EXPECT_EQ(after.freeze, before.freeze);
}

TEST(DumpYaml, RandomNumbersRoundTripBitForBit) {
  for (uint64_t i = 0; i < 300; ++i) {
    double value = 0;
    const uint64_t bits =
        random_bits(make_key(3, RngStream::kTest), i) & 0x3FFFFFFFFFFFFFFFULL;  // 0 <= value < 2
    std::memcpy(&value, &bits, sizeof value);
    SampleConfig c;
    c.data.datasets = {{"x", value}};
    EXPECT_EQ(load_sample(dump_yaml(c)).data.datasets[0].weight, value);
  }
}

TEST(DumpYaml, RandomTextsRoundTrip) {
  for (uint64_t i = 0; i < 300; ++i) {
    std::string text;
    const uint64_t length = random_bits(make_key(4, RngStream::kTest), i) % 12;
    for (uint64_t j = 0; j < length; ++j) {
      text += static_cast<char>(1 + random_bits(make_key(5, RngStream::kTest, i), j) % 127);
    }
    SampleConfig c;
    c.output_dir = text;
    c.freeze = {text, "x"};
    c.data.cameras = {{"k" + text, text}};
    const SampleConfig after = load_sample(dump_yaml(c));
    EXPECT_EQ(after.output_dir, text);
    EXPECT_EQ(after.freeze, c.freeze);
    EXPECT_EQ(after.data.cameras, c.data.cameras);
  }
}

TEST(Schema, OneStableLinePerField) {
  const SampleConfig c = filled();
  const std::string text = schema(c);
  EXPECT_THAT(text, HasSubstr("data.datasets[].path: text, required\n"));
  EXPECT_THAT(text, HasSubstr("data.datasets[].weight: number from 0 to 100 = 1.0\n"));
  EXPECT_THAT(text, HasSubstr("optim.name: one of adamw | sgd = adamw\n"));
  EXPECT_THAT(schema(SampleConfig()), HasSubstr("optim.lr: number from 0 to 1 = 2.5e-05\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 17);
  EXPECT_EQ(c.data.datasets.size(), 2u);  // printing a schema leaves lists alone
}

TEST(Describe, ShowsTypeDefaultUnitRangeAndSentence) {
  const std::string text = describe(SampleConfig());
  EXPECT_THAT(text, HasSubstr("data:  Datasets and windows.\n"));
  EXPECT_THAT(text, HasSubstr("  datasets: (list of:)  What to train on.\n    path  (text, "
                              "required)\n        Folder of the dataset.\n"));
  EXPECT_THAT(text, HasSubstr("  horizon  (whole number from 1 to 1000 frames, default 50)\n      "
                              "Length of an action chunk.\n"));
}

}  // namespace
}  // namespace longship::config
