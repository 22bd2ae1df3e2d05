#include "io/shard_index.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"

namespace longship::io {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kIndexFormat = "longship-state-1";
constexpr const char* kShardFormat = "longship-shard-1";
constexpr uint64_t kMaxIndexBytes = uint64_t{1} << 30;
constexpr int64_t kMaxWorldSize = 65536;
constexpr size_t kMaxDims = 64;
constexpr JsonLimits kLimits = {kMaxIndexBytes, 8, ExitCode::kCheckpoint};

/// Reads one index; remembers its name for messages.
class IndexParser {
 public:
  explicit IndexParser(std::string_view file) : file_(file) {}

  ShardIndex parse(const json& in) const {
    if (!in.is_object()) fail("it is no object");
    only_keys(in, {"format", "world_size", "strategy", "files", "tensors"}, "the index");
    if (text(member(in, "format", "the index"), "format") != kIndexFormat) {
      fail(fmt::format("its format is not {}", kIndexFormat));
    }
    ShardIndex out;
    out.world_size = number(member(in, "world_size", "the index"), "world_size");
    out.strategy = text(member(in, "strategy", "the index"), "strategy");
    const json& files = member(in, "files", "the index");
    if (!files.is_array()) fail("files is no list");
    for (const json& entry : files) out.files.push_back(text(entry, "files"));
    const json& tensors = member(in, "tensors", "the index");
    if (!tensors.is_object()) fail("tensors is no object");
    for (const auto& [name, value] : tensors.items()) out.tensors.push_back(tensor(name, value));
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& fact) const {
    throw CheckpointError(
        fmt::format("{}: {}; the index is damaged or not one of ours", file_, fact));
  }
  std::string quoted(std::string_view name) const {
    return fmt::format("tensor '{}'", printable(name, 200));
  }

  void only_keys(const json& in, const std::set<std::string>& known,
                 const std::string& what) const {
    for (const auto& [key, value] : in.items()) {
      if (!known.contains(key))
        fail(fmt::format("{} has the unknown key '{}'", what, printable(key)));
    }
  }
  const json& member(const json& in, const char* key, const std::string& what) const {
    const auto found = in.find(key);
    if (found == in.end()) fail(fmt::format("{} has no {}", what, key));
    return *found;
  }
  std::string text(const json& in, const std::string& what) const {
    if (!in.is_string()) fail(fmt::format("{} holds what is no text", what));
    return in.get<std::string>();
  }
  int64_t number(const json& in, const std::string& what) const {
    if (!in.is_number_unsigned() || in.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      fail(fmt::format("{} holds {}, expected a whole number from 0 on", what,
                       printable(in.dump(-1, ' ', true, json::error_handler_t::replace), 40)));
    }
    return in.get<int64_t>();
  }

  ShardedTensor tensor(const std::string& name, const json& in) const {
    const std::string what = quoted(name);
    if (!in.is_object()) fail(what + " is no object");
    only_keys(in, {"dtype", "shape", "slices"}, what);
    ShardedTensor out;
    out.name = name;
    const std::string dtype = text(member(in, "dtype", what), what + ": dtype");
    const auto known = parse_dtype(dtype);
    if (!known) fail(fmt::format("{}: unknown dtype '{}'", what, printable(dtype)));
    out.dtype = *known;
    const json& shape = member(in, "shape", what);
    if (!shape.is_array() || shape.size() > kMaxDims) {
      fail(fmt::format("{}: shape is no list of at most {} numbers", what, kMaxDims));
    }
    for (const json& dim : shape) out.shape.push_back(number(dim, what + ": shape"));
    const json& slices = member(in, "slices", what);
    if (!slices.is_array()) fail(what + ": slices is no list");
    for (const json& slice : slices) {
      if (!slice.is_array() || slice.size() != 4) {
        fail(what + ": a slice is not [begin, end, file, key]");
      }
      out.slices.push_back({number(slice[0], what + ": a slice"),
                            number(slice[1], what + ": a slice"),
                            static_cast<size_t>(number(slice[2], what + ": a slice")),
                            text(slice[3], what + ": the key of a slice")});
    }
    return out;
  }

  std::string_view file_;
};

[[noreturn]] void fail_index(std::string_view name, const std::string& fact) {
  throw CheckpointError(fmt::format("{}: {}", name, fact));
}

// Elements of a shape, or an error where they would not fit a file.
int64_t checked_numel(const ShardedTensor& tensor, std::string_view name) {
  int64_t bytes = dtype_bytes(tensor.dtype), numel = 1;
  bool overflow = false;
  bool empty = false;
  for (const int64_t dim : tensor.shape) {
    if (dim < 0)
      fail_index(name, fmt::format("tensor '{}' has the negative dimension {}",
                                   printable(tensor.name, 200), dim));
    if (dim == 0) {
      empty = true;
    } else {
      overflow = overflow || __builtin_mul_overflow(numel, dim, &numel);
    }
  }
  overflow = overflow || __builtin_mul_overflow(bytes, numel, &bytes);
  if (overflow) {
    fail_index(name,
               fmt::format("tensor '{}' is larger than any file", printable(tensor.name, 200)));
  }
  return empty ? 0 : numel;
}

void check_files(const ShardIndex& index, std::string_view name) {
  if (index.world_size < 1 || index.world_size > kMaxWorldSize) {
    fail_index(name,
               fmt::format("world_size is {}, expected 1 to {}", index.world_size, kMaxWorldSize));
  }
  if (static_cast<int64_t>(index.files.size()) != index.world_size) {
    fail_index(name, fmt::format("it lists {} files for a world of {}", index.files.size(),
                                 index.world_size));
  }
  std::set<std::string_view> seen;
  for (const std::string& file : index.files) {
    const bool plain =
        !file.empty() && file.front() != '.' && std::all_of(file.begin(), file.end(), [](char c) {
          return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                 c == '.' || c == '-' || c == '_';
        });
    if (!plain) {
      fail_index(name, fmt::format("'{}' is no name of a file beside the index", printable(file)));
    }
    if (!seen.insert(file).second) fail_index(name, fmt::format("it lists {} twice", file));
  }
}

void check_slices(ShardedTensor& tensor, const ShardIndex& index, std::string_view name) {
  const int64_t numel = checked_numel(tensor, name);
  std::sort(
      tensor.slices.begin(), tensor.slices.end(), [](const ShardedSlice& a, const ShardedSlice& b) {
        return std::tie(a.begin, a.end, a.file, a.key) < std::tie(b.begin, b.end, b.file, b.key);
      });
  const std::string what = fmt::format("tensor '{}'", printable(tensor.name, 200));
  int64_t next = 0;
  for (const ShardedSlice& slice : tensor.slices) {
    if (slice.file >= index.files.size()) {
      fail_index(name, fmt::format("{}: elements [{}, {}) are in file {} of {}", what, slice.begin,
                                   slice.end, slice.file, index.files.size()));
    }
    const std::string& file = index.files[slice.file];
    if (slice.begin < 0 || slice.begin >= slice.end || slice.end > numel) {
      fail_index(name, fmt::format("{}: {} holds elements [{}, {}) of {}", what, file, slice.begin,
                                   slice.end, numel));
    }
    if (slice.begin > next) {
      fail_index(name, fmt::format("{}: no file holds elements [{}, {})", what, next, slice.begin));
    }
    if (slice.begin < next) {
      fail_index(name, fmt::format("{}: elements [{}, {}) of {} are in another file too", what,
                                   slice.begin, std::min(next, slice.end), file));
    }
    next = slice.end;
  }
  if (next != numel) {
    fail_index(name, fmt::format("{}: no file holds elements [{}, {})", what, next, numel));
  }
}

}  // namespace

int64_t ShardedTensor::numel() const {
  int64_t product = 1;
  for (const int64_t dim : shape) product *= dim;
  return product;
}

std::string shard_file_name(int64_t rank, int64_t world_size) {
  return fmt::format("optimizer.r{:04}-of-{:04}.safetensors", rank, world_size);
}

std::string shard_key(std::string_view name, int64_t begin, int64_t end, int64_t numel) {
  if (begin == 0 && end == numel) return std::string(name);
  return fmt::format("{}[{}:{}]", name, begin, end);
}

ShardIndex parse_shard_index(std::string_view text, std::string_view name) {
  ShardIndex index = IndexParser(name).parse(parse_json_text(text, name, kLimits));
  check_shard_index(index, name);
  return index;
}

void check_shard_index(ShardIndex& index, std::string_view name) {
  check_files(index, name);
  std::set<std::pair<size_t, std::string_view>> keys;
  for (ShardedTensor& tensor : index.tensors) {
    check_slices(tensor, index, name);
    for (const ShardedSlice& slice : tensor.slices) {
      if (!keys.emplace(slice.file, slice.key).second) {
        fail_index(name, fmt::format("tensor '{}': elements [{}, {}) are under the key '{}' of {}, "
                                     "which is used twice",
                                     printable(tensor.name, 200), slice.begin, slice.end,
                                     printable(slice.key, 200), index.files[slice.file]));
      }
    }
  }
  std::sort(index.tensors.begin(), index.tensors.end(),
            [](const ShardedTensor& a, const ShardedTensor& b) { return a.name < b.name; });
  for (size_t i = 1; i < index.tensors.size(); ++i) {
    if (index.tensors[i].name == index.tensors[i - 1].name) {
      fail_index(name,
                 fmt::format("it lists tensor '{}' twice", printable(index.tensors[i].name, 200)));
    }
  }
}

std::string to_json(const ShardIndex& index) {
  ordered_json head;
  head["format"] = kIndexFormat;
  head["world_size"] = index.world_size;
  head["strategy"] = index.strategy;
  head["files"] = index.files;
  std::string out = head.dump();
  out.pop_back();
  out += ",\"tensors\":{";
  // By hand, one tensor a line: ordered_json looks every key up by a linear search.
  bool first = true;
  for (const ShardedTensor& tensor : index.tensors) {
    ordered_json entry;
    entry["dtype"] = dtype_name(tensor.dtype);
    entry["shape"] = tensor.shape;
    ordered_json& slices = entry["slices"] = ordered_json::array();
    for (const ShardedSlice& s : tensor.slices) slices.push_back({s.begin, s.end, s.file, s.key});
    out += fmt::format("{}\n{}:{}", first ? "" : ",", json(tensor.name).dump(), entry.dump());
    first = false;
  }
  return out + "\n}}\n";
}

Metadata shard_metadata(int64_t rank, int64_t world_size, const std::vector<ShardRecord>& records) {
  ordered_json slices = ordered_json::array();
  for (const ShardRecord& r : records) slices.push_back({r.key, r.name, r.begin, r.end, r.shape});
  return {{"format", kShardFormat},
          {"rank", std::to_string(rank)},
          {"world_size", std::to_string(world_size)},
          {"slices", slices.dump()}};
}

namespace {

std::vector<ShardRecord> records_of(const Metadata& metadata, int64_t rank, int64_t world_size,
                                    const std::string& file) {
  const auto value = [&](const char* key) {
    const auto found = metadata.find(key);
    LS_CHECK(found != metadata.end(), CheckpointError,
             "{}: its metadata has no '{}'; it is not the file of a rank", file, key);
    return found->second;
  };
  LS_CHECK(value("format") == kShardFormat, CheckpointError, "{}: its format is '{}' instead of {}",
           file, printable(value("format")), kShardFormat);
  LS_CHECK(
      value("rank") == std::to_string(rank) && value("world_size") == std::to_string(world_size),
      CheckpointError, "{}: it says it is of rank {} of {}, expected rank {} of {}", file,
      printable(value("rank")), printable(value("world_size")), rank, world_size);
  const json slices = parse_json_text(value("slices"), file + " (metadata)", kLimits);
  std::vector<ShardRecord> out;
  try {
    for (const json& s : slices) {
      out.push_back({s.at(0).get<std::string>(), s.at(1).get<std::string>(), s.at(2).get<int64_t>(),
                     s.at(3).get<int64_t>(), s.at(4).get<std::vector<int64_t>>()});
    }
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("{}: the slices in its metadata: {}", file, error.what()));
  }
  return out;
}

}  // namespace

ShardIndex index_of_shards(const std::filesystem::path& folder, int64_t world_size,
                           const std::string& strategy) {
  ShardIndex index;
  index.world_size = world_size;
  index.strategy = strategy;
  std::map<std::string, ShardedTensor> tensors;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    index.files.push_back(shard_file_name(rank, world_size));
    const SafetensorsRanges file = SafetensorsRanges::open(folder / index.files.back());
    const std::string name = file.path().string();
    for (const ShardRecord& r : records_of(file.header().metadata, rank, world_size, name)) {
      const TensorInfo* info = file.find(r.key);
      LS_CHECK(info != nullptr || r.begin == r.end, CheckpointError,
               "{}: its metadata speaks of '{}', which it does not hold", name,
               printable(r.key, 200));
      ShardedTensor& tensor = tensors[r.name];
      if (tensor.name.empty()) {
        tensor.name = r.name;
        tensor.shape = r.shape;
        if (info != nullptr) tensor.dtype = info->dtype;
      }
      LS_CHECK(tensor.shape == r.shape && (info == nullptr || info->dtype == tensor.dtype),
               CheckpointError,
               "{}: tensor '{}': its elements [{}, {}) are of another shape or dtype than those of "
               "the ranks before",
               name, printable(r.name, 200), r.begin, r.end);
      if (r.begin == r.end) continue;
      tensor.slices.push_back({r.begin, r.end, static_cast<size_t>(rank), r.key});
    }
  }
  for (auto& [name, tensor] : tensors) index.tensors.push_back(std::move(tensor));
  check_shard_index(index, (folder / kShardIndexFile).string());
  return index;
}

}  // namespace longship::io
