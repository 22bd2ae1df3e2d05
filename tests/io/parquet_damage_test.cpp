#include <fstream>
#include <iterator>
#include <random>

#include "base/error.h"
#include "io/parquet.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;
using longship::testing::dataset_path;
using longship::testing::expect_error;
using longship::testing::scratch_dir;
using longship::testing::source_root;

const char* const kEpisode = "data/chunk-000/episode_000001.parquet";

fs::path case_file(const std::string& name, const std::string& file) {
  return dataset_path("broken/cases") / name / "files" / file;
}

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

ParquetTable open_types() {
  return ParquetTable::open(source_root() / "tests/io/fixtures/types.parquet");
}

TEST(ParquetDamage, FilesThatAreCutEmptyOrMissing) {
  const fs::path cut = case_file("parquet-cut-40-bytes", "data/chunk-000/file-000.parquet");
  expect_error<DataError>([&] { ParquetTable::open(cut); }, {cut.string(), "cut"});
  const fs::path empty = case_file("parquet-zero-bytes", kEpisode);
  expect_error<DataError>([&] { ParquetTable::open(empty); }, {empty.string(), "empty", "0 bytes"});
  const fs::path dir = scratch_dir("parquet_open");
  expect_error<DataError>([&] { ParquetTable::open(dir / "absent.parquet"); },
                          {"absent.parquet", "no such file"});
  expect_error<DataError>([&] { ParquetTable::open(dir); }, {dir.string(), "not a regular file"});
  std::ofstream(dir / "text.parquet")
      << "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n";
  expect_error<DataError>([&] { ParquetTable::open(dir / "text.parquet"); },
                          {"text.parquet", "not a sound parquet file"});
}

TEST(ParquetDamage, AFlippedByteIsFoundByThePageChecksum) {
  const fs::path dir = scratch_dir("parquet_checksum");
  std::string bytes = bytes_of(source_root() / "tests/io/fixtures/checksums.parquet");
  const double value = 40.0;  // row 8 of the second row group of x
  const size_t place = bytes.find(std::string(reinterpret_cast<const char*>(&value), 8));
  ASSERT_NE(place, std::string::npos);
  bytes[place] = static_cast<char>(bytes[place] ^ 1);
  std::ofstream(dir / "x.parquet", std::ios::binary) << bytes;
  const ParquetTable table = ParquetTable::open(dir / "x.parquet");
  expect_error<DataError>([&] { table.float64("x"); }, {"x.parquet", "'x'", "row group 1"});
  EXPECT_EQ(table.int64("y")[63], 63) << "the other column is sound";
}

TEST(ParquetDamage, ThePageOfTheFlippedCase) {
  const fs::path file = case_file("parquet-page-bytes-flipped", kEpisode);
  const ParquetTable table = ParquetTable::open(file);
  int damaged = 0;
  for (const std::string& name : table.column_names()) {
    try {
      table.numeric(name);
    } catch (const DataError& error) {
      ++damaged;
      EXPECT_THAT(error.what(), ::testing::HasSubstr(file.string()));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("'" + name + "'"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("row group 0"));
    }
  }
  EXPECT_EQ(damaged, 1);
}

TEST(ParquetDamage, RaggedRowsAndNullsNameTheRow) {
  const ParquetTable ragged = ParquetTable::open(case_file("types-ragged-row", kEpisode));
  expect_error<DataError>([&] { ragged.numeric("observation.state"); },
                          {kEpisode, "'observation.state'", "row 4", "5 values instead of 6"});
  const ParquetTable null = ParquetTable::open(case_file("types-null-row", kEpisode));
  expect_error<DataError>([&] { null.numeric("observation.state"); },
                          {"'observation.state'", "row 2", "null"});
  const ParquetTable types = open_types();
  expect_error<DataError>([&] { types.numeric("nested_ragged"); },
                          {"row 8", "4 values instead of 3"});
  expect_error<DataError>([&] { types.numeric("item_null"); }, {"row 6", "number 1 is null"});
  expect_error<DataError>([&] { types.numeric("float_null"); }, {"row 10", "null"});
  expect_error<DataError>([&] { types.strings("string_null"); }, {"row 7", "null"});
}

TEST(ParquetDamage, ValuesThatDoNotFit) {
  const ParquetTable table = open_types();
  expect_error<DataError>([&] { table.numeric("double_large"); },
                          {"'double_large'", "row 9", "1e+300"});
  EXPECT_EQ(table.float64("double_large")[9], 1e300);
  expect_error<DataError>([&] { table.int64("uint64_large"); },
                          {"'uint64_large'", "row 5", "18446744073709551615"});
}

TEST(ParquetDamage, WrongTypesAreNamed) {
  const ParquetTable table = open_types();
  expect_error<DataError>([&] { table.numeric("string"); }, {"'string'", "type string", "numbers"});
  expect_error<DataError>([&] { table.numeric("time"); }, {"'time'", "timestamp"});
  expect_error<DataError>([&] { table.int64("double"); }, {"'double'", "type double", "integers"});
  expect_error<DataError>([&] { table.int64("nested"); }, {"'nested'", "[2, 3] numbers per row"});
  expect_error<DataError>([&] { table.strings("int8"); }, {"'int8'", "type int8", "strings"});
  expect_error<DataError>([&] { table.string_lists("string"); }, {"'string'", "lists of strings"});
  expect_error<DataError>([&] { table.pictures("int8"); }, {"'int8'", "pictures"});
  const ParquetTable fields = ParquetTable::open(case_file("types-state-struct", kEpisode));
  expect_error<DataError>([&] { fields.int64("observation.state"); },
                          {"'observation.state'", "struct<"});
  expect_error<DataError>([&] { fields.numeric("observation.state.no"); },
                          {"no column 'observation.state.no'", "observation.state"});
  expect_error<DataError>([&] { table.numeric("stringg"); },
                          {"types.parquet", "no column 'stringg'", "large_string"});
}

TEST(ParquetDamage, RandomDamageGivesDataErrorsOnly) {
  const fs::path dir = scratch_dir("parquet_random");
  const std::string good = bytes_of(dataset_path("broken/base_v21") / kEpisode);
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 150; ++round) {
    std::string bytes = good;
    for (unsigned edits = 1 + random() % 8; edits > 0; --edits) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    std::ofstream(dir / "x.parquet", std::ios::binary) << bytes;
    try {
      const ParquetTable table = ParquetTable::open(dir / "x.parquet");
      for (const std::string& name : table.column_names()) {
        if (table.is_numeric(name)) table.numeric(name);
      }
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 30);
}

}  // namespace
}  // namespace longship::io
