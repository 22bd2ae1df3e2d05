#include <gtest/gtest.h>

#include <string>

#include "base/config_support.h"

namespace longship::config {
namespace {

using ::longship::testing::load_error;
using ::longship::testing::load_sample;
using ::longship::testing::SampleConfig;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

TEST(ConfigLoad, EveryKindOfField) {
  const SampleConfig c = load_sample(R"(
data:
  datasets:
    - {path: data/a, weight: 2}
    - path: "data/b"
  val_episodes: [0, 4]
  cameras: {base_0_rgb: observation.images.top, left: null_camera}
  horizon: +16
optim: {name: sgd, lr: 1e-4, betas: [.5, 1], ema: 0.999}
steps: 10
deterministic: true
keep_every: 5000
checkpoint: weights/model.safetensors
shape: [1, 2, 3]
freeze: [vision, "text"]
output_dir: 2024
)");
  ASSERT_EQ(c.data.datasets.size(), 2u);
  EXPECT_EQ(c.data.datasets[0].weight, 2);
  EXPECT_EQ(c.data.datasets[1].path, "data/b");
  EXPECT_EQ(c.data.datasets[1].weight, 1);
  EXPECT_TRUE(c.data.val_episodes.is_list);
  EXPECT_THAT(c.data.val_episodes.list, ElementsAre(0, 4));
  EXPECT_THAT(c.data.cameras, ElementsAre(Pair("base_0_rgb", "observation.images.top"),
                                          Pair("left", "null_camera")));
  EXPECT_EQ(c.data.horizon, 16);
  EXPECT_EQ(c.optim.name, "sgd");
  EXPECT_EQ(c.optim.lr, 1e-4);
  EXPECT_THAT(c.optim.betas, ElementsAre(0.5, 1.0));
  EXPECT_EQ(c.optim.ema, 0.999);
  EXPECT_EQ(c.steps, 10);
  EXPECT_TRUE(c.deterministic);
  EXPECT_EQ(c.keep_every, 5000);
  EXPECT_EQ(c.checkpoint, "weights/model.safetensors");
  EXPECT_THAT(c.shape, ElementsAre(1, 2, 3));
  EXPECT_THAT(c.freeze, ElementsAre("vision", "text"));
  EXPECT_EQ(c.output_dir, "2024");
}

TEST(ConfigLoad, AbsentFieldsKeepTheirDefaults) {
  for (const char* text : {"", "optim:\n", "{}"}) {
    const SampleConfig c = load_sample(text);
    EXPECT_EQ(c.steps, 30000);
    EXPECT_EQ(c.optim.lr, 2.5e-5);
    EXPECT_FALSE(c.optim.ema.has_value());
  }
}

TEST(ConfigLoad, UnknownKeySuggestsTheNearestOne) {
  EXPECT_EQ(load_error("optim:\n  lr: 1e-4\n  warmpu: 3\n"),
            "x.yaml:3: unknown key 'optim.warmpu'; did you mean 'optim.warmup'?");
  EXPECT_THAT(load_error("output-dir: x\n"), HasSubstr("did you mean 'output_dir'?"));
}

TEST(ConfigLoad, UnknownKeyFindsItsProperSection) {
  EXPECT_EQ(load_error("lr: 1e-4\n"), "x.yaml:1: unknown key 'lr'; did you mean 'optim.lr'?");
}

TEST(ConfigLoad, UnknownKeyWithoutLikenessListsWhatThereIs) {
  EXPECT_EQ(load_error("optim: {zzzzzz: 1}\n"),
            "x.yaml:1: unknown key 'optim.zzzzzz'; known keys there: name, lr, betas, ema, warmup");
}

TEST(ConfigLoad, WrongTypesNameValueAndExpectation) {
  EXPECT_EQ(load_error("optim: {lr: fast}\n"),
            "x.yaml:1: 'optim.lr' is 'fast'; it must be a number from 0 to 1");
  EXPECT_EQ(load_error("optim: {lr: \"1e-4\"}\n"),
            "x.yaml:1: 'optim.lr' is \"1e-4\"; it must be a number from 0 to 1 (without quotes)");
  EXPECT_EQ(load_error("deterministic: yes\n"),
            "x.yaml:1: 'deterministic' is 'yes'; it must be true or false");
  EXPECT_EQ(load_error("steps: null\n"),
            "x.yaml:1: 'steps' is null; it must be a whole number >= 1 steps");
  EXPECT_EQ(load_error("optim: 3\n"),
            "x.yaml:1: 'optim' is '3'; it must be a section of 'key: value' lines");
  EXPECT_THAT(load_error("freeze: vision\n"),
              HasSubstr("'freeze' is 'vision'; it must be a list of texts"));
  EXPECT_THAT(load_error("freeze: null\n"), HasSubstr("write [] for an empty one"));
  EXPECT_THAT(load_error("output_dir: [1]\n"),
              HasSubstr("'output_dir' is a list of 1 item; it must be a text"));
  EXPECT_THAT(load_error("data: {datasets: {path: x}}\n"),
              HasSubstr("'data.datasets' is a section with 1 key"));
  EXPECT_THAT(load_error("data:\n  datasets:\n"),
              HasSubstr("'data.datasets' is null; it must be a list of sections"));
  EXPECT_THAT(load_error("- 1\n"), HasSubstr("'configuration' is a list of 1 item"));
}

TEST(ConfigLoad, WholeNumbersAreNotRounded) {
  EXPECT_THAT(
      load_error("steps: 1e4\n"),
      HasSubstr("'steps' is '1e4'; it must be a whole number >= 1 steps; write it as 10000"));
  EXPECT_THAT(load_error("steps: 1.5\n"), HasSubstr("'steps' is '1.5'; it must be a whole number"));
  EXPECT_THAT(load_error("steps: 99999999999999999999\n"), HasSubstr("it must be a whole number"));
  EXPECT_THAT(load_error("steps: 0x10\n"), HasSubstr("it must be a whole number"));
}

TEST(ConfigLoad, RangesAreCheckedWithTheirUnit) {
  EXPECT_EQ(load_error("data: {horizon: 0}\n"),
            "x.yaml:1: 'data.horizon' is '0'; it must be a whole number from 1 to 1000 frames");
  EXPECT_THAT(load_error("optim: {betas: [0.9, 1.5]}\n"), HasSubstr("'optim.betas.1' is '1.5'"));
  EXPECT_THAT(load_error("data: {val_episodes: -1}\n"),
              HasSubstr("it must be a whole number >= 0"));
  EXPECT_THAT(load_error("keep_every: 0\n"),
              HasSubstr("'keep_every' is '0'; it must be a whole number >= 1 steps"));
}

TEST(ConfigLoad, NumbersMustBeFinite) {
  for (const char* value : {"nan", ".inf", "inf", "1e999", "-1e999"}) {
    EXPECT_THAT(load_error(fmt::format("optim: {{lr: {}}}\n", value)),
                HasSubstr("it must be a number from 0 to 1"))
        << value;
  }
}

TEST(ConfigLoad, ChoicesListTheirWords) {
  EXPECT_EQ(
      load_error("optim: {name: adam}\n"),
      "x.yaml:1: 'optim.name' is 'adam'; it must be one of adamw, sgd; did you mean 'adamw'?");
}

TEST(ConfigLoad, MissingRequiredFieldNamesItsItem) {
  EXPECT_EQ(load_error("data:\n  datasets:\n    - path: a\n    - weight: 2\n"),
            "x.yaml:4: 'data.datasets.1.path' is missing (text: Folder of the dataset.)");
}

TEST(ConfigLoad, AllProblemsComeAtOnceInFileOrder) {
  const std::string message = load_error("stps: 3\noptim:\n  lr: -1\n  foo: 1\ndeterministic: 1\n");
  EXPECT_THAT(message, ::testing::StartsWith(
                           "4 problems in the configuration:\n  x.yaml:1: unknown key 'stps'"));
  const size_t lr = message.find("x.yaml:3"), foo = message.find("x.yaml:4"),
               det = message.find("x.yaml:5");
  EXPECT_LT(lr, foo);
  EXPECT_LT(foo, det);
  EXPECT_NE(det, std::string::npos);
}

TEST(ConfigLoad, ManyProblemsAreCountedNotAllPrinted) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += fmt::format("nokey{}: 1\n", i);
  const std::string message = load_error(text);
  EXPECT_THAT(message, ::testing::StartsWith("5000 problems"));
  EXPECT_THAT(message, HasSubstr("and 4950 more"));
  EXPECT_LT(message.size(), 20000u);
}

TEST(ConfigLoad, AFieldWithAProblemKeepsItsValue) {
  SampleConfig config;
  EXPECT_THROW(
      load(parse_yaml_text("optim: {lr: 7, betas: [0.1, x]}\nsteps: 7\n", "x.yaml"), config),
      ConfigError);
  EXPECT_EQ(config.optim.lr, 2.5e-5);
  EXPECT_THAT(config.optim.betas, ElementsAre(0.9, 0.95));
  EXPECT_EQ(config.steps, 7);
}

TEST(ConfigLoad, PrefixCompletesThePath) {
  longship::testing::SampleOptim optim;
  const Node root = parse_yaml_text("train:\n  optim:\n    lr: x\n", "x.yaml");
  EXPECT_THAT(longship::testing::message_of(
                  [&] { load(*root.find_path("train.optim"), optim, "train.optim"); }),
              HasSubstr("x.yaml:3: 'train.optim.lr' is 'x'"));
}

TEST(ConfigLoad, HostileTextInMessagesIsEscapedAndCut) {
  const std::string message =
      load_error("optim: {lr: \"\\x1b[31m" + std::string(500, 'a') + "\"}\n");
  EXPECT_THAT(message, HasSubstr("\\x1b[31m"));
  EXPECT_THAT(message, Not(HasSubstr("\x1b")));
  EXPECT_LT(message.size(), 300u);
}

TEST(Nearest, PrefersFewEditsThenContainment) {
  const std::vector<std::string> names = {"global_batch", "micro_batch", "steps", "seed"};
  EXPECT_EQ(nearest("stpes", names), "steps");
  EXPECT_EQ(nearest("Global-Batch", names), "global_batch");
  EXPECT_EQ(nearest("batch", names), "global_batch");
  EXPECT_EQ(nearest("xyzzy", names), "");
  EXPECT_EQ(nearest("", names), "");
}

}  // namespace
}  // namespace longship::config
