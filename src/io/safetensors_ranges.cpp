#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/safetensors.h"

namespace longship::io {
namespace {

constexpr uint64_t kLengthBytes = 8;

// Exactly num_bytes from the place on.
void read_at(int fd, uint64_t place, uint64_t num_bytes, void* out, const std::string& name) {
  auto* bytes = static_cast<char*>(out);
  uint64_t done = 0;
  while (done < num_bytes) {
    const ssize_t n = ::pread(fd, bytes + done, num_bytes - done, static_cast<off_t>(place + done));
    if (n < 0 && errno == EINTR) continue;
    LS_CHECK(n >= 0, CheckpointError, "{}: bytes from {} on cannot be read: {}", name, place + done,
             std::strerror(errno));
    LS_CHECK(n > 0, CheckpointError, "{}: it became shorter while it was read (ends at byte {})",
             name, place + done);
    done += static_cast<uint64_t>(n);
  }
}

}  // namespace

SafetensorsRanges SafetensorsRanges::open(const std::filesystem::path& path) {
  const std::string name = path.string();
  SafetensorsRanges result;
  result.path_ = path;
  result.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (result.fd_ < 0 || ::fstat(result.fd_, &status) != 0) {
    throw CheckpointError(fmt::format("{}: cannot be opened: {}", name, std::strerror(errno)));
  }
  LS_CHECK(S_ISREG(status.st_mode), CheckpointError,
           "{}: not a regular file, expected a safetensors file", name);
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  // The length decides how much is read, and parse_header() refuses what it cannot be: no more than
  // the format allows is ever asked for.
  std::array<unsigned char, kLengthBytes> length_bytes{};
  uint64_t length = 0;
  if (file_bytes >= kLengthBytes) {
    read_at(result.fd_, 0, kLengthBytes, length_bytes.data(), name);
    for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{length_bytes[i]} << (8 * i);
  }
  constexpr uint64_t kMostHeaderBytes = 100'000'000;
  const uint64_t wanted =
      length > kMostHeaderBytes ? kLengthBytes : std::min(file_bytes, kLengthBytes + length);
  std::string head(wanted, '\0');
  read_at(result.fd_, 0, wanted, head.data(), name);
  result.header_ = parse_header(std::as_bytes(std::span(head)), file_bytes, name);
  for (size_t i = 0; i < result.header_.tensors.size(); ++i) {
    result.by_name_.emplace(result.header_.tensors[i].name, i);
  }
  return result;
}

SafetensorsRanges::SafetensorsRanges(SafetensorsRanges&& other) noexcept {
  *this = std::move(other);
}

SafetensorsRanges& SafetensorsRanges::operator=(SafetensorsRanges&& other) noexcept {
  if (this == &other) return *this;
  std::swap(path_, other.path_);
  std::swap(header_, other.header_);
  std::swap(by_name_, other.by_name_);
  std::swap(fd_, other.fd_);
  return *this;
}

SafetensorsRanges::~SafetensorsRanges() {
  if (fd_ >= 0) ::close(fd_);
}

const TensorInfo* SafetensorsRanges::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

void SafetensorsRanges::read(const TensorInfo& info, uint64_t offset, uint64_t num_bytes,
                             void* out) const {
  LS_CHECK(offset <= info.num_bytes() && num_bytes <= info.num_bytes() - offset, InternalError,
           "{}: bytes [{}, {}) of tensor '{}', which has {}", path_.string(), offset,
           offset + num_bytes, info.name, info.num_bytes());
  read_at(fd_, header_.data_offset + info.begin + offset, num_bytes, out, path_.string());
}

}  // namespace longship::io
