// Two processes with GR00T follow one, as with Pi0.5; more processes in groot_follow_full_test.cpp.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>

#include "../models/groot_public_names.h"
#include "base/error.h"
#include "base/rng.h"
#include "bounds.h"
#include "groot_runs.h"
#include "io/weights.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using testing::groot_run;
using testing::losses_of;
using testing::worst_error;

class GrootParallel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    root_ = longship::testing::scratch_dir(std::string("parallel_") + GetParam());
  }
  void TearDown() override { fs::remove_all(root_); }
  std::vector<double> run(const std::string& name, int64_t world, const std::string& strategy,
                          std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"train.steps=10", "train.global_batch=4", "train.micro_batch=1",
                               "checkpoint.every=null", "parallel.strategy=" + strategy});
    return losses_of(groot_run(GetParam(), root_ / name, world, more));
  }
  fs::path root_;
};

TEST_P(GrootParallel, TwoFollowOne) {
  const auto one = run("one", 1, "none");
  ASSERT_EQ(one.size(), 10U);
  for (const char* strategy : {"ddp", "zero1", "fsdp"}) {
    const auto two = run(strategy, 2, strategy);
    fmt::print("{} {}: {:.2g}\n", GetParam(), strategy, worst_error(two, one));
    EXPECT_LE(worst_error(two, one), kFp32LossBound) << strategy;
  }
  if (GetParam() == std::string("groot_n16")) return;  // two more runs are enough
  // Saved with one strategy, gone on with another.
  run("half", 2, "zero1", {"train.stop_after=5"});
  const auto rest = run("half", 2, "fsdp");
  const std::vector<double> expected(one.end() - 5, one.end());
  fmt::print("{} zero1, then fsdp: {:.2g}\n", GetParam(), worst_error(rest, expected));
  EXPECT_LE(worst_error(rest, expected), kFp32LossBound);
}

// Of weights that no process holds as a whole, those that do not train keep a public file's bytes.
TEST_P(GrootParallel, DividedWeightsOfAPublicFileComeBack) {
  using models::GrootVersion;
  const bool n17 = GetParam() == std::string("groot_n17");
  const GrootVersion version = n17 ? GrootVersion::kN17 : GrootVersion::kN16;
  std::map<std::string, std::vector<uint16_t>> bits;  // bf16, of 0.008 to 0.03
  std::vector<io::TensorView> views;
  for (const auto& t :
       models::testing::groot_public_tensors(models::testing::groot_demo(version))) {
    const bool head = t.name == models::testing::groot_output_head(version);
    std::vector<uint16_t>& values = bits[t.name];
    if (head) values = bits.at(models::testing::groot_embedding(version));
    const RngKey key = make_key(3, RngStream::kTest, bits.size());
    for (int64_t i = 0; !head && i < t.numel(); ++i) {
      values.push_back((random_bits(key, static_cast<uint64_t>(i)) & 0x80ff) | 0x3c00);
    }
    views.push_back({t.name, io::DType::kBF16, t.shape, values.data()});
  }
  fs::create_directories(root_ / "public");
  io::write_safetensors(root_ / "public" / "model.safetensors", views);
  run("from_public", 2, "fsdp",
      {"model.checkpoint=" + (root_ / "public").string(), "model.tune_llm=false",
       "model.tune_visual=false", "model.tune_top_llm_layers=0", "model.state_dropout_prob=0",
       "optim.ema=null", "train.stop_after=3"});
  const io::Weights saved = io::open_weights(root_ / "from_public" / "latest");
  EXPECT_EQ(saved.tensors().size(), bits.size());
  int64_t changed = 0;
  for (const auto& [name, values] : bits) {
    const io::TensorInfo& info = saved.at(name);
    EXPECT_EQ(info.dtype, io::DType::kBF16) << name;
    ASSERT_EQ(info.num_bytes(), 2 * values.size()) << name;
    const bool same = std::memcmp(saved.data(info), values.data(), info.num_bytes()) == 0;
    const bool frozen = name.starts_with("backbone.");
    EXPECT_TRUE(same || !frozen) << name;
    changed += !same;
    // A table of slots: the first is not used.
    if (!name.ends_with(".W") && !name.ends_with(".b")) continue;
    EXPECT_EQ(std::memcmp(saved.data(info), values.data(), info.num_bytes() / 32), 0) << name;
  }
  EXPECT_GT(changed, 40);
}

// One process reads the files that go into its checkpoints; all hear of a broken one before they
// load weights.
TEST_P(GrootParallel, ABrokenFileOfTheFirstCheckpointStopsAllRanks) {
  const fs::path base = root_ / "base";
  fs::create_directories(base);
  std::ofstream(base / "model.safetensors") << "no weights";
  std::ofstream(base / "statistics.json") << R"({"gr1": {"state": [0, 1]}})";
  const auto ranks =
      testing::run_training(groot_run(GetParam(), root_ / "run", 2,
                                      {"model.checkpoint=" + base.string(), "train.steps=1",
                                       "train.global_batch=4", "parallel.strategy=ddp"}));
  ASSERT_EQ(ranks.size(), 2U);
  for (const testing::RankOutcome& rank : ranks) {
    EXPECT_EQ(rank.exit_code, static_cast<int>(ExitCode::kData));
    EXPECT_THAT(rank.error, ::testing::HasSubstr((base / "statistics.json").string() +
                                                 ": gr1.state is no object of groups"));
  }
  EXPECT_FALSE(fs::exists(root_ / "run"));
}

INSTANTIATE_TEST_SUITE_P(Both, GrootParallel, ::testing::Values("groot_n16", "groot_n17"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace longship::train
