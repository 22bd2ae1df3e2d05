#include "io/parquet.h"

#include <cmath>

#include "base/error.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;
using longship::testing::dataset_path;
using longship::testing::expect_error;
using longship::testing::source_root;

fs::path case_file(const std::string& name, const std::string& file) {
  return dataset_path("broken/cases") / name / "files" / file;
}

ParquetTable open_types() {
  return ParquetTable::open(source_root() / "tests/io/fixtures/types.parquet");
}

TEST(Parquet, TableOfARealDataset) {
  const ParquetTable table =
      ParquetTable::open(dataset_path("broken/base_v21") / "data/chunk-000/episode_000001.parquet");
  EXPECT_EQ(table.num_rows(), 7);
  EXPECT_TRUE(table.has("action"));
  EXPECT_FALSE(table.has("actions"));
  EXPECT_EQ(table.column_names().front(), "observation.state");
  const NumericColumn state = table.numeric("observation.state");
  EXPECT_EQ(state.num_rows, 7);
  EXPECT_EQ(state.width, 6);
  EXPECT_EQ(state.inner_shape, std::vector<int64_t>{6});
  ASSERT_EQ(state.values.size(), 42U);
  for (int t = 0; t < 7; ++t) {
    for (int d = 0; d < 6; ++d)
      EXPECT_NEAR(state.values[static_cast<size_t>(6 * t + d)], 100 + t + d / 10.0, 1e-4);
  }
  EXPECT_EQ(table.int64("frame_index"), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(table.int64("index").front(), 12);
  // Stored as float32: the double is that float, not 0.1.
  EXPECT_EQ(table.float64("timestamp")[1], static_cast<double>(0.1F));
}

TEST(Parquet, EveryStorageTypeOfTheStateGivesTheSameNumbers) {
  const std::string file = "data/chunk-000/episode_000001.parquet";
  const NumericColumn base =
      ParquetTable::open(dataset_path("broken/base_v21") / file).numeric("observation.state");
  for (const char* name : {"types-state-list", "types-state-large-list", "types-columns-reordered",
                           "types-columns-reordered-in-one-file"}) {
    const NumericColumn column =
        ParquetTable::open(case_file(name, file)).numeric("observation.state");
    EXPECT_EQ(column.values, base.values) << name;
    EXPECT_EQ(column.inner_shape, base.inner_shape) << name;
  }
}

TEST(Parquet, DoubleAndIntegerActionsBecomeFloats) {
  const std::string file = "data/chunk-000/episode_000001.parquet";
  const NumericColumn base =
      ParquetTable::open(dataset_path("broken/base_v21") / file).numeric("action");
  const NumericColumn doubles =
      ParquetTable::open(case_file("types-action-float64", file)).numeric("action");
  const NumericColumn integers =
      ParquetTable::open(case_file("types-action-int64", file)).numeric("action");
  for (size_t i = 0; i < base.values.size(); ++i) {
    EXPECT_NEAR(doubles.values[i], base.values[i], 1e-4);
    EXPECT_EQ(integers.values[i], std::round(integers.values[i]));
    EXPECT_NEAR(integers.values[i], 1000 * base.values[i], 0.6);
  }
}

TEST(Parquet, NarrowIndicesAndDoubleTimes) {
  const std::string file = "data/chunk-000/episode_000001.parquet";
  EXPECT_EQ(ParquetTable::open(case_file("types-index-int32", file)).int64("frame_index")[6], 6);
  EXPECT_NEAR(
      ParquetTable::open(case_file("types-timestamp-float64", file)).float64("timestamp")[1], 0.1,
      1e-8);
}

TEST(Parquet, AFeatureOfWidthZero) {
  const NumericColumn target =
      ParquetTable::open(
          case_file("types-zero-width-feature", "data/chunk-000/episode_000001.parquet"))
          .numeric("target");
  EXPECT_EQ(target.num_rows, 7);
  EXPECT_EQ(target.width, 0);
  EXPECT_TRUE(target.values.empty());
}

TEST(Parquet, DepthColumnOfNestedLists) {
  const ParquetTable table =
      ParquetTable::open(dataset_path("two_cam_v30") / "data/chunk-000/file-000.parquet");
  const NumericColumn depth = table.numeric("observation.depth.cam_high");
  EXPECT_EQ(depth.num_rows, 790);
  EXPECT_EQ(depth.inner_shape, (std::vector<int64_t>{24, 32}));
  EXPECT_EQ(depth.values.size(), 790U * 24 * 32);
  EXPECT_TRUE(table.is_numeric("observation.depth.cam_high"));
}

TEST(Parquet, EpisodesTableOfV30) {
  const ParquetTable table =
      ParquetTable::open(dataset_path("pusht_v30") / "meta/episodes/chunk-000/file-000.parquet");
  const std::vector<std::vector<std::string>> tasks = table.string_lists("tasks");
  ASSERT_EQ(static_cast<int64_t>(tasks.size()), table.num_rows());
  for (const auto& row : tasks) EXPECT_FALSE(row.empty());
  EXPECT_EQ(table.float64("videos/observation.image/from_timestamp")[0], 0.0);
  EXPECT_EQ(table.int64("dataset_from_index")[0], 0);
}

TEST(Parquet, TaskTextsAsIndexColumnAndUnderOtherNames) {
  const ParquetTable official =
      ParquetTable::open(dataset_path("pusht_v30") / "meta/tasks.parquet");
  ASSERT_EQ(official.string_column_names().size(), 1U);
  EXPECT_THAT(official.pandas_metadata(), ::testing::HasSubstr("index_columns"));
  EXPECT_EQ(official.strings(official.string_column_names()[0]).size(), 4U);
  const ParquetTable plain =
      ParquetTable::open(case_file("tasks-parquet-no-pandas-metadata", "meta/tasks.parquet"));
  EXPECT_EQ(plain.pandas_metadata(), "");
  EXPECT_EQ(plain.string_column_names().size(), 1U);
}

TEST(Parquet, AllKindsOfStrings) {
  const ParquetTable table = open_types();
  const std::vector<std::string> expected = {
      "a", "b", "\xC3\xA9\xE6\x97\xA5", "a", "b", "\xC3\xA9\xE6\x97\xA5",
      "a", "b", "\xC3\xA9\xE6\x97\xA5", "a", "b", "\xC3\xA9\xE6\x97\xA5"};
  for (const char* name : {"string", "large_string", "dictionary"}) {
    EXPECT_TRUE(table.is_string(name)) << name;
    EXPECT_FALSE(table.is_numeric(name)) << name;
    EXPECT_EQ(table.strings(name), expected) << name;
  }
  EXPECT_EQ(table.string_lists("string_list")[0], std::vector<std::string>{});
  EXPECT_EQ(table.string_lists("string_list")[11], (std::vector<std::string>{expected[2], "x"}));
  EXPECT_EQ(table.string_lists("large_string_list")[7], std::vector<std::string>{"b"});
  EXPECT_EQ(table.schema_metadata("huggingface"), R"({"info": {}})");
  EXPECT_EQ(table.schema_metadata("absent"), "");
}

TEST(Parquet, AllKindsOfNumbers) {
  const ParquetTable table = open_types();
  EXPECT_EQ(table.numeric("bool").values[3], 1.0F);
  EXPECT_EQ(table.numeric("int8").values[0], -6.0F);
  EXPECT_EQ(table.numeric("uint8").values[11], 11.0F);
  EXPECT_EQ(table.numeric("int16").values[11], 11.0F);
  EXPECT_EQ(table.numeric("uint16").values[1], 65534.0F);
  EXPECT_EQ(table.int64("uint32")[0], 4294967295);
  EXPECT_EQ(table.int64("uint64")[11], 11);
  EXPECT_EQ(table.int64("int64_large")[4], (int64_t{1} << 53) + 1);
  EXPECT_EQ(table.int64("bool"), (std::vector<int64_t>{1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0}));
  EXPECT_EQ(table.numeric("half").values[5], 1.25F);
  EXPECT_EQ(table.float64("double")[7], 7.0 / 3.0);
  EXPECT_TRUE(std::isnan(table.numeric("double_special").values[3]));
  EXPECT_TRUE(std::isinf(table.numeric("double_special").values[1]));
  EXPECT_EQ(table.int64("one_item")[9], 9);
}

TEST(Parquet, NestedListsOverSeveralRowGroupsKeepTheirOrder) {
  const NumericColumn nested = open_types().numeric("nested");
  EXPECT_EQ(nested.inner_shape, (std::vector<int64_t>{2, 3}));
  ASSERT_EQ(nested.values.size(), 72U);
  for (size_t i = 0; i < 72; ++i) EXPECT_EQ(nested.values[i], static_cast<float>(i));
}

TEST(Parquet, StoredPictures) {
  const ParquetTable table = open_types();
  EXPECT_TRUE(table.is_picture("binary"));
  EXPECT_TRUE(table.is_picture("picture"));
  EXPECT_FALSE(table.is_picture("string"));
  EXPECT_EQ(table.pictures("binary")[3].bytes, "\xFF\xD8\x03");
  EXPECT_EQ(table.pictures("picture")[2].bytes, "\x89PNG");
  EXPECT_EQ(table.pictures("picture")[3].path, "p3.png");
  for (const char* name : {"images-binary", "images-large-binary", "images-struct-png"}) {
    const ParquetTable stored =
        ParquetTable::open(case_file(name, "data/chunk-000/episode_000001.parquet"));
    const std::vector<StoredPicture> pictures = stored.pictures("observation.images.top");
    ASSERT_EQ(pictures.size(), 7U) << name;
    EXPECT_EQ(pictures[0].bytes.substr(1, 3), "PNG") << name;
  }
  const ParquetTable raw = ParquetTable::open(
      case_file("images-raw-list-uint8", "data/chunk-000/episode_000001.parquet"));
  EXPECT_EQ(raw.numeric("observation.images.top").width, 48 * 64 * 3);
}

}  // namespace
}  // namespace longship::io
