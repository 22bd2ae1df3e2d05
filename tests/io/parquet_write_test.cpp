// Tables written and rows copied, read back.

#include "io/parquet_write.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "io/parquet.h"
#include "support/paths.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;
using longship::testing::dataset_path;
using longship::testing::scratch_dir;
using ::testing::HasSubstr;

TEST(WriteParquet, EveryKindOfColumnReadsBack) {
  const fs::path path = scratch_dir("write_parquet") / "a.parquet";
  const std::vector<WriteColumn> columns = {
      {"whole", std::vector<int64_t>{1, -2, int64_t{1} << 60}},
      {"real", std::vector<double>{0.1, 1e300, -0.0}},
      {"text", std::vector<std::string>{"a", "", "gr\xc3\xbcn"}},
      {"texts", StringLists{{"x", "y"}, {}, {"z"}}},
      {"numbers", DoubleLists{{{1, 2}, {3, 4}, {5, 6}}, 1}},
      {"nested", DoubleLists{{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}, 3}},
      {"counts", Int64Lists{{7}, {8}, {9}}}};
  write_parquet(path, columns, {{"pandas", "{}"}});
  const ParquetTable table = ParquetTable::open(path);
  EXPECT_EQ(table.num_rows(), 3);
  EXPECT_EQ(table.int64("whole"), std::get<std::vector<int64_t>>(columns[0].values));
  EXPECT_EQ(table.float64("real"), std::get<std::vector<double>>(columns[1].values));
  EXPECT_EQ(table.strings("text"), std::get<std::vector<std::string>>(columns[2].values));
  EXPECT_EQ(table.string_lists("texts"), std::get<StringLists>(columns[3].values));
  EXPECT_EQ(table.numeric("numbers").values, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(table.numeric("nested").inner_shape, (std::vector<int64_t>{3, 1, 1}));
  EXPECT_EQ(table.numeric("counts").values, (std::vector<float>{7, 8, 9}));
  EXPECT_EQ(table.pandas_metadata(), "{}");
}

TEST(ParquetRowCopier, RowsKeepTheirOrderTypesAndRowGroups) {
  const fs::path source = dataset_path("two_cam_v30") / "data/chunk-000/file-000.parquet";
  const fs::path path = scratch_dir("copy_rows") / "a.parquet";
  ParquetRowCopier copier(path, {"action", "phase", "observation.depth.cam_high", "episode_index"});
  const std::vector<int64_t> forward = {100, 101, 102}, mixed = {700, 3, 3, 250};
  copier.append(source, forward, {});
  copier.append(source, mixed,
                std::vector<ParquetRowCopier::Replacement>{
                    {"episode_index", std::vector<int64_t>{9, 9, 9, 9}}});
  copier.close();
  const ParquetTable old = ParquetTable::open(source), made = ParquetTable::open(path);
  EXPECT_EQ(
      made.column_names(),
      (std::vector<std::string>{"action", "phase", "observation.depth.cam_high", "episode_index"}));
  EXPECT_EQ(made.row_group_begin(), (std::vector<int64_t>{0, 3, 7}));
  for (const char* name : {"action", "phase", "observation.depth.cam_high"}) {
    EXPECT_EQ(made.type_name(name), old.type_name(name));
    const NumericColumn a = old.numeric(name), b = made.numeric(name);
    size_t row = 0;
    for (const int64_t from : {100, 101, 102, 700, 3, 3, 250}) {
      for (int64_t d = 0; d < a.width; ++d) {
        ASSERT_EQ(a.values[static_cast<size_t>(from * a.width + d)],
                  b.values[row * static_cast<size_t>(a.width) + static_cast<size_t>(d)]);
      }
      ++row;
    }
  }
  EXPECT_EQ(made.int64("episode_index").back(), 9);
  EXPECT_EQ(made.int64("episode_index").front(), old.int64("episode_index")[100]);
}

TEST(ParquetRowCopier, TypesAreConvertedOnlyWhereNothingIsLost) {
  const fs::path folder = scratch_dir("copy_types");
  const std::vector<WriteColumn> whole = {{"x", std::vector<int64_t>{1, 2}}};
  const std::vector<WriteColumn> real = {{"x", std::vector<double>{3.0, 4.0}}};
  const std::vector<WriteColumn> broken = {{"x", std::vector<double>{3.5, 4.0}}};
  write_parquet(folder / "whole.parquet", whole);
  write_parquet(folder / "real.parquet", real);
  write_parquet(folder / "broken.parquet", broken);
  const std::vector<int64_t> rows = {0, 1};
  ParquetRowCopier copier(folder / "out.parquet", {"x"});
  copier.append(folder / "whole.parquet", rows, {});
  copier.append(folder / "real.parquet", rows, {});
  try {
    copier.append(folder / "broken.parquet", rows, {});
    ADD_FAILURE() << "3.5 became a whole number";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("broken.parquet: column 'x' has type double"));
  }
  copier.close();
  EXPECT_EQ(ParquetTable::open(folder / "out.parquet").int64("x"),
            (std::vector<int64_t>{1, 2, 3, 4}));
  ParquetRowCopier other(folder / "other.parquet", {"y"});
  try {
    other.append(folder / "whole.parquet", rows, {});
    ADD_FAILURE() << "a column that is not there was copied";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no column 'y'; it has x"));
  }
}

}  // namespace
}  // namespace longship::io
