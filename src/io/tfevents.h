#pragma once
// TensorBoard event files: TFRecord framing (length, masked CRC-32C) around a few protobuf fields,
// written by hand.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longship::io {

/// CRC-32C (Castagnoli), as RFC 3720 appendix B.4.
uint32_t crc32c(std::span<const std::byte> bytes);

/// Writes scalars to a new event file of a folder. A run that resumes opens a new file beside the
/// old ones and TensorBoard shows them as one curve; every record is appended by one write, so a
/// kill leaves at most one cut record at the end.
class EventWriter {
 public:
  /// Makes the folder when it is missing. Throws ConfigError naming the path and the
  /// reason.
  static EventWriter open(const std::filesystem::path& dir);
  EventWriter(EventWriter&& other) noexcept;
  EventWriter& operator=(EventWriter&& other) noexcept;
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;
  ~EventWriter();  // flushes; errors are lost there, call flush() to see them

  const std::filesystem::path& path() const { return path_; }
  /// `wall_time_s`: seconds since 1970; below 0 = now.
  void scalar(std::string_view tag, int64_t step, double value, double wall_time_s = -1);
  /// Writes what is buffered. Throws Error naming the path and the reason, e.g. a full disk.
  void flush();

 private:
  EventWriter() = default;
  void append_record(const std::string& event);

  std::filesystem::path path_;
  int fd_ = -1;
  std::string buffer_;  // whole records
};

struct ScalarEvent {
  std::string tag;
  int64_t step = 0;
  double value = 0;  // stored as float32
  double wall_time_s = 0;
};

/// The scalars of an event file, in order. A cut last record is left out; a wrong checksum or
/// malformed record throws DataError naming the file and the byte offset.
std::vector<ScalarEvent> read_scalars(const std::filesystem::path& path);

}  // namespace longship::io
