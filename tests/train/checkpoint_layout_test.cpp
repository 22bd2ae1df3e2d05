// States of any number of ranks: loading, resharding, consolidating, comparing.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/log.h"
#include "base/sha256.h"
#include "checkpoint_support.h"
#include "support/paths.h"
#include "train/checkpoint_tools.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using testing::bytes_of_file;
using ::testing::HasSubstr;
using testing::holds_known_state;
using testing::known_parts;
using testing::known_state;

class CheckpointLayoutTest : public ::testing::Test {
 protected:
  void SetUp() override {
    log::init(log::Level::kOff);
    root_ = longship::testing::scratch_dir(
        std::string("checkpoint_layout_") +
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override {
    log::init(log::Level::kInfo);
    fs::remove_all(root_);
  }
  fs::path saved(const std::string& run, int64_t step, bool with_average = false) {
    CheckpointStore store(root_ / run);
    SingleProcess alone;
    return save_parts(store, alone, known_parts(step, 0, 1, with_average));
  }
  template <class Action>
  std::string error_of(const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      code_ = error.code();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }
  fs::path root_;
  ExitCode code_ = ExitCode::kOk;
};

TEST_F(CheckpointLayoutTest, EvenSharesCoverEveryElementOnce) {
  const std::vector<StateSlice> all = whole_slices(known_state(3, true));
  int64_t total = 0;
  for (const StateSlice& s : all) total += s.end - s.begin;
  for (int64_t world : {1, 2, 3, 4, 7, 400}) {
    std::map<std::string, std::vector<int>> covered;
    std::map<std::string, at::Tensor> whole;
    for (const StateSlice& s : all) {
      covered[s.name].resize(static_cast<size_t>(s.end));
      whole[s.name] = s.tensor;
    }
    std::set<std::string> empty;
    for (int64_t rank = 0; rank < world; ++rank) {
      int64_t mine = 0;
      for (const StateSlice& s : even_share(all, rank, world)) {
        if (s.begin == s.end) {
          EXPECT_TRUE(empty.insert(s.name).second);
        }
        for (int64_t i = s.begin; i < s.end; ++i) ++covered[s.name][static_cast<size_t>(i)];
        EXPECT_TRUE(s.tensor.view({-1}).equal(
            whole[s.name].view({-1}).narrow(0, s.begin, s.end - s.begin)));
        mine += s.end - s.begin;
      }
      EXPECT_LE(mine, total / world + 1);
      EXPECT_GE(mine, total / world);
    }
    for (const auto& [name, counts] : covered) {
      EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](int n) { return n == 1; })) << name;
    }
    EXPECT_EQ(empty.size(), 4U);  // the four state tensors of "none"
  }
}

// Every layout gives every other one its slices, and back again byte for byte.
TEST_F(CheckpointLayoutTest, ReshardingThereAndBackIsTheIdentity) {
  const fs::path one = saved("run", 9);
  for (int64_t first : {2, 3, 4}) {
    const fs::path a = root_ / ("first" + std::to_string(first));
    reshard_checkpoint(one, first, a);
    EXPECT_EQ(check_manifest(a), "");
    EXPECT_TRUE(verify_checkpoint(a).faults.empty());
    EXPECT_TRUE(holds_known_state(a, 9));
    for (int64_t second : {1, 2, 3, 4, 9}) {
      const fs::path b = root_ / "second", c = root_ / "third";
      reshard_checkpoint(a, second, b);
      EXPECT_EQ(io::ShardedState::open(b / "state").index().world_size, second);
      EXPECT_TRUE(holds_known_state(b, 9));
      reshard_checkpoint(b, first, c);
      for (int64_t rank = 0; rank < first; ++rank) {
        const std::string file = "state/" + io::shard_file_name(rank, first);
        EXPECT_TRUE(bytes_of_file(a / file) == bytes_of_file(c / file)) << file;
      }
      for (const char* file : {"state/index.json", "state/manifest.json", "state/trainer.json",
                               "model.safetensors", "config.yaml"}) {
        EXPECT_TRUE(bytes_of_file(a / file) == bytes_of_file(c / file)) << file;
      }
      fs::remove_all(b);
      fs::remove_all(c);
    }
  }
  EXPECT_THAT(error_of([&] { reshard_checkpoint(one, 0, root_ / "x"); }), HasSubstr("--world 0"));
  EXPECT_EQ(code_, ExitCode::kConfig);
  EXPECT_THAT(error_of([&] { reshard_checkpoint(one, 2, root_ / "first2"); }),
              HasSubstr("exists already"));
  EXPECT_EQ(code_, ExitCode::kConfig);
}

// A rank of any world reads its elements from a checkpoint of any other, cut elsewhere.
TEST_F(CheckpointLayoutTest, EveryWorldLoadsItsSlicesFromEveryOther) {
  const fs::path one = saved("run", 4);
  for (int64_t written : {1, 2, 3, 4}) {
    const fs::path folder = root_ / ("written" + std::to_string(written));
    reshard_checkpoint(one, written, folder);
    const io::ShardedState state = io::ShardedState::open(folder / "state");
    for (int64_t world : {1, 2, 3, 4, 5}) {
      for (int64_t rank = 0; rank < world; ++rank) {
        const std::vector<StateSlice> expected = known_parts(4, rank, world).state;
        std::vector<StateSlice> loaded = expected;
        for (StateSlice& s : loaded) s.tensor = at::zeros({s.end - s.begin});
        load_slices(state, loaded);
        for (size_t i = 0; i < loaded.size(); ++i) {
          EXPECT_TRUE(loaded[i].tensor.equal(expected[i].tensor.reshape({-1})))
              << expected[i].name << " " << expected[i].begin;
        }
      }
    }
  }
}

TEST_F(CheckpointLayoutTest, WhatDoesNotFitTheModelIsListedAtOnce) {
  const fs::path one = saved("run", 4);
  const io::ShardedState state = io::ShardedState::open(one / "state");
  std::vector<io::TensorSpec> expected;
  for (const io::ShardedTensor& t : state.tensors()) expected.push_back({t.name, t.dtype, t.shape});
  check_state(state, expected);
  expected[0].shape = {2, 2};
  expected[1].dtype = io::DType::kBF16;
  expected[2].name = "exp_avg.other";
  const std::string message = error_of([&] { check_state(state, expected); });
  EXPECT_THAT(message, HasSubstr((one / "state").string()));
  EXPECT_THAT(message,
              HasSubstr("wrong shape or type of exp_avg.a.bias: [1] F32 in the checkpoint, "
                        "[2, 2] F32 expected"));
  EXPECT_THAT(message, HasSubstr("[5, 7] BF16 expected"));
  EXPECT_THAT(message, HasSubstr("missing exp_avg.other"));
  EXPECT_THAT(message, HasSubstr("unexpected exp_avg.b.weight [3, 2, 11] F32"));
  EXPECT_EQ(code_, ExitCode::kCheckpoint);
}

TEST_F(CheckpointLayoutTest, SlicesThatOverlapOrDoNotFitAreRefused) {
  fs::create_directories(root_ / "state");
  const at::Tensor t = at::zeros({4});
  const auto write = [&](const std::vector<StateSlice>& slices) {
    return error_of([&] { write_shard(root_, 0, 2, slices); });
  };
  EXPECT_THAT(write({{"x", 0, 4, {8}, t}, {"x", 3, 7, {8}, t}}), HasSubstr("'x' overlap"));
  EXPECT_THAT(write({{"x", 0, 3, {8}, t}}), HasSubstr("'x' [0, 3)"));
  EXPECT_THAT(write({{"x", 6, 10, {8}, t}}), HasSubstr("'x' [6, 10) of [8]"));
  // Adjacent ones become one.
  write_shard(root_, 0, 1, std::vector<StateSlice>{{"x", 4, 8, {8}, t}, {"x", 0, 4, {8}, t}});
  write_shard_index(root_, 1, "none");
  EXPECT_EQ(io::ShardedState::open(root_ / "state").at("x").slices.size(), 1U);
}

TEST_F(CheckpointLayoutTest, ConsolidationGivesTheWeightsFileByteForByte) {
  for (const bool average : {false, true}) {
    const fs::path one = saved(average ? "average" : "plain", 7, average);
    const fs::path three = root_ / ("three" + std::to_string(average));
    reshard_checkpoint(one, 3, three);
    const fs::path file = root_ / "w.safetensors";
    consolidate_checkpoint(three, file, {});
    EXPECT_TRUE(bytes_of_file(file) == bytes_of_file(one / "model.safetensors"));
    fs::remove(file);
    consolidate_checkpoint(three, file, {"weights", "fp32"});
    const auto masters = io::load_tensors(file);
    for (const auto& [name, tensor] : known_state(7, average)) {
      if (!name.starts_with("weights.")) continue;
      EXPECT_TRUE(masters.at(name.substr(8)).equal(tensor)) << name;
    }
    EXPECT_TRUE(
        masters.at("frozen").equal(io::load_tensors(one / "model.safetensors").at("frozen")));
    fs::remove(file);
  }
  const fs::path out = root_ / "public";
  consolidate_checkpoint(root_ / "three0", out, {"auto", "bf16"});
  EXPECT_TRUE(fs::exists(out / "config.yaml"));
  EXPECT_FALSE(fs::exists(out / "state"));
  EXPECT_EQ(io::load_tensors(out).at("frozen").scalar_type(), at::kBFloat16);
  EXPECT_THAT(error_of([&] { consolidate_checkpoint(root_ / "three0", out, {}); }),
              HasSubstr("exists already"));
  EXPECT_EQ(code_, ExitCode::kConfig);
  EXPECT_THAT(error_of([&] {
                consolidate_checkpoint(root_ / "three0", root_ / "y", {"ema", "keep"});
              }),
              HasSubstr("no moving average"));
  EXPECT_FALSE(fs::exists(root_ / "y"));
}

TEST_F(CheckpointLayoutTest, VerifyListsEveryFault) {
  const fs::path one = saved("run", 7);
  const fs::path three = root_ / "three";
  reshard_checkpoint(one, 3, three);
  const Verified good = verify_checkpoint(three);
  EXPECT_TRUE(good.faults.empty());
  EXPECT_EQ(good.step, 7);
  EXPECT_EQ(good.world_size, 3);
  EXPECT_EQ(good.num_tensors, 15);
  fs::remove(three / "config.yaml");
  const fs::path shard = three / "state" / io::shard_file_name(1, 3);
  fs::resize_file(shard, fs::file_size(shard) - 3);
  std::ofstream(three / "extra") << "x";
  const Verified bad = verify_checkpoint(three);
  const std::string all = ::testing::PrintToString(bad.faults);
  EXPECT_THAT(all, HasSubstr("config.yaml is missing"));
  EXPECT_THAT(all, HasSubstr("optimizer.r0001-of-0003.safetensors has"));
  EXPECT_THAT(all, HasSubstr("extra is not in the manifest"));
  EXPECT_THAT(check_manifest(three), HasSubstr("config.yaml is missing"));
}

TEST_F(CheckpointLayoutTest, ADamagedShardSendsTheRunToTheCheckpointBefore) {
  const fs::path run = root_ / "run";
  reshard_checkpoint(saved("source", 7), 3, run / "checkpoints/step_7");
  reshard_checkpoint(saved("source", 8), 3, run / "checkpoints/step_8");
  const CheckpointStore store(run);
  EXPECT_EQ(store.newest_valid(), 8);
  // One bit of one value.
  const fs::path shard = store.folder_of(8) / "state" / io::shard_file_name(2, 3);
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x55');
  file.close();
  std::vector<Rejected> rejected;
  EXPECT_EQ(store.newest_valid(&rejected), 7);
  ASSERT_EQ(rejected.size(), 1U);
  EXPECT_THAT(rejected[0].reason, HasSubstr("optimizer.r0002-of-0003.safetensors does not match"));
}

TEST_F(CheckpointLayoutTest, DiffFindsWhatDiffers) {
  const fs::path one = saved("run", 7);
  const fs::path four = root_ / "four";
  reshard_checkpoint(one, 4, four);
  for (const TensorDiff& d : diff_checkpoints(one, four)) {
    EXPECT_EQ(d.kind, TensorDiff::Kind::kEqual) << d.part << " " << d.name;
  }
  EXPECT_EQ(diff_checkpoints(one, four).size(), 6U + 15U);

  // By hand: one value, one dtype, one shape, one name.
  const auto save = [&](const std::string& name, const io::NamedTensors& tensors) {
    io::save_tensors(root_ / name, tensors);
    return root_ / name;
  };
  at::Tensor x = at::zeros({3, 5}), y = x.clone();
  y.view({-1})[7] = -0.5;
  y.view({-1})[8] = 0.25;
  at::Tensor nan = at::zeros({2});
  nan[1] = std::numeric_limits<float>::quiet_NaN();
  at::Tensor minus = at::zeros({2});
  minus[0] = -0.0;
  const fs::path a = save("a.safetensors", {{"same", x},
                                            {"value", x},
                                            {"dtype", x},
                                            {"shape", x},
                                            {"gone", x},
                                            {"nan", at::zeros({2})},
                                            {"zero", at::zeros({2})}});
  const fs::path b = save("b.safetensors", {{"same", x},
                                            {"value", y},
                                            {"dtype", y.to(at::kBFloat16)},
                                            {"shape", x.view({5, 3})},
                                            {"new", x},
                                            {"nan", nan},
                                            {"zero", minus}});
  std::map<std::string, TensorDiff> found;
  for (const TensorDiff& d : diff_checkpoints(a, b)) found[d.name] = d;
  EXPECT_EQ(found.at("same").kind, TensorDiff::Kind::kEqual);
  EXPECT_EQ(found.at("value").kind, TensorDiff::Kind::kDiffers);
  EXPECT_EQ(found.at("value").num_unequal, 2);
  EXPECT_EQ(found.at("value").max_abs, 0.5);
  EXPECT_EQ(found.at("dtype").kind, TensorDiff::Kind::kOtherDtype);
  EXPECT_EQ(found.at("dtype").max_abs, 0.5);
  EXPECT_EQ(found.at("shape").kind, TensorDiff::Kind::kOtherShape);
  EXPECT_EQ(found.at("gone").kind, TensorDiff::Kind::kOnlyA);
  EXPECT_EQ(found.at("new").kind, TensorDiff::Kind::kOnlyB);
  EXPECT_TRUE(std::isnan(found.at("nan").max_abs));
  EXPECT_EQ(found.at("zero").kind, TensorDiff::Kind::kDiffers);
  EXPECT_EQ(found.at("zero").max_abs, 0);
}

}  // namespace
}  // namespace longship::train
