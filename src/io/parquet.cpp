#include "io/parquet.h"

#include <arrow/api.h>
#include <arrow/config.h>
#include <arrow/io/file.h>
#include <arrow/util/key_value_metadata.h>
#include <fmt/core.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "base/error.h"
#include "base/strings.h"
#include "io/parquet_arrays.h"
#include "io/parquet_fields.h"

namespace longship::io {
namespace {

/// Columns of the same rows as one.
NumericColumn side_by_side(const std::vector<NumericColumn>& parts) {
  NumericColumn out;
  out.num_rows = parts.front().num_rows;
  out.width = 0;
  for (const NumericColumn& part : parts) out.width += part.width;
  out.inner_shape = {out.width};
  for (int64_t row = 0; row < out.num_rows; ++row) {
    for (const NumericColumn& part : parts) {
      const auto begin = part.values.begin() + row * part.width;
      out.values.insert(out.values.end(), begin, begin + part.width);
    }
  }
  return out;
}

/// A column as flat arrays of numbers and the shape that all rows have.
struct FlatColumn {
  std::vector<int64_t> shape;      // per row
  std::vector<ArrayPtr> leaves;    // numbers, without nulls, one array per chunk
  std::vector<int64_t> first_row;  // of each leaf
  int64_t width() const {
    int64_t product = 1;
    for (int64_t dim : shape) product *= dim;
    return product;
  }
};

}  // namespace

struct ParquetTable::Impl {
  std::filesystem::path path;
  std::unique_ptr<parquet::arrow::FileReader> reader;
  std::shared_ptr<arrow::Schema> schema;

  [[noreturn]] void fail(const std::string& fact) const {
    throw DataError(fmt::format("{}: {}", path.string(), fact));
  }
  [[noreturn]] void fail_column(std::string_view name, const std::string& fact) const {
    fail(fmt::format("column '{}': {}", name, fact));
  }
  [[noreturn]] void fail_row(std::string_view name, int64_t row, const std::string& fact) const {
    fail(fmt::format("column '{}', row {}: {}", name, row, fact));
  }
  [[noreturn]] void wrong_type(std::string_view name, std::string_view wanted) const {
    fail_column(name, fmt::format("has type {}, expected {}", type_of(name)->ToString(), wanted));
  }

  FieldPlace place_of(std::string_view name) const {
    int times = 0;
    if (std::optional<FieldPlace> place = find_field(*schema, name, &times)) return *place;
    if (times > 1) fail_column(name, fmt::format("is there {} times", times));
    std::vector<std::string> names = schema->field_names();
    for (std::string& known : names) known = printable(known);
    fail(fmt::format("no column '{}'; the file has {}", name, join(names, ", ")));
  }
  TypePtr type_of(std::string_view name) const { return place_of(name).type; }

  void check_no_nulls(const arrow::Array& array, std::string_view name, int64_t first_row,
                      int64_t items_per_row) const;
  /// `only`: one row group; -1: all.
  std::vector<ArrayPtr> read(std::string_view name, int only = -1) const;
  FlatColumn flatten(std::string_view name, int only = -1) const;
  FlatColumn one_number_per_row(std::string_view name) const;
  std::vector<StoredPicture> raw_pictures(std::string_view name, int only) const;
  std::vector<StoredPicture> pictures(std::string_view name, int only) const;
};

void ParquetTable::Impl::check_no_nulls(const arrow::Array& array, std::string_view name,
                                        int64_t first_row, int64_t items_per_row) const {
  if (array.null_count() == 0) return;
  for (int64_t i = 0; i < array.length(); ++i) {
    if (!array.IsNull(i)) continue;
    if (items_per_row == 1) fail_row(name, first_row + i, "is null, expected a value");
    fail_row(name, first_row + i / items_per_row,
             fmt::format("number {} is null, expected a value", i % items_per_row));
  }
}

/// All chunks of a column, row group by row group so that a fault can be placed.
std::vector<ArrayPtr> ParquetTable::Impl::read(std::string_view name, int only) const {
  const FieldPlace place = place_of(name);
  const std::string& root = schema->field(place.column)->name();
  const parquet::SchemaDescriptor& columns = *reader->parquet_reader()->metadata()->schema();
  std::vector<int> leaves;
  for (int i = 0; i < columns.num_columns(); ++i) {
    if (columns.GetColumnRoot(i)->name() == root) leaves.push_back(i);
  }
  std::vector<ArrayPtr> chunks;
  int64_t rows = 0;
  const int first = only < 0 ? 0 : only, end = only < 0 ? reader->num_row_groups() : only + 1;
  for (int group = first; group < end; ++group) {
    std::string reason;
    // Parquet's decoders throw; Arrow's layer above them returns a status.
    try {
      arrow::Result<std::shared_ptr<arrow::Table>> table = reader->ReadRowGroup(group, leaves);
      arrow::Status status = table.status();
      // A decoder that was fed damaged bytes may give offsets and indices that point outside their
      // buffers.
      if (status.ok()) status = (*table)->ValidateFull();
      if (status.ok() && (*table)->num_columns() != 1)
        status = arrow::Status::Invalid("the schema is inconsistent");
      if (status.ok()) {
        const std::vector<ArrayPtr>& read_chunks = (*table)->column(0)->chunks();
        chunks.insert(chunks.end(), read_chunks.begin(), read_chunks.end());
        rows += (*table)->num_rows();
        continue;
      }
      reason = status.message();
    } catch (const std::bad_alloc&) {
      reason = "the sizes it states do not fit in memory";
    } catch (const std::exception& error) {
      reason = error.what();
    }
    fail_column(name, fmt::format("row group {} is damaged: {}", group, printable(reason, 300)));
  }
  const int64_t stated = only < 0
                             ? reader->parquet_reader()->metadata()->num_rows()
                             : reader->parquet_reader()->metadata()->RowGroup(only)->num_rows();
  if (rows != stated) {
    fail_column(name, fmt::format("has {} rows, the footer says {}", rows, stated));
  }
  std::erase_if(chunks, [](const ArrayPtr& chunk) { return chunk->length() == 0; });
  rows = 0;
  for (ArrayPtr& chunk : chunks) {
    for (const int field : place.path) {
      check_no_nulls(*chunk, name, rows, 1);
      chunk = static_cast<const arrow::StructArray&>(*chunk).field(field);
    }
    rows += chunk->length();
  }
  return chunks;
}

FlatColumn ParquetTable::Impl::flatten(std::string_view name, int only) const {
  FlatColumn column;
  std::vector<bool> known;  // per level: has a row told its length yet
  int64_t first_row = 0;
  TypePtr type = type_of(name);
  for (; is_list_type(type->id());
       type = static_cast<const arrow::BaseListType&>(*type).value_type()) {
    const bool fixed = type->id() == arrow::Type::FIXED_SIZE_LIST;
    column.shape.push_back(fixed ? static_cast<const arrow::FixedSizeListType&>(*type).list_size()
                                 : 0);
    known.push_back(fixed);
  }
  if (!is_number(type->id())) wrong_type(name, "numbers or lists of numbers");
  for (ArrayPtr array : read(name, only)) {
    const int64_t num_rows = array->length();
    int64_t items_per_row = 1;
    for (size_t level = 0; is_list_type(array->type_id()); ++level) {
      check_no_nulls(*array, name, first_row, items_per_row);
      const Items items = items_of(*array);
      for (size_t i = 0; i < items.lengths.size(); ++i) {
        if (!known[level]) {
          column.shape[level] = items.lengths[i];
          known[level] = true;
        }
        if (items.lengths[i] != column.shape[level]) {
          fail_row(
              name, first_row + static_cast<int64_t>(i) / items_per_row,
              fmt::format("has {} values instead of {}", items.lengths[i], column.shape[level]));
        }
      }
      items_per_row *= column.shape[level];
      array = items.values;
      if (items_per_row == 0) break;
    }
    if (items_per_row > 0) {
      check_no_nulls(*array, name, first_row, items_per_row);
      column.leaves.push_back(array);
      column.first_row.push_back(first_row);
    }
    first_row += num_rows;
  }
  return column;
}

FlatColumn ParquetTable::Impl::one_number_per_row(std::string_view name) const {
  FlatColumn column = flatten(name);
  if (column.width() != 1) {
    fail_column(name,
                fmt::format("has {} numbers per row, expected one", shape_text(column.shape)));
  }
  return column;
}

ParquetTable::ParquetTable(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ParquetTable::ParquetTable(ParquetTable&&) noexcept = default;
ParquetTable& ParquetTable::operator=(ParquetTable&&) noexcept = default;
ParquetTable::~ParquetTable() = default;

ParquetTable ParquetTable::open(const std::filesystem::path& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  std::error_code error;
  const auto status_of_path = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status_of_path)) impl->fail("no such file");
  if (!std::filesystem::is_regular_file(status_of_path))
    impl->fail("not a regular file, expected a parquet file");
  if (std::filesystem::file_size(path, error) == 0)
    impl->fail("the parquet file is empty (0 bytes)");
  std::string reason;
  try {
    parquet::ReaderProperties properties = parquet::default_reader_properties();
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties arrow_properties;
    arrow_properties.set_use_threads(false);
    arrow_properties.set_pre_buffer(false);
    const auto open_reader = [&]() -> arrow::Status {
      ARROW_ASSIGN_OR_RAISE(auto file, arrow::io::ReadableFile::Open(path.string()));
      parquet::arrow::FileReaderBuilder builder;
      ARROW_RETURN_NOT_OK(builder.Open(file, properties));
      ARROW_RETURN_NOT_OK(builder.properties(arrow_properties)->Build(&impl->reader));
      return impl->reader->GetSchema(&impl->schema);
    };
    const arrow::Status status = open_reader();
    if (status.ok()) return ParquetTable(std::move(impl));
    reason = status.message();
  } catch (const std::bad_alloc&) {
    reason = "the sizes its footer states do not fit in memory";
  } catch (const std::exception& caught) {
    reason = caught.what();
  }
  impl->fail(fmt::format("not a sound parquet file (cut while it was written, or damaged): {}",
                         printable(reason, 300)));
}

const std::filesystem::path& ParquetTable::path() const {
  return impl_->path;
}
int64_t ParquetTable::num_rows() const {
  return impl_->reader->parquet_reader()->metadata()->num_rows();
}
std::vector<std::string> ParquetTable::column_names() const {
  return impl_->schema->field_names();
}

bool ParquetTable::has(std::string_view name) const {
  int times = 0;
  return find_field(*impl_->schema, name, &times).has_value() || times > 0;
}

std::string ParquetTable::type_name(std::string_view name) const {
  return impl_->type_of(name)->ToString();
}

bool ParquetTable::is_numeric(std::string_view name) const {
  TypePtr type = impl_->type_of(name);
  while (is_list_type(type->id()))
    type = static_cast<const arrow::BaseListType&>(*type).value_type();
  return is_number(type->id());
}

bool ParquetTable::is_string(std::string_view name) const {
  return is_text_type(*impl_->type_of(name));
}

bool ParquetTable::is_picture(std::string_view name) const {
  return is_picture_type(*impl_->type_of(name));
}

std::vector<std::string> ParquetTable::string_column_names() const {
  std::vector<std::string> names;
  for (const std::shared_ptr<arrow::Field>& field : impl_->schema->fields()) {
    if (is_text_type(*field->type())) names.push_back(field->name());
  }
  return names;
}

std::string ParquetTable::pandas_metadata() const {
  return schema_metadata("pandas");
}

std::string ParquetTable::schema_metadata(std::string_view key) const {
  const std::shared_ptr<const arrow::KeyValueMetadata>& metadata = impl_->schema->metadata();
  if (metadata == nullptr) return {};
  const int found = metadata->FindKey(std::string(key));
  return found < 0 ? std::string() : metadata->value(found);
}

NumericColumn ParquetTable::numeric(std::string_view name) const {
  const TypePtr type = impl_->type_of(name);
  if (type->id() == arrow::Type::STRUCT && type->num_fields() > 0) {
    std::vector<NumericColumn> parts;
    for (const std::shared_ptr<arrow::Field>& field : type->fields()) {
      parts.push_back(numeric(fmt::format("{}.{}", name, field->name())));
    }
    return side_by_side(parts);
  }
  const FlatColumn flat = impl_->flatten(name);
  NumericColumn column;
  column.num_rows = num_rows();
  column.inner_shape = flat.shape;
  column.width = flat.width();
  column.values.reserve(static_cast<size_t>(column.num_rows * column.width));
  for (size_t leaf = 0; leaf < flat.leaves.size(); ++leaf) {
    visit_numbers(*flat.leaves[leaf], [&](const auto& array) {
      for (int64_t i = 0; i < array.length(); ++i) {
        const auto value = value_of(array, i);
        if constexpr (std::is_same_v<decltype(value), const double>) {
          if (std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max()) {
            impl_->fail_row(name, flat.first_row[leaf] + i / column.width,
                            fmt::format("{} is beyond the range of a 32-bit float", value));
          }
        }
        column.values.push_back(static_cast<float>(value));
      }
    });
  }
  return column;
}

std::vector<int64_t> ParquetTable::int64(std::string_view name) const {
  const FlatColumn flat = impl_->one_number_per_row(name);
  std::vector<int64_t> values;
  values.reserve(static_cast<size_t>(num_rows()));
  for (size_t leaf = 0; leaf < flat.leaves.size(); ++leaf) {
    if (arrow::is_floating(flat.leaves[leaf]->type_id())) impl_->wrong_type(name, "integers");
    visit_numbers(*flat.leaves[leaf], [&](const auto& array) {
      for (int64_t i = 0; i < array.length(); ++i) {
        const auto value = value_of(array, i);
        if constexpr (std::is_same_v<decltype(value), const uint64_t>) {
          if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
            impl_->fail_row(name, flat.first_row[leaf] + i,
                            fmt::format("{} is beyond the range of int64", value));
          }
        }
        values.push_back(static_cast<int64_t>(value));
      }
    });
  }
  return values;
}

std::vector<double> ParquetTable::float64(std::string_view name) const {
  const FlatColumn flat = impl_->one_number_per_row(name);
  std::vector<double> values;
  values.reserve(static_cast<size_t>(num_rows()));
  for (const ArrayPtr& leaf : flat.leaves) {
    visit_numbers(*leaf, [&](const auto& array) {
      for (int64_t i = 0; i < array.length(); ++i)
        values.push_back(static_cast<double>(value_of(array, i)));
    });
  }
  return values;
}

std::vector<std::string> ParquetTable::strings(std::string_view name) const {
  if (!is_string(name)) impl_->wrong_type(name, "strings");
  std::vector<std::string> values;
  values.reserve(static_cast<size_t>(num_rows()));
  for (const ArrayPtr& chunk : impl_->read(name)) {
    impl_->check_no_nulls(*chunk, name, static_cast<int64_t>(values.size()), 1);
    for (int64_t i = 0; i < chunk->length(); ++i) values.emplace_back(text_at(*chunk, i));
  }
  return values;
}

std::vector<std::vector<std::string>> ParquetTable::string_lists(std::string_view name) const {
  const TypePtr type = impl_->type_of(name);
  if (!is_list_type(type->id()) ||
      !is_text_type(*static_cast<const arrow::BaseListType&>(*type).value_type())) {
    impl_->wrong_type(name, "lists of strings");
  }
  std::vector<std::vector<std::string>> rows;
  rows.reserve(static_cast<size_t>(num_rows()));
  for (const ArrayPtr& chunk : impl_->read(name)) {
    impl_->check_no_nulls(*chunk, name, static_cast<int64_t>(rows.size()), 1);
    const Items items = items_of(*chunk);
    int64_t next = 0;
    for (int64_t length : items.lengths) {
      std::vector<std::string>& row = rows.emplace_back();
      for (int64_t i = 0; i < length; ++i, ++next) {
        if (items.values->IsNull(next)) {
          impl_->fail_row(name, static_cast<int64_t>(rows.size()) - 1,
                          fmt::format("string {} is null", i));
        }
        row.emplace_back(text_at(*items.values, next));
      }
    }
  }
  return rows;
}

std::vector<int64_t> ParquetTable::row_group_begin() const {
  std::vector<int64_t> begin = {0};
  for (int group = 0; group < impl_->reader->num_row_groups(); ++group) {
    begin.push_back(begin.back() +
                    impl_->reader->parquet_reader()->metadata()->RowGroup(group)->num_rows());
  }
  return begin;
}

std::vector<StoredPicture> ParquetTable::pictures(std::string_view name) const {
  return impl_->pictures(name, -1);
}

std::vector<StoredPicture> ParquetTable::pictures(std::string_view name, int64_t row_group) const {
  LS_CHECK(row_group >= 0 && row_group < impl_->reader->num_row_groups(), DataError,
           "{}: row group {} of {} was asked for", impl_->path.string(), row_group,
           impl_->reader->num_row_groups());
  return impl_->pictures(name, static_cast<int>(row_group));
}

/// Pixels as lists of uint8, nested to any depth.
std::vector<StoredPicture> ParquetTable::Impl::raw_pictures(std::string_view name, int only) const {
  const FlatColumn flat = flatten(name, only);
  std::vector<StoredPicture> pictures;
  const int64_t width = flat.width();
  for (const ArrayPtr& leaf : flat.leaves) {
    if (leaf->type_id() != arrow::Type::UINT8) {
      wrong_type(name, "encoded pictures, or lists of uint8");
    }
    const uint8_t* values = static_cast<const arrow::UInt8Array&>(*leaf).raw_values();
    for (int64_t at = 0; at + width <= leaf->length(); at += width) {
      StoredPicture& picture = pictures.emplace_back();
      picture.is_raw = true;
      picture.bytes.assign(reinterpret_cast<const char*>(values + at), static_cast<size_t>(width));
    }
  }
  return pictures;
}

std::vector<StoredPicture> ParquetTable::Impl::pictures(std::string_view name, int only) const {
  if (is_list_type(type_of(name)->id())) return raw_pictures(name, only);
  if (!is_picture_type(*type_of(name))) {
    wrong_type(name, "encoded pictures (binary, or a struct of bytes and path), or lists of uint8");
  }
  std::vector<StoredPicture> pictures;
  for (const ArrayPtr& chunk : read(name, only)) {
    check_no_nulls(*chunk, name, static_cast<int64_t>(pictures.size()), 1);
    ArrayPtr bytes = chunk, file;
    if (chunk->type_id() == arrow::Type::STRUCT) {
      const auto& fields = static_cast<const arrow::StructArray&>(*chunk);
      bytes = fields.GetFieldByName("bytes");
      file = fields.GetFieldByName("path");
      // A column of nothing but nulls has the type null.
      if (bytes != nullptr && !is_bytes(bytes->type_id())) bytes = nullptr;
      if (file != nullptr && !is_text(file->type_id())) file = nullptr;
    }
    for (int64_t i = 0; i < chunk->length(); ++i) {
      StoredPicture& picture = pictures.emplace_back();
      if (bytes != nullptr && !bytes->IsNull(i)) picture.bytes = std::string(bytes_at(*bytes, i));
      if (file != nullptr && !file->IsNull(i)) picture.path = std::string(bytes_at(*file, i));
      if (picture.bytes.empty() && picture.path.empty()) {
        fail_row(name, static_cast<int64_t>(pictures.size()) - 1, "holds neither bytes nor a path");
      }
    }
  }
  return pictures;
}

std::string arrow_version() {
  return arrow::GetBuildInfo().version_string;
}

}  // namespace longship::io
