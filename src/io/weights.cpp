#include "io/weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr size_t kListed = 20;  // faults of one kind that a message lists

class Faults {
 public:
  void add(std::string fault) {
    if (lines_.size() < kListed) lines_.push_back(std::move(fault));
    ++count_;
  }
  void throw_if_any(const fs::path& index) const {
    if (count_ == 0) return;
    std::string message =
        fmt::format("{}: the index and the shards do not fit together:", index.string());
    for (const std::string& line : lines_) message += "\n  " + line;
    if (count_ > lines_.size()) message += fmt::format("\n  and {} more", count_ - lines_.size());
    throw CheckpointError(message);
  }

 private:
  std::vector<std::string> lines_;
  size_t count_ = 0;
};

std::map<std::string, std::string> read_weight_map(const fs::path& index) {
  JsonLimits limits;
  limits.code = ExitCode::kCheckpoint;
  const nlohmann::json root = parse_json_file(index, limits);
  LS_CHECK(root.is_object() && root.contains("weight_map") && root["weight_map"].is_object(),
           CheckpointError,
           "{}: no object 'weight_map', so this is not an index of safetensors shards",
           index.string());
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, shard] : root["weight_map"].items()) {
    LS_CHECK(shard.is_string(), CheckpointError, "{}: weight_map['{}'] is not a file name",
             index.string(), printable(tensor, 200));
    const std::string file = shard.get<std::string>();
    // A shard lies beside its index; anything else could point outside the folder that was named.
    LS_CHECK(!file.empty() && file.find('/') == std::string::npos && file != "." && file != "..",
             CheckpointError,
             "{}: weight_map['{}'] is '{}', expected the name of a file in the same folder",
             index.string(), printable(tensor, 200), printable(file, 200));
    shard_of.emplace(tensor, file);
  }
  LS_CHECK(!shard_of.empty(), CheckpointError, "{}: weight_map lists no tensor", index.string());
  return shard_of;
}

std::vector<SafetensorsFile> open_shards(const fs::path& index) {
  const std::map<std::string, std::string> shard_of = read_weight_map(index);
  std::set<std::string> names;
  for (const auto& [tensor, shard] : shard_of) names.insert(shard);

  Faults faults;
  std::vector<SafetensorsFile> files;
  std::map<std::string, const SafetensorsFile*> by_name;
  files.reserve(names.size());
  for (const std::string& name : names) {
    const fs::path path = index.parent_path() / name;
    if (!fs::exists(path)) {
      faults.add(fmt::format("missing shard {}", path.string()));
      continue;
    }
    files.push_back(SafetensorsFile::open(path));
    by_name[name] = &files.back();
  }
  for (const auto& [tensor, shard] : shard_of) {
    auto file = by_name.find(shard);
    if (file != by_name.end() && file->second->find(tensor) == nullptr) {
      faults.add(
          fmt::format("tensor '{}' is not in {} as the index says", printable(tensor, 200), shard));
    }
  }
  for (const auto& [shard, file] : by_name) {
    for (const TensorInfo& info : file->tensors()) {
      auto listed = shard_of.find(info.name);
      if (listed == shard_of.end()) {
        faults.add(
            fmt::format("tensor '{}' of {} is not in the index", printable(info.name, 200), shard));
      } else if (listed->second != shard) {
        faults.add(fmt::format("tensor '{}' is in {}, the index says {}", printable(info.name, 200),
                               shard, listed->second));
      }
    }
  }
  faults.throw_if_any(index);
  return files;
}

}  // namespace

Weights open_weights(const fs::path& path) {
  Weights weights;
  weights.path_ = path;
  std::error_code ignored;
  LS_CHECK(fs::exists(path, ignored), CheckpointError,
           "{}: no such file or folder; expected weights as a .safetensors "
           "file or a folder with {}",
           path.string(), kSingle);
  if (fs::is_directory(path)) {
    const fs::path single = path / kSingle, index = path / kIndex;
    const bool has_single = fs::exists(single), has_index = fs::exists(index);
    LS_CHECK(has_single || has_index, CheckpointError, "{}: neither {} nor {} in this folder",
             path.string(), kSingle, kIndex);
    LS_CHECK(!(has_single && has_index), CheckpointError,
             "{}: both {} and {} are here, and nothing says which one holds; remove one or name "
             "the file",
             path.string(), kSingle, kIndex);
    if (has_single) {
      weights.files_.push_back(SafetensorsFile::open(single));
    } else {
      weights.files_ = open_shards(index);
    }
  } else if (path.extension() == ".json") {
    weights.files_ = open_shards(path);
  } else {
    weights.files_.push_back(SafetensorsFile::open(path));
  }
  for (size_t i = 0; i < weights.files_.size(); ++i) {
    for (const TensorInfo& info : weights.files_[i].tensors()) {
      weights.by_name_.emplace(info.name, weights.tensors_.size());
      weights.tensors_.push_back(info);
      weights.file_of_tensor_.push_back(i);
    }
    for (const auto& entry : weights.files_[i].metadata()) weights.metadata_.insert(entry);
  }
  return weights;
}

size_t Weights::entry_of(std::string_view name) const {
  auto found = by_name_.find(std::string(name));
  if (found != by_name_.end()) return found->second;
  const TensorInfo* nearest = nullptr;
  int64_t best = 0;
  for (const TensorInfo& tensor : tensors_) {
    const int64_t distance = levenshtein(name, tensor.name);
    if (nearest == nullptr || distance < best) {
      nearest = &tensor;
      best = distance;
    }
  }
  throw CheckpointError(fmt::format("{}: no tensor '{}' among its {}; the nearest name is '{}'",
                                    path_.string(), name, tensors_.size(),
                                    nearest == nullptr ? "" : printable(nearest->name, 200)));
}

const TensorInfo* Weights::find(std::string_view name) const {
  auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const TensorInfo& Weights::at(std::string_view name) const {
  return tensors_[entry_of(name)];
}

const std::byte* Weights::data(const TensorInfo& info) const {
  return files_[file_of_tensor_[entry_of(info.name)]].data(info);
}

const fs::path& Weights::file_of(const TensorInfo& info) const {
  return files_[file_of_tensor_[entry_of(info.name)]].path();
}

uint64_t Weights::total_bytes() const {
  uint64_t sum = 0;
  for (const TensorInfo& info : tensors_) sum += info.num_bytes();
  return sum;
}

}  // namespace longship::io
