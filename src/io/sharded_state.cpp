#include "io/sharded_state.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/fs.h"
#include "base/strings.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "optimizer.safetensors";
constexpr uint64_t kMaxIndexBytes = uint64_t{1} << 30;
constexpr size_t kMaxOpen = 16;

ShardIndex index_of_single(const SafetensorsRanges& file) {
  ShardIndex index;
  index.strategy = "none";
  index.files.push_back(kSingleFile);
  for (const TensorInfo& info : file.header().tensors) {
    ShardedTensor tensor{info.name, info.dtype, info.shape, {}};
    if (info.numel() > 0) tensor.slices.push_back({0, info.numel(), 0, info.name});
    index.tensors.push_back(std::move(tensor));
  }
  check_shard_index(index, file.path().string());
  return index;
}

}  // namespace

ShardedState ShardedState::open(const fs::path& state_folder) {
  ShardedState state;
  state.folder_ = state_folder;
  state.cache_ = std::make_unique<Cache>();
  const fs::path index = state_folder / kShardIndexFile, single = state_folder / kSingleFile;
  const bool has_index = fs::exists(index), has_single = fs::exists(single);
  LS_CHECK(has_index || has_single, CheckpointError,
           "{}: no optimizer state there (neither {} nor {})", state_folder.string(),
           kShardIndexFile, kSingleFile);
  LS_CHECK(!(has_index && has_single), CheckpointError,
           "{}: both {} and {} are there, and nothing says which holds; remove one",
           state_folder.string(), kShardIndexFile, kSingleFile);
  if (has_index) {
    state.index_ =
        parse_shard_index(read_file(index, kMaxIndexBytes, ExitCode::kCheckpoint), index.string());
  } else {
    state.has_index_ = false;
    state.index_ = index_of_single(SafetensorsRanges::open(single));
  }
  return state;
}

const ShardedTensor* ShardedState::find(std::string_view name) const {
  const auto found = std::lower_bound(
      index_.tensors.begin(), index_.tensors.end(), name,
      [](const ShardedTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != index_.tensors.end() && found->name == name ? &*found : nullptr;
}

const ShardedTensor& ShardedState::at(std::string_view name) const {
  const ShardedTensor* found = find(name);
  LS_CHECK(found != nullptr, CheckpointError, "{}: no tensor '{}' among its {}", folder_.string(),
           printable(name, 200), index_.tensors.size());
  return *found;
}

std::shared_ptr<const SafetensorsRanges> ShardedState::file(size_t index) const {
  const std::lock_guard lock(cache_->mutex);
  std::list<OpenFile>& open = cache_->open;
  const auto found = std::find_if(open.begin(), open.end(),
                                  [index](const OpenFile& entry) { return entry.index == index; });
  if (found != open.end()) {
    open.splice(open.begin(), open, found);
    return open.front().file;
  }
  auto file = std::make_shared<const SafetensorsRanges>(
      SafetensorsRanges::open(folder_ / index_.files[index]));
  check_file(index, *file);
  open.push_front({index, std::move(file)});
  if (open.size() > kMaxOpen) open.pop_back();
  return open.front().file;
}

void ShardedState::check_file(size_t index, const SafetensorsRanges& file) const {
  const std::string name = file.path().string();
  size_t expected = 0;
  for (const ShardedTensor& tensor : index_.tensors) {
    for (const ShardedSlice& slice : tensor.slices) {
      if (slice.file != index) continue;
      ++expected;
      const TensorInfo* info = file.find(slice.key);
      const auto what = [&] {
        return fmt::format("{}: tensor '{}', elements [{}, {})", name, printable(tensor.name, 200),
                           slice.begin, slice.end);
      };
      LS_CHECK(info != nullptr, CheckpointError,
               "{}: the file holds no '{}', where the index has them", what(),
               printable(slice.key, 200));
      LS_CHECK(info->dtype == tensor.dtype && info->numel() == slice.end - slice.begin,
               CheckpointError, "{}: '{}' is {}, the index says {} elements of {}", what(),
               printable(slice.key, 200), describe(*info), slice.end - slice.begin,
               dtype_name(tensor.dtype));
    }
  }
  if (!has_index_ || file.header().tensors.size() == expected) return;
  // Every slice is there, so some tensor of the file belongs to none.
  std::unordered_map<std::string_view, bool> known;
  for (const ShardedTensor& tensor : index_.tensors) {
    for (const ShardedSlice& slice : tensor.slices) {
      if (slice.file == index) known[slice.key] = true;
    }
  }
  for (const TensorInfo& info : file.header().tensors) {
    LS_CHECK(known.contains(info.name) || info.numel() == 0, CheckpointError,
             "{}: it holds '{}' ({}), which is in no tensor of the index", name,
             printable(info.name, 200), describe(info));
  }
}

void ShardedState::read(const ShardedTensor& tensor, int64_t begin, int64_t end, void* out) const {
  const int64_t numel = tensor.numel();
  LS_CHECK(0 <= begin && begin <= end && end <= numel, InternalError,
           "{}: elements [{}, {}) of tensor '{}', which has {}", folder_.string(), begin, end,
           tensor.name, numel);
  const auto width = static_cast<uint64_t>(dtype_bytes(tensor.dtype));
  // The first slice that ends behind `begin`.
  auto slice = std::upper_bound(
      tensor.slices.begin(), tensor.slices.end(), begin,
      [](int64_t element, const ShardedSlice& entry) { return element < entry.end; });
  auto* bytes = static_cast<std::byte*>(out);
  for (int64_t next = begin; next < end; ++slice) {
    const int64_t stop = std::min(end, slice->end);
    const auto source = file(slice->file);
    const auto count = static_cast<uint64_t>(stop - next) * width;
    try {
      source->read(*source->find(slice->key), static_cast<uint64_t>(next - slice->begin) * width,
                   count, bytes);
    } catch (const CheckpointError& error) {
      throw CheckpointError(fmt::format("tensor '{}', elements [{}, {}): {}",
                                        printable(tensor.name, 200), next, stop, error.what()));
    }
    bytes += count;
    next = stop;
  }
}

void ShardedState::check_files() const {
  for (size_t i = 0; i < index_.files.size(); ++i) file(i);
}

uint64_t ShardedState::total_bytes() const {
  uint64_t bytes = 0;
  for (const ShardedTensor& tensor : index_.tensors) {
    bytes +=
        static_cast<uint64_t>(tensor.numel()) * static_cast<uint64_t>(dtype_bytes(tensor.dtype));
  }
  return bytes;
}

}  // namespace longship::io
