#include "base/strings.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/progress.h"

namespace longship {
namespace {

using ::testing::ElementsAre;

TEST(Strings, SplitJoinTrim) {
  EXPECT_THAT(split("a,,b", ','), ElementsAre("a", "", "b"));
  EXPECT_THAT(split("", ','), ElementsAre(""));
  EXPECT_EQ(join({"a", "b", "c"}, ", "), "a, b, c");
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(trim(" \t a b\r\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
}

TEST(Strings, Levenshtein) {
  EXPECT_EQ(levenshtein("kitten", "sitting"), 3);
  EXPECT_EQ(levenshtein("", "abc"), 3);
  EXPECT_EQ(levenshtein("same", "same"), 0);
}

TEST(Strings, Utf8) {
  EXPECT_EQ(find_invalid_utf8("aä€😀"), std::string::npos);
  EXPECT_EQ(find_invalid_utf8("ab\x80"), 2u);
  EXPECT_EQ(find_invalid_utf8("\xC0\xAF"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xED\xA0\x80"), 0u);      // surrogate
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("x\xE2\x82"), 1u);         // cut
}

TEST(Strings, PrintableEscapesAndCuts) {
  EXPECT_EQ(printable("a\x1b\xff\n€"), "a\\x1b\\xff\\n€");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
}

TEST(Strings, HumanNumbers) {
  EXPECT_EQ(human_bytes(12), "12 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(uint64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(3.354e9), "3.35 B");
  EXPECT_EQ(human_count(999999), "1 M");
  EXPECT_EQ(with_thousands(-1234567), "-1,234,567");
  EXPECT_EQ(with_thousands(999), "999");
}

TEST(Strings, HumanDurations) {
  EXPECT_EQ(human_duration(0.25), "250 ms");
  EXPECT_EQ(human_duration(12.34), "12.3 s");
  EXPECT_EQ(human_duration(59.97), "1 min 00 s");
  EXPECT_EQ(human_duration(245), "4 min 05 s");
  EXPECT_EQ(human_duration(2 * 3600 + 3 * 60), "2 h 03 min");
  EXPECT_EQ(human_duration(76 * 3600), "3 d 04 h");
}

TEST(Strings, WholeNumbers) {
  EXPECT_EQ(parse_whole_number("0"), 0);
  EXPECT_EQ(parse_whole_number("-12"), -12);
  EXPECT_EQ(parse_whole_number("9223372036854775807"), std::numeric_limits<int64_t>::max());
  for (const char* text : {"", "-", "+1", " 1", "1 ", "1.0", "0x1", "9223372036854775808"}) {
    EXPECT_FALSE(parse_whole_number(text).has_value()) << text;
  }
}

TEST(Progress, Line) {
  EXPECT_EQ(format_progress("train", 50, 100, "step", 2.5, false, "loss 0.1"),
            "train  50/100 step  2.5 step/s  ETA 20.0 s  loss 0.1");
  EXPECT_EQ(format_progress("train", 50, 100, "step", 0.02, true, ""),
            "train  [############------------]  50/100 step  50.0 s/step  ETA 41 min 40 s");
  EXPECT_EQ(format_progress("scan", 0, 0, "file", 0, false, ""), "scan  0/0 file");
}

}  // namespace
}  // namespace longship
