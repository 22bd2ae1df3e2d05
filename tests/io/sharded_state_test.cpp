// A state spread over files: any slice from any layout, and one clear message for every fault.
#include "io/sharded_state.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "base/error.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;
using longship::testing::expect_error;
using longship::testing::scratch_dir;

/// What one rank holds: (tensor, begin, end).
struct Owned {
  std::string name;
  int64_t begin = 0, end = 0;
};

const std::map<std::string, std::vector<int64_t>> kShapes = {
    {"exp_avg.a", {3, 4}}, {"exp_avg.b", {7}}, {"exp_avg.c", {}}, {"exp_avg.none", {0, 5}}};

int64_t numel_of(const std::string& name) {
  int64_t n = 1;
  for (const int64_t dim : kShapes.at(name)) n *= dim;
  return n;
}

float value_of(const std::string& name, int64_t element) {
  return static_cast<float>(name.back()) + 0.25F * static_cast<float>(element);
}

void write_rank(const fs::path& folder, int64_t rank, int64_t world,
                const std::vector<Owned>& owned) {
  std::vector<std::vector<float>> values;
  std::vector<TensorView> views;
  std::vector<ShardRecord> records;
  values.reserve(owned.size());
  for (const Owned& o : owned) {
    values.emplace_back();
    for (int64_t i = o.begin; i < o.end; ++i) values.back().push_back(value_of(o.name, i));
    const bool whole = o.begin == 0 && o.end == numel_of(o.name);
    const std::string key = shard_key(o.name, o.begin, o.end, numel_of(o.name));
    views.push_back({key, DType::kF32,
                     whole ? kShapes.at(o.name) : std::vector<int64_t>{o.end - o.begin},
                     values.back().data()});
    records.push_back({key, o.name, o.begin, o.end, kShapes.at(o.name)});
  }
  write_safetensors(folder / shard_file_name(rank, world), views,
                    shard_metadata(rank, world, records));
}

void write_text(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

// Two ranks, cut inside a and b.
fs::path two_ranks(const std::string& name) {
  const fs::path folder = scratch_dir("sharded_" + name);
  write_rank(folder, 0, 2, {{"exp_avg.a", 0, 5}, {"exp_avg.b", 3, 7}, {"exp_avg.none", 0, 0}});
  write_rank(folder, 1, 2, {{"exp_avg.a", 5, 12}, {"exp_avg.b", 0, 3}, {"exp_avg.c", 0, 1}});
  write_text(folder / kShardIndexFile, to_json(index_of_shards(folder, 2, "zero1")));
  return folder;
}

TEST(ShardedState, GivesEverySliceOfEveryTensor) {
  const fs::path folder = two_ranks("every_slice");
  const ShardedState state = ShardedState::open(folder);
  state.check_files();
  EXPECT_EQ(state.index().world_size, 2);
  EXPECT_EQ(state.index().strategy, "zero1");
  ASSERT_EQ(state.tensors().size(), 4U);
  EXPECT_EQ(state.at("exp_avg.none").shape, (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(state.total_bytes(), 4U * (12 + 7 + 1));
  for (const ShardedTensor& tensor : state.tensors()) {
    const int64_t n = tensor.numel();
    for (int64_t begin = 0; begin <= n; ++begin) {
      for (int64_t end = begin; end <= n; ++end) {
        std::vector<float> out(static_cast<size_t>(end - begin) + 1, -1.0F);
        state.read(tensor, begin, end, out.data());
        for (int64_t i = begin; i < end; ++i) {
          ASSERT_EQ(out[static_cast<size_t>(i - begin)], value_of(tensor.name, i))
              << tensor.name << " [" << begin << ", " << end << ") at " << i;
        }
        ASSERT_EQ(out.back(), -1.0F) << "written past the end";
      }
    }
  }
  EXPECT_THROW(state.read(state.at("exp_avg.b"), 0, 8, nullptr), InternalError);
  EXPECT_THROW(state.read(state.at("exp_avg.b"), -1, 2, nullptr), InternalError);
}

TEST(ShardedState, ReadsTheSingleFileOfOlderCheckpoints) {
  const fs::path folder = scratch_dir("sharded_single");
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const TensorView views[] = {{"weights.x", DType::kF32, {2, 3}, values.data()}};
  write_safetensors(folder / "optimizer.safetensors", views);
  const ShardedState state = ShardedState::open(folder);
  state.check_files();
  EXPECT_EQ(state.index().world_size, 1);
  std::vector<float> out(3);
  state.read(state.at("weights.x"), 2, 5, out.data());
  EXPECT_EQ(out, (std::vector<float>{3, 4, 5}));
  write_text(folder / kShardIndexFile, "{}");
  expect_error<CheckpointError>([&] { ShardedState::open(folder); },
                                {"both index.json and optimizer.safetensors"});
  expect_error<CheckpointError>([&] { ShardedState::open(scratch_dir("sharded_empty")); },
                                {"no optimizer state", "index.json"});
}

TEST(ShardedState, MissingCutAndSwappedFilesAreNamed) {
  const fs::path folder = two_ranks("files");
  const fs::path second = folder / shard_file_name(1, 2);
  const fs::path kept = folder / "kept";
  fs::copy_file(second, kept);
  const auto check = [&] { ShardedState::open(folder).check_files(); };
  check();
  fs::remove(second);
  expect_error<CheckpointError>(check, {"optimizer.r0001-of-0002.safetensors", "cannot be opened"});
  fs::copy_file(kept, second);
  fs::resize_file(second, fs::file_size(second) - 1);
  expect_error<CheckpointError>(check, {"optimizer.r0001-of-0002.safetensors", "cut"});
  fs::remove(second);
  write_rank(folder, 1, 2, {{"exp_avg.a", 5, 12}, {"exp_avg.b", 0, 3}});
  expect_error<CheckpointError>(
      check, {"optimizer.r0001-of-0002.safetensors", "'exp_avg.c', elements [0, 1)"});
  write_rank(folder, 1, 2,
             {{"exp_avg.a", 5, 12}, {"exp_avg.b", 0, 3}, {"exp_avg.c", 0, 1}, {"exp_avg.b", 3, 4}});
  expect_error<CheckpointError>(
      check, {"optimizer.r0001-of-0002.safetensors", "'exp_avg.b[3:4]'", "in no tensor"});
  // The same key and size with another dtype.
  const std::vector<int32_t> numbers(12, 1);
  const TensorView views[] = {{"exp_avg.a[5:12]", DType::kI32, {7}, numbers.data()},
                              {"exp_avg.b[0:3]", DType::kF32, {3}, numbers.data()},
                              {"exp_avg.c", DType::kF32, {}, numbers.data()}};
  write_safetensors(second, views);
  expect_error<CheckpointError>(check, {"'exp_avg.a', elements [5, 12)", "I32", "F32"});
}

TEST(ShardedState, TheIndexOfShardsFindsGapsOverlapsAndForeignFiles) {
  const fs::path folder = scratch_dir("sharded_gaps");
  const auto make = [&] { return index_of_shards(folder, 2, "fsdp"); };
  write_rank(folder, 0, 2, {{"exp_avg.a", 0, 5}});
  expect_error<CheckpointError>(make, {"optimizer.r0001-of-0002", "cannot be opened"});
  write_rank(folder, 1, 2, {{"exp_avg.a", 6, 12}});
  expect_error<CheckpointError>(make, {"'exp_avg.a'", "no file holds elements [5, 6)"});
  write_rank(folder, 1, 2, {{"exp_avg.a", 5, 11}});
  expect_error<CheckpointError>(make, {"'exp_avg.a'", "no file holds elements [11, 12)"});
  write_rank(folder, 1, 2, {{"exp_avg.a", 3, 12}});
  expect_error<CheckpointError>(make, {"'exp_avg.a'", "elements [3, 5)", "in another file too"});
  write_rank(folder, 1, 2, {{"exp_avg.a", 5, 12}});
  EXPECT_EQ(make().tensors.size(), 1U);
  fs::rename(folder / shard_file_name(1, 2), folder / "x");
  write_rank(folder, 1, 3, {{"exp_avg.a", 5, 12}});
  fs::rename(folder / shard_file_name(1, 3), folder / shard_file_name(1, 2));
  expect_error<CheckpointError>(make, {"optimizer.r0001-of-0002", "rank 1 of 3", "rank 1 of 2"});
}

TEST(ShardIndex, RoundTrip) {
  const fs::path folder = two_ranks("round_trip");
  const ShardIndex index = index_of_shards(folder, 2, "fsdp");
  const std::string text = to_json(index);
  const ShardIndex again = parse_shard_index(text, "again");
  EXPECT_EQ(to_json(again), text);
}

struct BadIndex {
  const char* name;
  std::string text;
  std::vector<std::string> mentions;
};

std::string index_text(const std::string& tensors, const std::string& files = R"(["f","g"])",
                       const std::string& world = "2") {
  return R"({"format":"longship-state-1","world_size":)" + world + R"(,"strategy":"ddp","files":)" +
         files + R"(,"tensors":{)" + tensors + "}}";
}

TEST(ShardIndex, EveryFaultIsOneMessage) {
  const std::string head = R"("t":{"dtype":"F32","shape":[2,3],"slices":)";
  const BadIndex cases[] = {
      {"no json", "{", {"idx"}},
      {"other format", R"({"format":"x"})", {"format"}},
      {"no files", R"({"format":"longship-state-1","world_size":1,"strategy":"a"})", {"no files"}},
      {"unknown key",
       R"({"format":"longship-state-1","world_size":1,"strategy":"a","files":["a"],"tensors":{},"more":1})",
       {"unknown key 'more'"}},
      {"world of none", index_text("", "[]", "0"), {"world_size is 0"}},
      {"huge world", index_text("", "[]", "99999999"), {"world_size is 99999999"}},
      {"negative world", index_text("", "[]", "-1"), {"world_size holds -1"}},
      {"fewer files", index_text("", R"(["f"])"), {"1 files for a world of 2"}},
      {"path", index_text("", R"(["f","../g"])"), {"'../g' is no name of a file"}},
      {"absolute", index_text("", R"(["f","/etc/passwd"])"), {"'/etc/passwd'"}},
      {"hidden", index_text("", R"(["f",".g"])"), {"'.g'"}},
      {"twice", index_text("", R"(["f","f"])"), {"lists f twice"}},
      {"gap", index_text(head + R"([[0,2,0,"t"],[3,6,1,"t"]]})"), {"'t'", "[2, 3)"}},
      {"gap at the front", index_text(head + R"([[1,6,0,"t"]]})"), {"'t'", "[0, 1)"}},
      {"gap at the end", index_text(head + R"([[0,5,0,"t"]]})"), {"'t'", "[5, 6)"}},
      {"nothing", index_text(head + "[]}"), {"'t'", "[0, 6)"}},
      {"overlap", index_text(head + R"([[0,4,0,"t"],[3,6,1,"t"]]})"), {"'t'", "[3, 4)"}},
      {"past the end", index_text(head + R"([[0,7,0,"t"]]})"), {"'t'", "[0, 7) of 6"}},
      {"backwards", index_text(head + R"([[4,2,0,"t"]]})"), {"'t'", "[4, 2)"}},
      {"no such file", index_text(head + R"([[0,6,2,"t"]]})"), {"'t'", "file 2 of 2"}},
      {"key twice",
       index_text(head +
                  R"([[0,6,0,"t"]]},"u":{"dtype":"F32","shape":[1],"slices":[[0,1,0,"t"]]})"),
       {"the key 't' of f", "twice"}},
      {"three numbers", index_text(head + "[[0,6,0]]}"), {"a slice is not"}},
      {"fraction", index_text(head + R"([[0,6.5,0,"t"]]})"), {"6.5"}},
      {"dtype", index_text(R"("t":{"dtype":"F31","shape":[],"slices":[]})"), {"F31"}},
      {"no shape", index_text(R"("t":{"dtype":"F32","slices":[]})"), {"no shape"}},
      {"huge",
       index_text(R"("t":{"dtype":"F32","shape":[4611686018427387904,4],"slices":[]})"),
       {"larger than any file"}},
  };
  for (const BadIndex& bad : cases) {
    SCOPED_TRACE(bad.name);
    const std::string message =
        longship::testing::message_of<CheckpointError>([&] { parse_shard_index(bad.text, "idx"); });
    EXPECT_THAT(message, ::testing::HasSubstr("idx"));
    for (const std::string& text : bad.mentions) EXPECT_THAT(message, ::testing::HasSubstr(text));
  }
}

TEST(SafetensorsWriterTest, PiecesOfAnySizeGiveTheSameFile) {
  const fs::path folder = scratch_dir("safetensors_writer");
  std::vector<float> a(1000);
  std::iota(a.begin(), a.end(), 0.5F);
  const std::vector<int64_t> b = {1, 2, 3};
  const TensorView views[] = {{"a", DType::kF32, {10, 100}, a.data()},
                              {"b", DType::kI64, {3}, b.data()}};
  write_safetensors(folder / "whole", views, {{"k", "v"}});
  SafetensorsWriter writer(folder / "pieces",
                           {{"a", DType::kF32, {10, 100}}, {"b", DType::kI64, {3}}}, {{"k", "v"}},
                           true);
  for (const auto& entry : writer.order()) {
    const auto* bytes = static_cast<const std::byte*>(views[entry.position].data);
    for (uint64_t at = 0; at < entry.num_bytes; at += 7) {
      writer.write(bytes + at, std::min<uint64_t>(7, entry.num_bytes - at));
    }
  }
  EXPECT_FALSE(fs::exists(folder / "pieces"));
  const FileSum sum = writer.commit();
  std::ifstream left(folder / "whole"), right(folder / "pieces");
  const std::string whole{std::istreambuf_iterator<char>(left), {}};
  const std::string pieces{std::istreambuf_iterator<char>(right), {}};
  EXPECT_EQ(whole, pieces);
  EXPECT_EQ(sum.bytes, whole.size());
  SafetensorsWriter few(folder / "few", {{"a", DType::kF32, {2}}});
  few.write(a.data(), 4);
  EXPECT_THROW(few.commit(), InternalError);
}

}  // namespace
}  // namespace longship::io
