#pragma once
// Files that survive a kill: written beside the target, synced, renamed. Messages carry path, errno
// text and sizes. `code` picks the class of the exception (throw_error), because a file is data for
// one caller and a checkpoint for another.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace longship {

/// Whole file as bytes. Throws when it is missing, no regular file, or larger than `max_bytes`.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes,
                      ExitCode code = ExitCode::kOther);

/// A file that appears under its name complete, or not at all: bytes go to "<path>.partial-<pid>"
/// in the same folder; commit() syncs it, renames it over `path` and syncs the folder. The
/// destructor removes what was not committed.
class AtomicFile {
 public:
  /// `expected_bytes` > 0 is checked against the free space before the first byte.
  explicit AtomicFile(std::filesystem::path path, uint64_t expected_bytes = 0,
                      ExitCode code = ExitCode::kOther);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, size_t num_bytes);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  void commit();
  uint64_t bytes_written() const { return written_; }

 private:
  std::filesystem::path path_, partial_;
  ExitCode code_;
  int fd_ = -1;
  uint64_t written_ = 0;
};

void write_file_atomic(const std::filesystem::path& path, std::string_view bytes,
                       ExitCode code = ExitCode::kOther);
void write_file_atomic(const std::filesystem::path& path, std::span<const std::byte> bytes,
                       ExitCode code = ExitCode::kOther);

/// A folder that appears under its name complete, or not at all: fill path()
/// ("<target>.partial-<pid>"), then commit().
class AtomicFolder {
 public:
  /// Creates the partial folder (parents too). Throws when `target` exists already.
  explicit AtomicFolder(std::filesystem::path target, ExitCode code = ExitCode::kOther);
  ~AtomicFolder();  // removes the partial folder when commit() was not reached
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;
  const std::filesystem::path& path() const { return partial_; }
  const std::filesystem::path& target() const { return target_; }
  /// Syncs every file and folder, renames, syncs the parent. On return the folder survives a power
  /// cut.
  void commit();

 private:
  std::filesystem::path target_, partial_;
  ExitCode code_;
  bool committed_ = false;
};

/// Removes "<stem>.partial-<pid>" files and folders in `folder` whose process no longer runs (left
/// by a kill). Returns how many went.
int64_t remove_stale_partials(const std::filesystem::path& folder);

/// Bytes an ordinary user may still write on the file system that holds `path` (or its nearest
/// existing parent).
uint64_t free_bytes(const std::filesystem::path& path);

/// Syncs a folder, everything below it, and nothing else. Symbolic links are not followed.
void fsync_tree(const std::filesystem::path& folder, ExitCode code = ExitCode::kOther);

}  // namespace longship
