// libFuzzer target: a video file of any bytes. It gives DataError, or a table of packets that holds
// together and frames that decode, in a pass and alone, or give DataError.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/video.h"

namespace {

using longship::DataError;
using longship::io::VideoIndex;
using longship::io::VideoIndexPtr;
using longship::io::VideoReader;

/// A file in memory, removed with the object.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : fd_(::memfd_create("fuzz.mp4", 0)) {
    if (fd_ < 0 || ::write(fd_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

void check_table(const VideoIndex& index) {
  const auto& info = index.info();
  const auto frames = static_cast<size_t>(info.num_frames);
  if (info.num_frames < 1 || info.pts_s.size() != frames || info.is_key_frame.size() != frames ||
      !std::is_sorted(info.pts_s.begin(), info.pts_s.end())) {
    std::abort();
  }
  for (int64_t i = 0; i < std::min<int64_t>(info.num_frames, 64); ++i) {
    if (index.decode_cost(i) < 1 || index.nearest_frame(info.pts_s[static_cast<size_t>(i)]) < 0) {
      std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemoryFile file(data, size);
  try {
    const VideoIndexPtr index = VideoIndex::build(file.path());
    check_table(*index);
    const auto& info = index->info();
    // Large pictures cost time and find nothing more.
    if (info.is_depth || info.width * info.height > 512 * 512) return 0;
    const auto bytes = static_cast<size_t>(info.width * info.height * 3);
    VideoReader single(index), pass(index);
    std::vector<int64_t> wanted;
    for (int64_t i = 0; i < std::min<int64_t>(info.num_frames, 24); i += 1 + i / 3) {
      wanted.push_back(i);
    }
    std::vector<std::vector<uint8_t>> pictures(wanted.size(), std::vector<uint8_t>(bytes));
    std::vector<uint8_t*> buffers;
    for (auto& picture : pictures) buffers.push_back(picture.data());
    pass.read_rgb_each(wanted, buffers);
    std::vector<uint8_t> alone(bytes);
    for (size_t k = wanted.size(); k-- > 0;) single.read_rgb(wanted[k], alone.data());
  } catch (const DataError&) {
  }
  return 0;
}
