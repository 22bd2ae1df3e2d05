// The recipe: loading, cross checks, comparison, and the frozen schema.
#include "train/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/config/load.h"
#include "base/error.h"
#include "base/fs.h"
#include "fake_family.h"
#include "support/paths.h"

namespace longship::train {
namespace {

using testing::fake_families;
using testing::fake_recipe;
using ::testing::HasSubstr;

std::string error_of(const std::vector<std::string>& overrides) {
  try {
    fake_recipe("runs/x", overrides);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "";
}

TEST(Recipe, LoadsAndFillsTheModelsDataBinding) {
  const Recipe r = fake_recipe("runs/x", {"data.cameras={front: observation.image}"});
  EXPECT_EQ(r.optim.lr, 0.01);
  EXPECT_EQ(r.train.num_micro(), 2);
  EXPECT_EQ(r.model->data.horizon, 4);
  ASSERT_EQ(r.model->data.cameras.size(), 1U);
  EXPECT_EQ(r.model->data.cameras[0].first, "front");
}

TEST(Recipe, DumpRoundTrips) {
  const Recipe r =
      fake_recipe("runs/x", {"optim.ema=0.999", "optim.groups=[{pattern: net.*, lr_scale: 0.5}]",
                             "checkpoint.keep_every=100"});
  const Recipe again = recipe_from(config::parse_yaml_text(dump(r), "dump.yaml"), fake_families());
  EXPECT_EQ(flatten(r), flatten(again));
  EXPECT_TRUE(compare(r, again).empty());
}

TEST(Recipe, UnknownKeyNamesLineAndNearestKey) {
  const auto folder = longship::testing::scratch_dir("recipe_typo");
  std::ofstream(folder / "bad.yaml") << "model: {family: fake}\n"
                                        "data: {datasets: [{path: x}]}\n"
                                        "optim:\n"
                                        "  lerning_rate: 1e-4\n"
                                        "  weight_decy: 0.1\n"
                                        "output_dir: runs/x\n";
  try {
    load_recipe(folder / "bad.yaml", {}, fake_families());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("bad.yaml:4"));
    EXPECT_THAT(error.what(), HasSubstr("optim.lerning_rate"));
    EXPECT_THAT(error.what(), HasSubstr("bad.yaml:5"));  // every problem at once
    EXPECT_THAT(error.what(), HasSubstr("weight_decay"));
  }
}

TEST(Recipe, MissingFileIsAConfigError) {
  EXPECT_THROW(load_recipe("no/such/recipe.yaml", {}, fake_families()), ConfigError);
}

TEST(Recipe, FamilyIsRequiredAndChecked) {
  EXPECT_THROW(recipe_from(config::parse_yaml_text("output_dir: x\n", "r.yaml"), fake_families()),
               ConfigError);
  EXPECT_THAT(error_of({"model.family=pi06"}), HasSubstr("there is no model family 'pi06'"));
}

TEST(Recipe, OptionsWithoutEffectAreErrors) {
  EXPECT_THAT(error_of({"train.max_skipped_steps=3"}),
              HasSubstr("no effect with on_nonfinite 'stop'"));
  EXPECT_THAT(error_of({"eval.draws=3"}), HasSubstr("no effect with eval.open_loop false"));
  EXPECT_THAT(error_of({"data.datasets.0.weight=0.5"}),
              HasSubstr("no effect with a single dataset"));
  EXPECT_THAT(error_of({"data.workers=0"}), HasSubstr("data.prefetch"));
  EXPECT_THAT(error_of({"optim.weight_decay_ramp.end=0.2"}), HasSubstr("weight_decay_ramp"));
}

TEST(Recipe, ValuesThatDoNotFitEachOtherAreErrors) {
  EXPECT_THAT(error_of({"train.micro_batch=3"}),
              HasSubstr("train.micro_batch: 3 does not divide train.global_batch 8"));
  EXPECT_THAT(error_of({"train.stop_after=21"}),
              HasSubstr("train.stop_after: 21 is beyond train.steps 20"));
  EXPECT_THAT(error_of({"optim.betas=[0.9]"}), HasSubstr("optim.betas"));
  EXPECT_THAT(error_of({"optim.betas=[0.9, 1.0]"}), HasSubstr("optim.betas"));
  EXPECT_THAT(error_of({"data.datasets=[]"}), HasSubstr("data.datasets: give one dataset"));
  EXPECT_THAT(error_of({"data.val_episodes=0", "eval.open_loop=true"}),
              HasSubstr("data.val_episodes is 0"));
  EXPECT_THAT(error_of({"output_dir=\"\""}), HasSubstr("output_dir: required"));
  EXPECT_THAT(error_of({"perf.hand_over_gradients=false", "parallel.strategy=ddp"}),
              HasSubstr("perf.hand_over_gradients: has no effect with parallel.strategy ddp"));
  EXPECT_THAT(error_of({"perf.hand_over_gradients=false", "train.cuda_graph=per_microbatch"}),
              HasSubstr("perf.hand_over_gradients: train.cuda_graph per_microbatch keeps"));
}

TEST(Recipe, SeveralFaultsAreListedTogether) {
  const std::string message = error_of({"train.micro_batch=3", "train.stop_after=21"});
  EXPECT_THAT(message, HasSubstr("micro_batch"));
  EXPECT_THAT(message, HasSubstr("stop_after"));
}

TEST(Recipe, RangesAndWordsAreChecked) {
  EXPECT_THAT(error_of({"train.dtype=fp16"}), HasSubstr("train.dtype"));
  EXPECT_THAT(error_of({"optim.lr=-1"}), HasSubstr("optim.lr"));
  EXPECT_THAT(error_of({"train.steps=0"}), HasSubstr("train.steps"));
  EXPECT_THAT(error_of({"log.tensorboard=False1"}), HasSubstr("log.tensorboard"));
}

// Printing and comparing must leave a recipe's lists alone.
TEST(Recipe, ItemsOfListsAreComparedAndKept) {
  const Recipe a = fake_recipe("runs/x", {"optim.groups=[{pattern: net.*, lr_scale: 0.5}]"});
  const Recipe b = fake_recipe("runs/x", {"optim.groups=[{pattern: net.*, lr_scale: 0.25}]"});
  const std::vector<Difference> found = compare(a, b);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].key, "optim.groups.0.lr_scale");
  EXPECT_EQ(found[0].before, "0.5");
  EXPECT_EQ(found[0].after, "0.25");
  EXPECT_TRUE(found[0].breaks_exactness);
  EXPECT_EQ(a.optim.groups[0].lr_scale, 0.5);
  EXPECT_EQ(a.data.datasets[0].path, "fake_dataset");
}

TEST(Recipe, CompareTellsWhatBreaksExactness) {
  const Recipe a = fake_recipe("runs/x");
  const Recipe b = fake_recipe("runs/y", {"train.seed=8", "log.every=5", "data.workers=1"});
  std::map<std::string, bool> breaks;
  for (const Difference& d : compare(a, b)) breaks[d.key] = d.breaks_exactness;
  EXPECT_EQ(breaks, (std::map<std::string, bool>{{"train.seed", true},
                                                 {"log.every", false},
                                                 {"data.workers", false},
                                                 {"output_dir", false}}));
}

TEST(Recipe, ChangedLengthMattersOnlyThroughTheSchedule) {
  const std::vector<std::string> open_end = {"optim.schedule.decay_steps=null"};
  std::vector<std::string> longer = open_end;
  longer.push_back("train.steps=40");
  const auto is_breaking = [](const std::vector<Difference>& all) {
    return std::any_of(all.begin(), all.end(),
                       [](const Difference& d) { return d.breaks_exactness; });
  };
  EXPECT_TRUE(is_breaking(compare(fake_recipe("r", open_end), fake_recipe("r", longer))));
  EXPECT_FALSE(is_breaking(compare(fake_recipe("r"), fake_recipe("r", {"train.steps=40"}))));
}

// Set LS_UPDATE_SCHEMA=1 to rewrite the file after a deliberate change.
TEST(Recipe, SchemaIsFrozen) {
  const std::string schema = config::schema(default_recipe(testing::fake_lookup("fake")));
  const auto file = longship::testing::source_root() / "tests/train/recipe_schema.txt";
  if (std::getenv("LS_UPDATE_SCHEMA") != nullptr) write_file_atomic(file, schema);
  EXPECT_EQ(schema, read_file(file, 1 << 20)) << "an option of the recipe changed";
}

}  // namespace
}  // namespace longship::train
