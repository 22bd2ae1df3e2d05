#include "base/config/yaml.h"

#include <gtest/gtest.h>

#include <string>

#include "base/config_support.h"
#include "base/fs.h"
#include "support/paths.h"

namespace longship::config {
namespace {

using ::longship::testing::message_of;
using ::testing::HasSubstr;

std::string parse_error(std::string_view text) {
  return message_of([&] { parse_yaml_text(text, "x.yaml"); });
}

TEST(Yaml, TreeKnowsKindsQuotesOrderAndPlaces) {
  const Node root = parse_yaml_text("b: 1\na:\n  - 'x'\n  - null\n  - {k: v}\nc: ~\n", "x.yaml");
  ASSERT_TRUE(root.is_map());
  ASSERT_EQ(root.entries().size(), 3u);
  EXPECT_EQ(root.entries()[0].key, "b");
  EXPECT_EQ(root.find("b")->scalar(), "1");
  EXPECT_FALSE(root.find("b")->quoted());
  const Node& a = *root.find("a");
  ASSERT_TRUE(a.is_sequence());
  EXPECT_TRUE(a.items()[0].quoted());
  EXPECT_EQ(a.items()[0].mark().str(), "x.yaml:3");
  EXPECT_EQ(a.items()[0].mark().column, 5);
  EXPECT_TRUE(a.items()[1].is_null());
  EXPECT_EQ(root.find_path("a.2.k")->scalar(), "v");
  EXPECT_TRUE(root.find("c")->is_null());
  EXPECT_EQ(root.find_path("a.7"), nullptr);
  EXPECT_EQ(root.find_path("b.x"), nullptr);
}

TEST(Yaml, EmptyTextIsNull) {
  EXPECT_TRUE(parse_yaml_text("", "x.yaml").is_null());
  EXPECT_TRUE(parse_yaml_text("# only a comment\n", "x.yaml").is_null());
}

TEST(Yaml, PathsMayHoldKeysWithDots) {
  const Node root = parse_yaml_text("cameras: {observation.images.top: base}\n", "x.yaml");
  EXPECT_EQ(root.find_path("cameras.observation.images.top")->scalar(), "base");
}

TEST(Yaml, PlaceOfFallsBackToTheNearestParent) {
  const Node root = parse_yaml_text("a:\n  b:\n    c: 1\n", "x.yaml");
  EXPECT_EQ(place_of(root, "a.b.c"), "x.yaml:3");
  EXPECT_EQ(place_of(root, "zzz"), "x.yaml:1");
  EXPECT_EQ(place_of(Node(), "a"), "default");
}

TEST(Yaml, SyntaxErrorsCarryLineColumnAndTheLine) {
  const std::string message = parse_error("a: 1\nb: [1, 2\nc: 3\n");
  EXPECT_THAT(message, HasSubstr("x.yaml:3:"));
  EXPECT_THAT(message, HasSubstr("not valid YAML"));
  EXPECT_THAT(message, HasSubstr("c: 3"));
}

TEST(Yaml, TabIndentationIsExplained) {
  EXPECT_THAT(parse_error("a:\n\tb: 1\n"), HasSubstr("indented with a tab"));
}

TEST(Yaml, DuplicateKeysNameBothLines) {
  EXPECT_EQ(parse_error("a: 1\nb: 2\na: 3\n"),
            "x.yaml:3: key 'a' stands twice in one section (first in line 1)");
}

TEST(Yaml, AnchorsAliasesTagsAndSecondDocumentsAreRefused) {
  EXPECT_THAT(parse_error("a: &x 1\n"), HasSubstr("x.yaml:1: anchors (&name) are not supported"));
  EXPECT_THAT(parse_error("a: *x\n"), HasSubstr("x.yaml:1"));
  EXPECT_THAT(parse_error("a: !!str 1\n"), HasSubstr("tags ("));
  EXPECT_THAT(parse_error("a: 1\n---\nb: 2\n"), HasSubstr("more than one YAML document"));
  EXPECT_THAT(parse_error("[a, b]: 1\n"), HasSubstr("cannot be a key"));
  EXPECT_THAT(parse_error(": 1\n"), HasSubstr("empty key"));
}

TEST(Yaml, BytesThatAreNoTextAreRefused) {
  EXPECT_THAT(parse_error("a: 1\nb: \xff\n"), HasSubstr("x.yaml:2: byte 0xff is no UTF-8"));
  EXPECT_THAT(parse_error(std::string("a: \0b\n", 6)), HasSubstr("x.yaml:1: control byte 0x00"));
}

TEST(Yaml, DeepNestingIsRefusedBeforeTheStackEnds) {
  std::string block, flow_map;
  for (int i = 0; i < 100000; ++i) {
    block += "- ";
    flow_map += "{a: ";
  }
  // Unclosed brackets: the library has several ways to see what is wrong, all that counts is that
  // it says so.
  for (const std::string& text : {std::string(100000, '['), std::string(100000, '{'), flow_map}) {
    EXPECT_THROW(parse_yaml_text(text, "x.yaml"), ConfigError) << text.substr(0, 8);
  }
  EXPECT_THAT(parse_error(block), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(parse_error(std::string(500, '[') + std::string(500, ']')),
              HasSubstr("nested deeper than 64 levels"));
  std::string indented;
  for (int i = 0; i < 300; ++i) indented += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  EXPECT_THAT(parse_error(indented), HasSubstr("x.yaml:65: nested deeper than 64 levels"));
  // Nesting at the limit is fine.
  EXPECT_TRUE(parse_yaml_text(std::string(64, '[') + std::string(64, ']'), "x.yaml").is_sequence());
}

TEST(Yaml, SizeAndNumberOfValuesAreBounded) {
  EXPECT_THAT(parse_error(std::string(kMaxYamlBytes + 1, ' ')),
              HasSubstr("more than the 4.0 MiB allowed"));
  std::string many = "[";
  for (int64_t i = 0; i <= kMaxYamlNodes; ++i) many += "1,";
  EXPECT_THAT(parse_error(many + "]"), HasSubstr("more than 100000 values"));
}

TEST(Yaml, FilesThatCannotBeReadAreConfigErrors) {
  const auto folder = longship::testing::scratch_dir("yaml_files");
  EXPECT_THROW(parse_yaml_file(folder / "none.yaml"), ConfigError);
  EXPECT_THAT(message_of([&] { parse_yaml_file(folder / "none.yaml"); }),
              HasSubstr("none.yaml: No such file or directory"));
  EXPECT_THAT(message_of([&] { parse_yaml_file(folder); }), HasSubstr("it is a folder"));
  write_file_atomic(folder / "good.yaml", "a: 1\n");
  EXPECT_EQ(parse_yaml_file(folder / "good.yaml").find("a")->scalar(), "1");
}

}  // namespace
}  // namespace longship::config
