// Statistics that a recipe names: of a checkpoint, of another dataset, of openpi.

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/strings.h"
#include "data/lerobot/json_text.h"
#include "train/training_data.h"

namespace longship::train {
namespace {

using Json = nlohmann::ordered_json;

data::FeatureStats read_entry(const Json& entry, const std::string& what) {
  LS_CHECK(entry.is_object(), DataError, "{} is no object of statistics", what);
  data::FeatureStats out;
  size_t width = 0;
  for (const auto& [key, target] :
       {std::pair{"min", &out.min}, std::pair{"max", &out.max}, std::pair{"mean", &out.mean},
        std::pair{"std", &out.std}, std::pair{"q01", &out.q01}, std::pair{"q99", &out.q99}}) {
    const auto found = entry.find(key);
    if (found == entry.end() || found->is_null()) continue;
    *target = data::lerobot::json_numbers(*found, what + "." + key);
    for (const double value : *target) {
      LS_CHECK(std::isfinite(value), DataError, "{}.{} holds {}", what, key, value);
    }
    LS_CHECK(width == 0 || width == target->size(), DataError,
             "{}: its statistics have {} and {} numbers", what, width, target->size());
    width = target->size();
  }
  LS_CHECK(width > 0, DataError, "{} has none of min, max, mean, std, q01, q99", what);
  const auto count = entry.find("count");
  if (count != entry.end() && !count->is_null()) {
    const std::vector<double> numbers = data::lerobot::json_numbers(*count, what + ".count");
    if (!numbers.empty() && numbers[0] >= 0 && numbers[0] < 9e15) {
      out.count = static_cast<int64_t>(numbers[0]);
    }
  }
  return out;
}

}  // namespace

std::map<std::string, data::FeatureStats> read_external_stats(const std::filesystem::path& path,
                                                              const std::string& state_column,
                                                              const std::string& action_column) {
  LS_CHECK(std::filesystem::is_regular_file(path), DataError,
           "{}: no such file; a dataset's stats: names it", path.string());
  const Json all = data::lerobot::read_json_object(path);
  const auto nested = all.find("norm_stats");
  const bool is_openpi = nested != all.end();
  LS_CHECK(!is_openpi || nested->is_object(), DataError, "{}: norm_stats is no object",
           path.string());
  const Json& entries = is_openpi ? *nested : all;
  std::map<std::string, data::FeatureStats> out;
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries.items()) {
    names.push_back(name);
    std::string column = name;
    if (is_openpi && name == "state") column = state_column;
    if (is_openpi && name == "actions") column = action_column;
    // Pictures and other features of the file do not matter here, whatever they hold.
    if (column != state_column && column != action_column) continue;
    out[column] = read_entry(entry, fmt::format("{}: {}", path.string(), name));
    out[column].source = path.string();
  }
  LS_CHECK(!out.empty(), DataError, "{}: has neither '{}' nor '{}'; it has {}", path.string(),
           state_column, action_column, names.empty() ? "nothing" : join(names, ", "));
  return out;
}

}  // namespace longship::train
