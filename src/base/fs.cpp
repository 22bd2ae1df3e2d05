#include "base/fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <system_error>
#include <utility>

#include "base/strings.h"

namespace longship {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPartial = ".partial-";

std::string errno_text(int number) {
  return std::generic_category().message(number);
}

// One sentence about what failed, and for the frequent causes what to do.
[[noreturn]] void fail(ExitCode code, std::string_view action, const fs::path& path, int number) {
  std::string message = fmt::format("cannot {} {}: {}", action, path.string(), errno_text(number));
  if (number == ENOSPC || number == EDQUOT) {
    message += fmt::format(" ({} free there); free some space or choose another folder",
                           human_bytes(free_bytes(path)));
  } else if (number == EACCES || number == EPERM || number == EROFS) {
    message += fmt::format("; the program runs as user {} and needs write permission there",
                           static_cast<int64_t>(::geteuid()));
  } else if (number == ENOENT) {
    message += "; does its folder exist?";
  }
  throw_error(code, message);
}

class Fd {
 public:
  Fd(const fs::path& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC)) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

void fsync_path(const fs::path& path, int flags, ExitCode code) {
  const Fd fd(path, O_RDONLY | flags);
  if (fd.get() < 0) fail(code, "open for syncing", path, errno);
  // Some network file systems refuse to sync a folder; its entries are then as durable as they get.
  if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP)
    fail(code, "sync", path, errno);
}

fs::path parent_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

// "x/step_1/" and "x/step_1" are the same target; the former would put the partial folder inside
// it.
fs::path without_trailing_slash(fs::path path) {
  return path.has_filename() ? std::move(path) : path.parent_path();
}

fs::path partial_name(const fs::path& path) {
  fs::path partial = path;
  partial += fmt::format("{}{}", kPartial, ::getpid());
  return partial;
}

}  // namespace

std::string read_file(const fs::path& path, uint64_t max_bytes, ExitCode code) {
  const Fd fd(path, O_RDONLY);
  if (fd.get() < 0) {
    throw_error(code, fmt::format("cannot read {}: {}", path.string(), errno_text(errno)));
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail(code, "read", path, errno);
  if (!S_ISREG(info.st_mode)) {
    throw_error(code, fmt::format("cannot read {}: it is {}", path.string(),
                                  S_ISDIR(info.st_mode) ? "a folder" : "no regular file"));
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size > max_bytes) {
    throw_error(code, fmt::format("{} has {}, more than the {} allowed for such a file",
                                  path.string(), human_bytes(size), human_bytes(max_bytes)));
  }
  std::string bytes(size, '\0');
  uint64_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(fd.get(), bytes.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(code, "read", path, errno);
    if (n == 0) {
      throw_error(code, fmt::format("{} became shorter while it was read ({} of {} bytes)",
                                    path.string(), done, size));
    }
    done += static_cast<uint64_t>(n);
  }
  return bytes;
}

AtomicFile::AtomicFile(fs::path path, uint64_t expected_bytes, ExitCode code)
    : path_(std::move(path)), partial_(partial_name(path_)), code_(code) {
  if (expected_bytes > 0) {
    const uint64_t free = free_bytes(path_);
    if (free < expected_bytes) {
      throw_error(
          code_,
          fmt::format("cannot write {}: it needs {} and only {} are free there; free some space or "
                      "choose another folder",
                      path_.string(), human_bytes(expected_bytes), human_bytes(free)));
    }
  }
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail(code_, "create", partial_, errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
}

void AtomicFile::write(const void* data, size_t num_bytes) {
  LS_CHECK(fd_ >= 0, InternalError, "AtomicFile::write after commit: {}", path_.string());
  const char* bytes = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t n = ::write(fd_, bytes, num_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      fail(code_,
           fmt::format("write {} more after {} to", human_bytes(num_bytes), human_bytes(written_)),
           partial_, errno);
    }
    bytes += n;
    num_bytes -= static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
  }
}

void AtomicFile::commit() {
  LS_CHECK(fd_ >= 0, InternalError, "AtomicFile::commit called twice: {}", path_.string());
  if (::fsync(fd_) != 0) fail(code_, "sync", partial_, errno);
  // close() may report a delayed write error on network file systems.
  if (::close(std::exchange(fd_, -1)) != 0) {
    const int number = errno;
    ::unlink(partial_.c_str());
    fail(code_, "close", partial_, number);
  }
  if (::rename(partial_.c_str(), path_.c_str()) != 0) {
    const int number = errno;
    ::unlink(partial_.c_str());
    fail(code_, "rename to", path_, number);
  }
  fsync_path(parent_of(path_), O_DIRECTORY, code_);
}

void write_file_atomic(const fs::path& path, std::string_view bytes, ExitCode code) {
  AtomicFile file(path, bytes.size(), code);
  file.write(bytes);
  file.commit();
}

void write_file_atomic(const fs::path& path, std::span<const std::byte> bytes, ExitCode code) {
  write_file_atomic(
      path, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), code);
}

AtomicFolder::AtomicFolder(fs::path target, ExitCode code)
    : target_(without_trailing_slash(std::move(target))),
      partial_(partial_name(target_)),
      code_(code) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(target_, error))) {
    throw_error(code_, fmt::format("cannot create folder {}: it exists already", target_.string()));
  }
  fs::remove_all(partial_, error);
  fs::create_directories(partial_, error);
  if (error) fail(code_, "create folder", partial_, error.value());
}

AtomicFolder::~AtomicFolder() {
  if (committed_) return;
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

void AtomicFolder::commit() {
  LS_CHECK(!committed_, InternalError, "AtomicFolder::commit called twice: {}", target_.string());
  fsync_tree(partial_, code_);
  if (::rename(partial_.c_str(), target_.c_str()) != 0) fail(code_, "rename to", target_, errno);
  committed_ = true;
  fsync_path(parent_of(target_), O_DIRECTORY, code_);
}

int64_t remove_stale_partials(const fs::path& folder) {
  int64_t removed = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const size_t at = name.rfind(kPartial);
    if (at == std::string::npos) continue;
    pid_t pid = 0;
    const char* last = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + at + kPartial.size(), last, pid);
    if (parsed.ec != std::errc() || parsed.ptr != last || pid <= 0) continue;
    if (::kill(pid, 0) == 0 || errno != ESRCH) continue;
    std::error_code ignored;
    if (fs::remove_all(it->path(), ignored) > 0 && !ignored) ++removed;
  }
  return removed;
}

uint64_t free_bytes(const fs::path& path) {
  std::error_code error;
  fs::path existing = fs::absolute(path, error);
  while (!existing.empty() && !fs::exists(existing, error) && existing != existing.root_path()) {
    existing = existing.parent_path();
  }
  struct statvfs info {};
  if (::statvfs(existing.c_str(), &info) != 0) {
    throw Error(ExitCode::kOther, fmt::format("cannot ask for the free space at {}: {}",
                                              existing.string(), errno_text(errno)));
  }
  return static_cast<uint64_t>(info.f_bavail) * static_cast<uint64_t>(info.f_frsize);
}

void fsync_tree(const fs::path& folder, ExitCode code) {
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  if (error) fail(code, "list", folder, error.value());
  for (const fs::recursive_directory_iterator end; it != end; it.increment(error)) {
    if (error) fail(code, "list", folder, error.value());
    const fs::file_status status = it->symlink_status();
    if (fs::is_regular_file(status)) fsync_path(it->path(), 0, code);
    if (fs::is_directory(status)) fsync_path(it->path(), O_DIRECTORY, code);
  }
  fsync_path(folder, O_DIRECTORY, code);
}

}  // namespace longship
