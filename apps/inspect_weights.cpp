#include "apps/inspect_weights.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/strings.h"
#include "io/weights.h"

namespace longship::apps {
namespace {

/// Layers of one stack print as one line: every number between dots becomes '*'.
std::string group_name(const std::string& name) {
  std::vector<std::string> parts = split(name, '.');
  if (parts.size() > 1) parts.pop_back();
  for (std::string& part : parts) {
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos) part = "*";
  }
  return join(parts, ".");
}

struct Group {
  int64_t num_tensors = 0;
  int64_t num_elements = 0;
};

void print_groups(const io::Weights& weights) {
  std::vector<std::string> order;
  std::map<std::string, Group> groups;
  for (const auto& info : weights.tensors()) {
    const std::string key = group_name(info.name);
    if (!groups.contains(key)) order.push_back(key);
    Group& group = groups[key];
    ++group.num_tensors;
    group.num_elements += info.numel();
  }
  std::sort(order.begin(), order.end());
  fmt::print("\n  {:>8} {:>14}  module (* = every layer)\n", "tensors", "parameters");
  for (const auto& key : order) {
    fmt::print("  {:>8} {:>14}  {}\n", groups[key].num_tensors,
               with_thousands(groups[key].num_elements), key);
  }
}

void print_all(const io::Weights& weights) {
  fmt::print("\n  {:<6} {:<22} name\n", "dtype", "shape");
  for (const auto& info : weights.tensors()) {
    fmt::print("  {:<6} {:<22} {}\n", io::dtype_name(info.dtype),
               fmt::format("[{}]", fmt::join(info.shape, ", ")), info.name);
  }
}

std::map<std::string, int64_t> elements_per_dtype(const io::Weights& weights) {
  std::map<std::string, int64_t> count;
  for (const auto& info : weights.tensors())
    count[std::string(io::dtype_name(info.dtype))] += info.numel();
  return count;
}

nlohmann::json to_json(const io::Weights& weights) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const auto& info : weights.tensors()) {
    tensors.push_back(
        {{"name", info.name}, {"dtype", io::dtype_name(info.dtype)}, {"shape", info.shape}});
  }
  return {{"kind", "weights"},
          {"path", weights.path().string()},
          {"files", weights.files().size()},
          {"bytes", weights.total_bytes()},
          {"elements", elements_per_dtype(weights)},
          {"metadata", weights.metadata()},
          {"tensors", tensors}};
}

}  // namespace

int inspect_weights(const std::filesystem::path& path, bool list_all, bool json) {
  const io::Weights weights = io::open_weights(path);
  if (json) {
    fmt::print("{}\n", to_json(weights).dump(1));
    return 0;
  }
  int64_t elements = 0;
  for (const auto& [dtype, count] : elements_per_dtype(weights)) elements += count;
  fmt::print("{}\n  {} tensors, {} parameters ({}), {} in {} file{}\n", weights.path().string(),
             weights.tensors().size(), with_thousands(elements),
             human_count(static_cast<double>(elements)), human_bytes(weights.total_bytes()),
             weights.files().size(), weights.files().size() == 1 ? "" : "s");
  for (const auto& [dtype, count] : elements_per_dtype(weights))
    fmt::print("  {:<8} {}\n", dtype, with_thousands(count));
  for (const auto& [key, value] : weights.metadata())
    fmt::print("  {}: {}\n", key, printable(value, 200));
  if (list_all) {
    print_all(weights);
  } else {
    print_groups(weights);
  }
  return 0;
}

}  // namespace longship::apps
