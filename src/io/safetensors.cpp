#include "io/safetensors.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/strings.h"

namespace longship::io {
namespace {

/// Closes on every way out.
struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  const std::string name = path.string();
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat status {};
  if (file.fd < 0 || ::fstat(file.fd, &status) != 0) {
    throw CheckpointError(fmt::format("{}: cannot be opened: {}", name, std::strerror(errno)));
  }
  LS_CHECK(S_ISREG(status.st_mode), CheckpointError,
           "{}: not a regular file, expected a safetensors file", name);

  SafetensorsFile result;
  result.path_ = path;
  const uint64_t file_bytes = static_cast<uint64_t>(status.st_size);
  if (file_bytes > 0) {
    void* mapping = ::mmap(nullptr, file_bytes, PROT_READ, MAP_PRIVATE, file.fd, 0);
    LS_CHECK(mapping != MAP_FAILED, CheckpointError, "{}: cannot be mapped ({} bytes): {}", name,
             file_bytes, std::strerror(errno));
    result.mapping_ = static_cast<const std::byte*>(mapping);
    result.mapping_bytes_ = file_bytes;
  }
  result.header_ = parse_header(std::span(result.mapping_, result.mapping_bytes_), name);
  for (size_t i = 0; i < result.header_.tensors.size(); ++i) {
    result.by_name_.emplace(result.header_.tensors[i].name, i);
  }
  return result;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept {
  *this = std::move(other);
}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  if (this == &other) return *this;
  // The views in by_name_ point into the vector's own storage, which a move of the vector hands
  // over unchanged.
  std::swap(path_, other.path_);
  std::swap(header_, other.header_);
  std::swap(by_name_, other.by_name_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) ::munmap(const_cast<std::byte*>(mapping_), mapping_bytes_);
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

const TensorInfo& SafetensorsFile::at(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (info != nullptr) return *info;
  std::string nearest;
  int64_t best = -1;
  for (const TensorInfo& tensor : header_.tensors) {
    int64_t distance = levenshtein(name, tensor.name);
    if (best < 0 || distance < best) {
      best = distance;
      nearest = tensor.name;
    }
  }
  throw CheckpointError(fmt::format("{}: no tensor '{}' among its {}; the nearest name is '{}'",
                                    path_.string(), name, header_.tensors.size(),
                                    printable(nearest, 200)));
}

const std::byte* SafetensorsFile::data(const TensorInfo& info) const {
  return mapping_ + header_.data_offset + info.begin;
}

}  // namespace longship::io
