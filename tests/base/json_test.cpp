#include "base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/config_support.h"
#include "base/fs.h"
#include "support/paths.h"

namespace longship {
namespace {

using ::longship::testing::message_of;
using ::testing::HasSubstr;

std::string error_of(std::string_view text, const JsonLimits& limits = {}) {
  return message_of([&] { parse_json_text(text, "x.json", limits); });
}

TEST(Json, ParsesAndKeepsOrderWhenAsked) {
  EXPECT_EQ(parse_json_text(R"({"b": [1, 2.5, null], "a": "ü"})", "x")["b"][1], 2.5);
  EXPECT_EQ(parse_ordered_json_text(R"({"b": 1, "a": 2})", "x").begin().key(), "b");
}

TEST(Json, SyntaxErrorsCarryLineAndColumn) {
  const std::string message = error_of("{\n  \"a\": 1,\n  \"b\" 2\n}");
  EXPECT_THAT(message, ::testing::StartsWith("x.json:3:7: "));
  EXPECT_THAT(message, HasSubstr("':'"));
  EXPECT_THAT(error_of(""), HasSubstr("x.json:1:1: "));
  EXPECT_THAT(error_of("{} x"), HasSubstr("x.json:1:4: "));
}

TEST(Json, NonFiniteTokensAreExplained) {
  EXPECT_THAT(error_of("{\"std\": [1.0, NaN]}"), HasSubstr("NaN is no JSON number"));
  EXPECT_THAT(error_of("[-Infinity]"), HasSubstr("Infinity is no JSON number"));
  EXPECT_THAT(error_of("[1e999]"), HasSubstr("x.json"));
}

TEST(Json, DuplicateKeysAreRefused) {
  EXPECT_THAT(error_of(R"({"a": {"x": 1}, "b": {"x": 1}, "a": 2})"),
              HasSubstr("key \"a\" stands twice"));
  EXPECT_EQ(error_of(R"([{"x": 1}, {"x": 1}])"), "");
}

TEST(Json, DepthAndSizeAreBounded) {
  EXPECT_THAT(error_of(std::string(100000, '[')), HasSubstr("nested deeper than 64 levels"));
  EXPECT_EQ(error_of(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_NE(error_of(std::string(65, '[') + std::string(65, ']')), "");
  JsonLimits small;
  small.max_bytes = 3;
  EXPECT_THAT(error_of("[1, 2]", small), HasSubstr("more than the 3 B allowed"));
}

TEST(Json, InvalidUtf8IsRefused) {
  EXPECT_THAT(error_of("[\"\xff\"]"), HasSubstr("x.json:1:"));
}

TEST(Json, FilesAndErrorClasses) {
  const auto dir = testing::scratch_dir("json");
  write_file_atomic(dir / "a.json", "{\"x\": }");
  EXPECT_THROW(parse_json_file(dir / "a.json"), DataError);
  JsonLimits limits;
  limits.code = ExitCode::kCheckpoint;
  EXPECT_THROW(parse_json_file(dir / "a.json", limits), CheckpointError);
  EXPECT_THROW(parse_ordered_json_file(dir / "none.json", limits), CheckpointError);
  EXPECT_THAT(message_of([&] { parse_json_file(dir / "a.json"); }),
              HasSubstr((dir / "a.json").string() + ":1:7"));
}

}  // namespace
}  // namespace longship
