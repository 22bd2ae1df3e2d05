#include "io/safetensors.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace longship::io {
namespace {

using longship::testing::dataset_path;
using longship::testing::expect_error;
using longship::testing::scratch_dir;

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Safetensors, WritesTheExactBytesOfTheFormat) {
  const auto path = scratch_dir("safetensors_bytes") / "a.safetensors";
  const uint8_t small[3] = {7, 8, 9};
  const float wide[2] = {1.0F, -2.0F};
  const TensorView views[] = {{"small", DType::kU8, {3}, small},
                              {"wide", DType::kF32, {1, 2}, wide}};
  write_safetensors(path, views, {{"format", "pt"}});
  std::string header =
      R"({"__metadata__":{"format":"pt"},"wide":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("small":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  while (header.size() % 8 != 0) header += ' ';
  std::string expected(8, '\0');
  expected[0] = static_cast<char>(header.size());
  expected += header;
  expected.append(reinterpret_cast<const char*>(wide), 8);
  expected.append(reinterpret_cast<const char*>(small), 3);
  EXPECT_EQ(bytes_of(path), expected);
}

TEST(Safetensors, EveryDTypeSurvivesARoundTrip) {
  const auto path = scratch_dir("safetensors_dtypes") / "a.safetensors";
  std::vector<std::vector<uint8_t>> data;
  std::vector<TensorView> views;
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i) {
    const auto dtype = static_cast<DType>(i);
    std::vector<uint8_t>& bytes = data.emplace_back(static_cast<size_t>(6 * dtype_bytes(dtype)));
    for (size_t k = 0; k < bytes.size(); ++k)
      bytes[k] = static_cast<uint8_t>(31 * i + static_cast<int>(k));
    views.push_back({"tensor." + std::string(dtype_name(dtype)), dtype, {2, 3}, bytes.data()});
  }
  write_safetensors(path, views);
  const SafetensorsFile file = SafetensorsFile::open(path);
  ASSERT_EQ(file.tensors().size(), views.size());
  for (const TensorView& view : views) {
    const TensorInfo& info = file.at(view.name);
    EXPECT_EQ(info.dtype, view.dtype);
    EXPECT_EQ(info.shape, view.shape);
    EXPECT_EQ(info.numel(), 6);
    EXPECT_EQ(std::memcmp(file.data(info), view.data, info.num_bytes()), 0) << view.name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.data(info)) %
                  static_cast<uintptr_t>(dtype_bytes(info.dtype)),
              0U)
        << view.name << " is not aligned";
  }
}

TEST(Safetensors, ScalarEmptyTensorAndEmptyFile) {
  const auto dir = scratch_dir("safetensors_small");
  const double pi = 3.25;
  const TensorView views[] = {{"scalar", DType::kF64, {}, &pi},
                              {"none", DType::kF32, {0, 5}, nullptr}};
  write_safetensors(dir / "a.safetensors", views);
  const SafetensorsFile file = SafetensorsFile::open(dir / "a.safetensors");
  EXPECT_EQ(file.at("scalar").numel(), 1);
  EXPECT_TRUE(file.at("scalar").shape.empty());
  EXPECT_EQ(file.at("none").num_bytes(), 0U);
  EXPECT_EQ(describe(file.at("none")), "[0, 5] F32");
  write_safetensors(dir / "b.safetensors", {});
  EXPECT_TRUE(SafetensorsFile::open(dir / "b.safetensors").tensors().empty());
}

TEST(Safetensors, KeepsMetadataAndNamesWithAnyCharacters) {
  const auto path = scratch_dir("safetensors_names") / "a.safetensors";
  const int64_t value = 42;
  const std::string name =
      "bl\xC3\xB6"
      "ck\n\"0\".weight";
  const TensorView views[] = {{name, DType::kI64, {1}, &value}};
  const Metadata metadata = {{"a\"b", "line\nbreak"}, {"\xE6\x97\xA5", ""}};
  write_safetensors(path, views, metadata);
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_NE(file.find(name), nullptr);
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST(Safetensors, MovingAnOpenFileKeepsItsTensors) {
  const auto path = scratch_dir("safetensors_move") / "a.safetensors";
  const float value = 5;
  const TensorView views[] = {{"w", DType::kF32, {1}, &value}};
  write_safetensors(path, views);
  SafetensorsFile first = SafetensorsFile::open(path);
  SafetensorsFile second = std::move(first);
  EXPECT_EQ(*reinterpret_cast<const float*>(second.data(second.at("w"))), 5.0F);
  std::vector<SafetensorsFile> many;
  many.push_back(std::move(second));
  many.push_back(SafetensorsFile::open(path));
  EXPECT_EQ(many[0].at("w").name, "w");
}

TEST(Safetensors, ReadsAFileOfThePythonPackage) {
  const SafetensorsFile file =
      SafetensorsFile::open(dataset_path("expected/pusht_v30") / "samples.safetensors");
  const TensorInfo& frames = file.at("frames/observation.image");
  EXPECT_EQ(frames.dtype, DType::kU8);
  EXPECT_EQ(frames.shape, (std::vector<int64_t>{67, 96, 96, 3}));
}

TEST(Safetensors, UnknownTensorNamesFileAndNearest) {
  const auto path = scratch_dir("safetensors_nearest") / "a.safetensors";
  const float value = 5;
  const TensorView views[] = {{"layers.0.weight", DType::kF32, {1}, &value},
                              {"head.bias", DType::kF32, {1}, &value}};
  write_safetensors(path, views);
  const SafetensorsFile file = SafetensorsFile::open(path);
  expect_error<CheckpointError>([&] { file.at("layer.0.weight"); },
                                {path.string(), "'layer.0.weight'", "'layers.0.weight'"});
}

TEST(Safetensors, WriterRefusesWhatNoReaderCouldRead) {
  const auto path = scratch_dir("safetensors_refuse") / "a.safetensors";
  const float value = 5;
  const TensorView twice[] = {{"w", DType::kF32, {1}, &value}, {"w", DType::kF32, {1}, &value}};
  expect_error<CheckpointError>([&] { write_safetensors(path, twice); },
                                {path.string(), "two tensors", "'w'"});
  const TensorView reserved[] = {{"__metadata__", DType::kF32, {1}, &value}};
  expect_error<CheckpointError>([&] { write_safetensors(path, reserved); }, {"__metadata__"});
  const TensorView negative[] = {{"w", DType::kF32, {-1}, &value}};
  expect_error<CheckpointError>([&] { write_safetensors(path, negative); }, {"'w'", "-1"});
  const TensorView no_data[] = {{"w", DType::kF32, {1}, nullptr}};
  expect_error<CheckpointError>([&] { write_safetensors(path, no_data); }, {"'w'", "no data"});
  const TensorView bad_name[] = {{"w\xFF", DType::kF32, {1}, &value}};
  expect_error<CheckpointError>([&] { write_safetensors(path, bad_name); }, {"UTF-8"});
  EXPECT_FALSE(std::filesystem::exists(path)) << "a refused file must leave nothing";
}

TEST(Safetensors, FailedWriteKeepsTheOldFile) {
  const auto dir = scratch_dir("safetensors_keep");
  const float value = 5;
  const TensorView good[] = {{"w", DType::kF32, {1}, &value}};
  write_safetensors(dir / "a.safetensors", good);
  const std::string before = bytes_of(dir / "a.safetensors");
  const TensorView huge[] = {{"w", DType::kF32, {int64_t{1} << 60}, &value}};
  expect_error<CheckpointError>([&] { write_safetensors(dir / "a.safetensors", huge); },
                                {"a.safetensors"});
  EXPECT_EQ(bytes_of(dir / "a.safetensors"), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir), {}), 1)
      << "a temporary file was left";
}

}  // namespace
}  // namespace longship::io
