#include "io/parquet_fields.h"

#include <string>

namespace longship::io {

namespace {

/// What is left of `name` behind `prefix` and a dot; empty when it does not begin so.
std::string_view behind(std::string_view name, std::string_view prefix) {
  const bool inside =
      name.size() > prefix.size() + 1 && name.starts_with(prefix) && name[prefix.size()] == '.';
  return inside ? name.substr(prefix.size() + 1) : std::string_view();
}

bool descend(const arrow::DataType& type, std::string_view rest, FieldPlace& place) {
  if (type.id() != arrow::Type::STRUCT) return false;
  for (int i = 0; i < type.num_fields(); ++i) {
    const arrow::Field& field = *type.field(i);
    place.path.push_back(i);
    if (rest == field.name()) {
      place.type = field.type();
      return true;
    }
    const std::string_view deeper = behind(rest, field.name());
    if (!deeper.empty() && descend(*field.type(), deeper, place)) return true;
    place.path.pop_back();
  }
  return false;
}

}  // namespace

std::optional<FieldPlace> find_field(const arrow::Schema& schema, std::string_view name,
                                     int* times) {
  const std::vector<int> columns = schema.GetAllFieldIndices(std::string(name));
  *times = static_cast<int>(columns.size());
  if (columns.size() > 1) return std::nullopt;
  if (columns.size() == 1) return FieldPlace{columns[0], {}, schema.field(columns[0])->type()};
  for (int c = 0; c < schema.num_fields(); ++c) {
    FieldPlace place;
    place.column = c;
    const std::string_view rest = behind(name, schema.field(c)->name());
    if (!rest.empty() && descend(*schema.field(c)->type(), rest, place)) return place;
  }
  return std::nullopt;
}

}  // namespace longship::io
