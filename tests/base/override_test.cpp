#include <gtest/gtest.h>

#include <string>

#include "base/config_support.h"

namespace longship::config {
namespace {

using ::longship::testing::message_of;
using ::longship::testing::SampleConfig;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr std::string_view kFile = "steps: 5\ndata:\n  datasets:\n    - path: a\n    - path: b\n";

SampleConfig load_with(std::initializer_list<std::string_view> overrides) {
  Node root = parse_yaml_text(kFile, "x.yaml");
  for (const std::string_view text : overrides) apply_override(root, text);
  SampleConfig config;
  load(root, config);
  return config;
}

std::string error_of(std::string_view text) {
  return message_of([&] { load_with({text}); });
}

TEST(Override, ReplacesAddsAndReachesIntoLists) {
  const SampleConfig c =
      load_with({"steps=7", "optim.lr=1e-3", "data.datasets.1.weight=0.5", "optim.betas=[0.1, 0.2]",
                 "optim.ema=null", "output_dir=runs/a=b", "freeze=['x']", " keep_every = 3 "});
  EXPECT_EQ(c.steps, 7);
  EXPECT_EQ(c.optim.lr, 1e-3);
  EXPECT_EQ(c.data.datasets[1].weight, 0.5);
  EXPECT_EQ(c.data.datasets[1].path, "b");
  EXPECT_THAT(c.optim.betas, ElementsAre(0.1, 0.2));
  EXPECT_FALSE(c.optim.ema.has_value());
  EXPECT_EQ(c.output_dir, "runs/a=b");
  EXPECT_THAT(c.freeze, ElementsAre("x"));
  EXPECT_EQ(c.keep_every, 3);
}

TEST(Override, WorksWithoutAFile) {
  Node root;
  apply_override(root, "data.datasets=[{path: z}]");
  SampleConfig config;
  load(root, config);
  EXPECT_EQ(config.data.datasets.at(0).path, "z");
}

TEST(Override, KeysWithDots) {
  const SampleConfig c =
      load_with({"data.cameras={observation.image: base}", "data.cameras.observation.image=wrist",
                 "data.cameras.\"a.b\"=c"});
  EXPECT_THAT(c.data.cameras, ElementsAre(Pair("observation.image", "wrist"), Pair("a.b", "c")));
  EXPECT_THAT(error_of("data.cameras.a.b=c"), HasSubstr("write a key with dots in double quotes"));
}

TEST(Override, ProblemsNameTheOverride) {
  EXPECT_EQ(error_of("optim.lr=fast"),
            "override 'optim.lr=fast': 'optim.lr' is 'fast'; it must be a number from 0 to 1");
  EXPECT_EQ(error_of("optim.l=1"),
            "override 'optim.l=1': unknown key 'optim.l'; did you mean 'optim.lr'?");
  EXPECT_EQ(error_of("optm.lr=1"),
            "override 'optm.lr=1': unknown key 'optm'; did you mean 'optim'?");
}

TEST(Override, BrokenTexts) {
  EXPECT_EQ(error_of("optim.lr"),
            "override 'optim.lr': no '=' in it; write section.key=value, e.g. train.steps=1000");
  EXPECT_THAT(error_of("=3"), HasSubstr("a part of its key is empty"));
  EXPECT_THAT(error_of("optim..lr=3"), HasSubstr("a part of its key is empty"));
  EXPECT_THAT(error_of("optim.=3"), HasSubstr("a part of its key is empty"));
  EXPECT_THAT(error_of("\"a=3"), HasSubstr("no '='"));
  EXPECT_THAT(error_of("optim.lr="), HasSubstr("no value; write optim.lr=null"));
  EXPECT_THAT(error_of("steps=[1"), HasSubstr("override 'steps=[1'"));
}

TEST(Override, ListIndices) {
  EXPECT_EQ(error_of("data.datasets.2.path=c"),
            "override 'data.datasets.2.path=c': 'data.datasets' has items 0 to 1 (x.yaml:4), there "
            "is no item 2; set the whole "
            "list with data.datasets=[...]");
  EXPECT_THAT(error_of("data.datasets.path=c"),
              HasSubstr("'data.datasets' is a list (x.yaml:4); give the number of an item"));
  EXPECT_THAT(error_of("data.datasets.-1.path=c"), HasSubstr("give the number of an item"));
  EXPECT_THAT(error_of("shape.0=1"),
              HasSubstr("'shape' is not in the file, so there is no item 0 to change"));
  EXPECT_THAT(error_of("steps.x=1"),
              HasSubstr("'steps' is the single value '5' (x.yaml:1), it has no key 'x'"));
}

TEST(Override, DepthIsBounded) {
  std::string deep = "a";
  for (int i = 0; i < 100000; ++i) deep += ".a";
  EXPECT_THAT(error_of(deep + "=1"), HasSubstr("more than 64 parts"));
}

}  // namespace
}  // namespace longship::config
