#include "io/parquet_write.h"

#include <arrow/api.h>
#include <arrow/compute/api.h>
#include <arrow/compute/cast.h>
#include <arrow/io/file.h>
#include <arrow/util/key_value_metadata.h>
#include <fmt/core.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/writer.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/strings.h"

namespace longship::io {

namespace {

using ArrayPtr = std::shared_ptr<arrow::Array>;
using TablePtr = std::shared_ptr<arrow::Table>;

void check(const arrow::Status& status, const std::filesystem::path& path, const char* what) {
  LS_CHECK(status.ok(), DataError, "{}: {}: {}", path.string(), what,
           printable(status.message(), 300));
}

template <class T>
T take(arrow::Result<T> result, const std::filesystem::path& path, const char* what) {
  check(result.status(), path, what);
  return std::move(result).ValueUnsafe();
}

// Parquet's own layer throws; what stands above it returns a status.
template <class Call>
void guarded(const std::filesystem::path& path, const char* what, Call&& call) {
  try {
    call();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DataError(fmt::format("{}: {}: {}", path.string(), what, printable(error.what(), 300)));
  }
}

std::unique_ptr<parquet::arrow::FileWriter> open_writer(
    const std::filesystem::path& path, const arrow::Schema& schema,
    std::shared_ptr<arrow::io::FileOutputStream>& sink) {
  const char* what = "the table cannot be written";
  sink = take(arrow::io::FileOutputStream::Open(path.string()), path, what);
  auto properties = parquet::WriterProperties::Builder()
                        .compression(parquet::Compression::SNAPPY)
                        ->enable_page_checksum()
                        ->build();
  // With the Arrow schema stored, lists of fixed size come back as such.
  auto arrow_properties = parquet::ArrowWriterProperties::Builder().store_schema()->build();
  return take(parquet::arrow::FileWriter::Open(schema, arrow::default_memory_pool(), sink,
                                               properties, arrow_properties),
              path, what);
}

ArrayPtr finish(arrow::ArrayBuilder& builder) {
  ArrayPtr array;
  const arrow::Status status = builder.Finish(&array);
  LS_CHECK(status.ok(), InternalError, "a column cannot be built: {}", status.message());
  return array;
}

void must(const arrow::Status& status) {
  LS_CHECK(status.ok(), InternalError, "a column cannot be built: {}", status.message());
}

ArrayPtr array_of(const std::vector<int64_t>& values) {
  arrow::Int64Builder builder;
  must(builder.AppendValues(values));
  return finish(builder);
}

ArrayPtr array_of(const std::vector<float>& values) {
  arrow::FloatBuilder builder;
  must(builder.AppendValues(values));
  return finish(builder);
}

ArrayPtr array_of(const std::vector<double>& values) {
  arrow::DoubleBuilder builder;
  must(builder.AppendValues(values));
  return finish(builder);
}

ArrayPtr array_of(const std::vector<std::string>& values) {
  arrow::StringBuilder builder;
  must(builder.AppendValues(values));
  return finish(builder);
}

// The items of all rows as one array under a list level with these row lengths.
ArrayPtr list_of(const ArrayPtr& items, const std::vector<int32_t>& offsets) {
  arrow::Int32Builder builder;
  must(builder.AppendValues(offsets));
  const auto type = arrow::list(arrow::field("element", items->type()));
  auto list = arrow::ListArray::FromArrays(type, *finish(builder), *items);
  LS_CHECK(list.ok(), InternalError, "a column of lists cannot be built: {}",
           list.status().message());
  return *list;
}

template <class Rows>
std::vector<int32_t> offsets_of(const Rows& rows) {
  std::vector<int32_t> offsets = {0};
  for (const auto& row : rows) offsets.push_back(offsets.back() + static_cast<int32_t>(row.size()));
  return offsets;
}

template <class T>
ArrayPtr array_of(const std::vector<std::vector<T>>& rows) {
  std::vector<T> items;
  for (const auto& row : rows) items.insert(items.end(), row.begin(), row.end());
  return list_of(array_of(items), offsets_of(rows));
}

ArrayPtr array_of(const DoubleLists& lists) {
  std::vector<double> items;
  for (const auto& row : lists.rows) items.insert(items.end(), row.begin(), row.end());
  ArrayPtr array = array_of(items);
  std::vector<int32_t> single(items.size() + 1);
  for (size_t i = 0; i < single.size(); ++i) single[i] = static_cast<int32_t>(i);
  for (int level = 1; level < lists.depth; ++level) array = list_of(array, single);
  return list_of(array, offsets_of(lists.rows));
}

}  // namespace

void write_parquet(const std::filesystem::path& path, std::span<const WriteColumn> columns,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<ArrayPtr> arrays;
  for (const WriteColumn& column : columns) {
    arrays.push_back(
        std::visit([](const auto& values) { return array_of(values); }, column.values));
    fields.push_back(arrow::field(column.name, arrays.back()->type()));
    LS_CHECK(arrays.back()->length() == arrays.front()->length(), InternalError,
             "{}: column '{}' has {} rows, the first has {}", path.string(), column.name,
             arrays.back()->length(), arrays.front()->length());
  }
  std::shared_ptr<arrow::KeyValueMetadata> pairs;
  if (!metadata.empty()) {
    pairs = std::make_shared<arrow::KeyValueMetadata>();
    for (const auto& [key, value] : metadata) pairs->Append(key, value);
  }
  const auto schema = arrow::schema(fields, pairs);
  const char* what = "the table cannot be written";
  guarded(path, what, [&] {
    std::shared_ptr<arrow::io::FileOutputStream> sink;
    const auto writer = open_writer(path, *schema, sink);
    const TablePtr table = arrow::Table::Make(schema, arrays);
    if (table->num_rows() > 0) check(writer->WriteTable(*table, table->num_rows()), path, what);
    check(writer->Close(), path, what);
    check(sink->Close(), path, what);
  });
}

/// One file that rows are taken from.
struct SourceFile {
  std::filesystem::path path;
  std::unique_ptr<parquet::arrow::FileReader> reader;
  std::shared_ptr<arrow::Schema> schema;
  std::vector<int64_t> group_begin;  // first row of each row group, and the number of rows
  std::vector<std::pair<int, TablePtr>> recent;

  explicit SourceFile(const std::filesystem::path& file) : path(file) {
    const char* what = "the table cannot be read";
    guarded(path, what, [&] {
      parquet::ReaderProperties properties = parquet::default_reader_properties();
      properties.set_page_checksum_verification(true);
      auto input = take(arrow::io::ReadableFile::Open(path.string()), path, what);
      parquet::arrow::FileReaderBuilder builder;
      check(builder.Open(input, properties), path, what);
      parquet::ArrowReaderProperties arrow_properties;
      arrow_properties.set_use_threads(false);
      check(builder.properties(arrow_properties)->Build(&reader), path, what);
      check(reader->GetSchema(&schema), path, what);
      group_begin.push_back(0);
      for (int group = 0; group < reader->num_row_groups(); ++group) {
        group_begin.push_back(group_begin.back() +
                              reader->parquet_reader()->metadata()->RowGroup(group)->num_rows());
      }
    });
  }

  /// A row group. The last two are kept: episodes that follow each other often share one.
  TablePtr group(int number) {
    for (const auto& [known, table] : recent) {
      if (known == number) return table;
    }
    TablePtr table;
    const char* what = "the table is damaged";
    guarded(path, what, [&] {
      table = take(reader->ReadRowGroup(number), path, what);
      check(table->ValidateFull(), path, what);
    });
    if (recent.size() == 2) recent.erase(recent.begin());
    recent.emplace_back(number, table);
    return table;
  }

  /// Rows in the given order, with the row groups that hold them read and no others.
  TablePtr rows(std::span<const int64_t> wanted) {
    const auto [low, high] = std::minmax_element(wanted.begin(), wanted.end());
    LS_CHECK(*low >= 0 && *high < group_begin.back(), DataError,
             "{}: row {} is asked for, it has {}", path.string(), *low < 0 ? *low : *high,
             group_begin.back());
    const auto group_of = [&](int64_t row) {
      return static_cast<int>(std::upper_bound(group_begin.begin(), group_begin.end() - 1, row) -
                              group_begin.begin()) -
             1;
    };
    std::vector<int> groups;
    for (int group = group_of(*low); group <= group_of(*high); ++group) groups.push_back(group);
    const char* what = "the table is damaged";
    std::vector<TablePtr> parts;
    for (const int number : groups) parts.push_back(group(number));
    const TablePtr table = take(arrow::ConcatenateTables(parts), path, what);
    const int64_t begin = group_begin[static_cast<size_t>(groups.front())];
    bool in_order = true;
    for (size_t i = 1; i < wanted.size(); ++i) in_order &= wanted[i] == wanted[i - 1] + 1;
    if (in_order) return table->Slice(*low - begin, static_cast<int64_t>(wanted.size()));
    std::vector<int64_t> local(wanted.begin(), wanted.end());
    for (int64_t& row : local) row -= begin;
    const arrow::Datum taken =
        take(arrow::compute::Take(arrow::Datum(table), arrow::Datum(array_of(local))), path, what);
    return taken.table();
  }
};

struct ParquetRowCopier::Impl {
  std::filesystem::path path;
  std::vector<std::string> columns;
  std::shared_ptr<arrow::Schema> schema;
  std::shared_ptr<arrow::io::FileOutputStream> sink;
  std::unique_ptr<parquet::arrow::FileWriter> writer;
  std::unique_ptr<SourceFile> source;  // the last one, kept open

  void begin(const arrow::Table& table);
  std::shared_ptr<arrow::ChunkedArray> converted(const std::shared_ptr<arrow::ChunkedArray>& values,
                                                 const arrow::Field& field) const;
};

void ParquetRowCopier::Impl::begin(const arrow::Table& table) {
  std::shared_ptr<const arrow::KeyValueMetadata> metadata;
  // The types that the Hugging Face library notes down hold for the same columns only.
  if (source->schema->metadata() != nullptr && source->schema->field_names() == columns) {
    auto kept = std::make_shared<arrow::KeyValueMetadata>();
    for (int64_t i = 0; i < source->schema->metadata()->size(); ++i) {
      if (source->schema->metadata()->key(i) == "huggingface") {
        kept->Append("huggingface", source->schema->metadata()->value(i));
      }
    }
    metadata = kept;
  }
  schema = arrow::schema(table.schema()->fields(), metadata);
  guarded(path, "the table cannot be written", [&] { writer = open_writer(path, *schema, sink); });
}

std::shared_ptr<arrow::ChunkedArray> ParquetRowCopier::Impl::converted(
    const std::shared_ptr<arrow::ChunkedArray>& values, const arrow::Field& field) const {
  if (values->type()->Equals(field.type())) return values;
  const arrow::Result<arrow::Datum> cast =
      arrow::compute::Cast(arrow::Datum(values), field.type(), arrow::compute::CastOptions::Safe());
  LS_CHECK(
      cast.ok(), DataError,
      "{}: column '{}' has type {}, which does not convert to {} as the files before have it: {}",
      source->path.string(), field.name(), values->type()->ToString(), field.type()->ToString(),
      printable(cast.status().message(), 200));
  return cast->chunked_array();
}

ParquetRowCopier::ParquetRowCopier(std::filesystem::path path, std::vector<std::string> columns)
    : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(path);
  impl_->columns = std::move(columns);
}

ParquetRowCopier::~ParquetRowCopier() = default;

void ParquetRowCopier::append(const std::filesystem::path& source, std::span<const int64_t> rows,
                              std::span<const Replacement> replaced) {
  if (rows.empty()) return;
  if (impl_->source == nullptr || impl_->source->path != source) {
    impl_->source = std::make_unique<SourceFile>(source);
  }
  const TablePtr table = impl_->source->rows(rows);
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<std::shared_ptr<arrow::ChunkedArray>> arrays;
  for (const std::string& name : impl_->columns) {
    const auto own = std::find_if(replaced.begin(), replaced.end(),
                                  [&](const Replacement& r) { return r.name == name; });
    if (own != replaced.end()) {
      const ArrayPtr values =
          std::visit([](const auto& numbers) { return array_of(numbers); }, own->values);
      LS_CHECK(values->length() == static_cast<int64_t>(rows.size()), InternalError,
               "{}: {} values replace column '{}' of {} rows", source.string(), values->length(),
               name, rows.size());
      arrays.push_back(std::make_shared<arrow::ChunkedArray>(values));
      fields.push_back(arrow::field(name, values->type()));
      continue;
    }
    const int index = table->schema()->GetFieldIndex(name);
    LS_CHECK(index >= 0, DataError, "{}: no column '{}'; it has {}", source.string(), name,
             join(table->schema()->field_names(), ", "));
    arrays.push_back(table->column(index));
    fields.push_back(table->schema()->field(index));
  }
  TablePtr chosen = arrow::Table::Make(arrow::schema(fields), arrays);
  if (impl_->writer == nullptr) impl_->begin(*chosen);
  for (size_t i = 0; i < arrays.size(); ++i) {
    arrays[i] = impl_->converted(arrays[i], *impl_->schema->field(static_cast<int>(i)));
  }
  chosen = arrow::Table::Make(impl_->schema, arrays);
  const char* what = "the table cannot be written";
  guarded(impl_->path, what, [&] {
    check(impl_->writer->WriteTable(*chosen, chosen->num_rows()), impl_->path, what);
  });
}

uint64_t ParquetRowCopier::bytes_written() const {
  if (impl_->sink == nullptr) return 0;
  const arrow::Result<int64_t> at = impl_->sink->Tell();
  return at.ok() ? static_cast<uint64_t>(*at) : 0;
}

void ParquetRowCopier::close() {
  if (impl_->writer == nullptr) return;
  const char* what = "the table cannot be written";
  guarded(impl_->path, what, [&] {
    check(impl_->writer->Close(), impl_->path, what);
    check(impl_->sink->Close(), impl_->path, what);
  });
  impl_->writer.reset();
}

}  // namespace longship::io
