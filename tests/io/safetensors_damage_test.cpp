#include <cstring>
#include <fstream>
#include <random>

#include "base/error.h"
#include "io/safetensors.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace longship::io {
namespace {

using longship::testing::expect_error;
using longship::testing::scratch_dir;

std::string file_with(const std::string& header, size_t data_bytes, uint64_t stated_length) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(stated_length >> (8 * i));
  return file + header + std::string(data_bytes, 'x');
}

std::string file_with(const std::string& header, size_t data_bytes) {
  return file_with(header, data_bytes, header.size());
}

SafetensorsHeader parse(const std::string& file) {
  return parse_header(std::as_bytes(std::span(file.data(), file.size())), "weights.safetensors");
}

struct Damage {
  const char* name;
  std::string header;
  size_t data_bytes;
  std::vector<std::string> mentions;
};

class SafetensorsDamage : public ::testing::TestWithParam<Damage> {};

TEST_P(SafetensorsDamage, IsRefusedWithTheReason) {
  const Damage& damage = GetParam();
  const std::string message = longship::testing::message_of<CheckpointError>(
      [&] { parse(file_with(damage.header, damage.data_bytes)); });
  EXPECT_THAT(message, ::testing::HasSubstr("weights.safetensors"));
  for (const std::string& text : damage.mentions) EXPECT_THAT(message, ::testing::HasSubstr(text));
}

const std::string kGood = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

INSTANTIATE_TEST_SUITE_P(
    Headers, SafetensorsDamage,
    ::testing::Values(
        Damage{"NotJson", "{\"w\":", 0, {"not valid JSON"}},
        Damage{"NotAnObject", "[1,2]  ", 0, {"does not begin"}},
        Damage{"TextAfterTheObject", kGood + "x", 8, {"not valid JSON"}},
        Damage{"BadUtf8", "{\"\xFF\":1}", 0, {"not valid JSON"}},
        Damage{
            "TensorTwice",
            R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
            2,
            {"'w' twice"}},
        Damage{"MetadataKeyTwice", R"({"__metadata__":{"a":"1","a":"2"}})", 0, {"'a' twice"}},
        Damage{"MetadataNotText", R"({"__metadata__":{"a":1}})", 0, {"__metadata__", "number 1"}},
        Damage{"UnknownDType",
               R"({"w":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})",
               8,
               {"'w'", "'F31'", "BF16"}},
        Damage{"UnknownKey",
               R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})",
               1,
               {"'w'", "'x'"}},
        Damage{"KeyTwice",
               R"({"w":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
               1,
               {"dtype", "twice"}},
        Damage{"NoShape", R"({"w":{"dtype":"U8","data_offsets":[0,1]}})", 1, {"'w'", "no shape"}},
        Damage{"NegativeDimension",
               R"({"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})",
               1,
               {"'w'", "-1"}},
        Damage{"FractionalDimension",
               R"({"w":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})",
               1,
               {"1.5"}},
        Damage{"NestedShape",
               R"({"w":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})",
               1,
               {"an array"}},
        Damage{
            "ShapeOverflow",
            R"({"w":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]}})",
            8,
            {"'w'", "larger than any file"}},
        Damage{"ShapeOverflowBehindZero",
               R"({"w":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})",
               0,
               {"'w'", "larger than any file"}},
        Damage{"SizeMismatch",
               R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
               8,
               {"[3] F32", "12 bytes", "hold 8"}},
        Damage{"Backwards",
               R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})",
               8,
               {"'w'", "backwards"}},
        Damage{"ThreeOffsets",
               R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})",
               8,
               {"'w'", "more than 2"}},
        Damage{"OneOffset",
               R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0]}})",
               8,
               {"'w'", "1 numbers"}},
        Damage{"PastTheEnd",
               R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
               8,
               {"'w'", "past", "8 bytes"}},
        Damage{
            "Overlap",
            R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
            7,
            {"'a'", "'b'", "overlap"}},
        Damage{
            "Hole",
            R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})",
            9,
            {"'b'", "1 bytes before"}},
        Damage{"TrailingBytes", kGood, 11, {"3 bytes at the end"}},
        Damage{"HugeNumber",
               R"({"w":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}})",
               1,
               {"'w'"}}),
    [](const ::testing::TestParamInfo<Damage>& instance) { return instance.param.name; });

TEST(SafetensorsDamageFile, DeepNestingIsRefusedAtOnce) {
  expect_error<CheckpointError>([] { parse(file_with("{\"w\":" + std::string(1000000, '['), 0)); },
                                {"'w'", "an array"});
}

TEST(SafetensorsDamageFile, HeaderLengthIsBounded) {
  expect_error<CheckpointError>([] { parse(file_with(kGood, 8, uint64_t{1} << 62)); },
                                {"not a safetensors file"});
  expect_error<CheckpointError>([] { parse(file_with(kGood, 8, 1000)); }, {"1000 bytes", "cut"});
  expect_error<CheckpointError>([] { parse(std::string(5, '\0')); }, {"5 bytes", "too few"});
  expect_error<CheckpointError>([] { parse(std::string()); }, {"0 bytes"});
}

TEST(SafetensorsDamageFile, OpenNamesThePath) {
  const auto dir = scratch_dir("safetensors_open");
  expect_error<CheckpointError>([&] { SafetensorsFile::open(dir / "absent.safetensors"); },
                                {"absent.safetensors", "No such file"});
  expect_error<CheckpointError>([&] { SafetensorsFile::open(dir); },
                                {dir.string(), "not a regular file"});
  std::ofstream(dir / "empty.safetensors");
  expect_error<CheckpointError>([&] { SafetensorsFile::open(dir / "empty.safetensors"); },
                                {"empty.safetensors"});
}

TEST(SafetensorsDamageFile, RandomDamageNeverPassesWithOffsetsOutside) {
  std::mt19937 random(7);
  const std::string good = file_with(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})",
      11);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string file = good;
    for (unsigned edits = 1 + random() % 3; edits > 0; --edits)
      file[random() % file.size()] = static_cast<char>(random());
    if (random() % 8 == 0) file.resize(random() % file.size());
    try {
      const SafetensorsHeader header = parse(file);
      ++accepted;
      for (const TensorInfo& tensor : header.tensors)
        ASSERT_LE(header.data_offset + tensor.end, file.size());
    } catch (const CheckpointError&) {
    }
  }
  EXPECT_GT(accepted, 0) << "edits of data bytes and names are harmless";
}

}  // namespace
}  // namespace longship::io
