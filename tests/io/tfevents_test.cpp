#include "io/tfevents.h"

#include <cmath>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;
using longship::testing::expect_error;
using longship::testing::scratch_dir;

uint32_t crc_of(std::string_view text) {
  return crc32c(std::as_bytes(std::span(text.data(), text.size())));
}

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(TfEvents, ChecksumsOfRfc3720) {
  EXPECT_EQ(crc_of("123456789"), 0xE3069283U);
  EXPECT_EQ(crc_of(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc_of(std::string(32, '\xFF')), 0x62A8AB43U);
  EXPECT_EQ(crc_of(""), 0U);
}

TEST(TfEvents, ScalarsSurviveARoundTrip) {
  const fs::path dir = scratch_dir("tfevents") / "new" / "folder";
  EventWriter writer = EventWriter::open(dir);
  writer.scalar("train/loss", 1, 2.5, 1700000000.25);
  writer.scalar("train/loss", int64_t{1} << 40, std::nan(""), 1700000001);
  writer.scalar("lr", 0, 1e-4);
  writer.flush();
  EXPECT_THAT(writer.path().filename().string(), ::testing::StartsWith("events.out.tfevents."));
  const std::vector<ScalarEvent> events = read_scalars(writer.path());
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].tag, "train/loss");
  EXPECT_EQ(events[0].step, 1);
  EXPECT_EQ(events[0].value, 2.5);
  EXPECT_EQ(events[0].wall_time_s, 1700000000.25);
  EXPECT_EQ(events[1].step, int64_t{1} << 40);
  EXPECT_TRUE(std::isnan(events[1].value));
  EXPECT_EQ(events[2].value, 1e-4F);
  EXPECT_GT(events[2].wall_time_s, 1.7e9);
}

TEST(TfEvents, BytesAreThoseOfTensorBoard) {
  const fs::path dir = scratch_dir("tfevents_bytes");
  EventWriter writer = EventWriter::open(dir);
  writer.flush();
  const size_t head = bytes_of(writer.path()).size();
  writer.scalar("a", 3, 1.0, 2.0);
  writer.flush();
  const std::string record = bytes_of(writer.path()).substr(head);
  // Event {wall_time: 2.0, step: 3, summary {value {tag: "a", simple_value: 1.0}}}
  const std::string event(
      "\x09\0\0\0\0\0\0\0\x40\x10\x03\x2A\x0A\x0A\x08\x0A\x01"
      "a\x15\0\0\x80\x3F",
      23);
  ASSERT_EQ(record.size(), 12 + event.size() + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\x17\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, event.size()), event);
}

TEST(TfEvents, TwoWritersOfOneFolderDoNotMeet) {
  const fs::path dir = scratch_dir("tfevents_two");
  EventWriter first = EventWriter::open(dir);
  EventWriter second = EventWriter::open(dir);
  EXPECT_NE(first.path(), second.path());
  first.scalar("x", 1, 1);
  EventWriter moved = std::move(first);
  moved.scalar("x", 2, 2);
  moved.flush();
  EXPECT_EQ(read_scalars(moved.path()).size(), 2U);
  EXPECT_EQ(read_scalars(second.path()).size(), 0U);
}

TEST(TfEvents, ACutLastRecordIsLeftOutAndDamageIsAnError) {
  const fs::path dir = scratch_dir("tfevents_damage");
  EventWriter writer = EventWriter::open(dir);
  writer.scalar("x", 1, 1);
  writer.scalar("x", 2, 2);
  writer.flush();
  const std::string good = bytes_of(writer.path());
  std::ofstream(dir / "cut", std::ios::binary) << good.substr(0, good.size() - 5);
  EXPECT_EQ(read_scalars(dir / "cut").size(), 1U);
  std::string flipped = good;
  flipped[good.size() - 8] ^= 1;
  std::ofstream(dir / "flipped", std::ios::binary) << flipped;
  expect_error<DataError>([&] { read_scalars(dir / "flipped"); }, {"flipped", "byte ", "checksum"});
  std::ofstream(dir / "text") << "this is no event file at all";
  expect_error<DataError>([&] { read_scalars(dir / "text"); },
                          {"text", "byte 0", "not an event file"});
}

TEST(TfEvents, AFolderThatCannotBeMadeIsNamed) {
  const fs::path dir = scratch_dir("tfevents_file");
  std::ofstream(dir / "file") << "x";
  expect_error<ConfigError>([&] { EventWriter::open(dir / "file" / "sub"); },
                            {(dir / "file" / "sub").string()});
}

}  // namespace
}  // namespace longship::io
