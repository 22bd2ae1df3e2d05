#include "io/tfevents.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/fs.h"

namespace longship::io {
namespace {

constexpr size_t kFlushBytes = 64 << 10;
constexpr size_t kFrameBytes = 8 + 4 + 4;  // length, its checksum, the payload's checksum
constexpr uint64_t kMaxEventBytes = 16 << 20;
constexpr uint64_t kMaxFileBytes = uint64_t{4} << 30;

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

/// TFRecord stores checksums rotated and shifted, so that data which contain checksums do not check
/// as themselves.
uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return std::rotr(crc, 15) + 0xA282EAD8;
}

template <class T>
void put_fixed(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i)
    out += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
}

template <class T>
T get_fixed(std::string_view in) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value |= uint64_t{static_cast<unsigned char>(in[i])} << (8 * i);
  return static_cast<T>(value);
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, uint32_t field, WireType type) {
  put_varint(out, field << 3 | type);
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

void put_double(std::string& out, uint32_t field, double value) {
  put_key(out, field, kFixed64);
  put_fixed(out, std::bit_cast<uint64_t>(value));
}

double now_s() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_epoch).count();
}

/// One field of a protobuf message. `number` holds a varint or the bits of a fixed field, `bytes` a
/// length-delimited one.
struct Field {
  uint32_t id = 0;
  uint32_t type = 0;
  uint64_t number = 0;
  std::string_view bytes;
};

/// Takes fields off the front of a message. malformed() tells an end from a fault.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}
  bool malformed() const { return malformed_; }

  bool next(Field& field) {
    if (rest_.empty() || malformed_) return false;
    uint64_t key = 0;
    if (!varint(key)) return fault();
    field.id = static_cast<uint32_t>(key >> 3);
    field.type = static_cast<uint32_t>(key & 7);
    if (field.type == kVarint) return varint(field.number) || fault();
    uint64_t size = 0;
    if (field.type == kFixed64) {
      size = 8;
    } else if (field.type == kFixed32) {
      size = 4;
    } else if (field.type != kBytes || !varint(size)) {
      return fault();
    }
    if (size > rest_.size()) return fault();
    field.bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    if (field.type == kFixed64) field.number = get_fixed<uint64_t>(field.bytes);
    if (field.type == kFixed32) field.number = get_fixed<uint32_t>(field.bytes);
    return true;
  }

 private:
  bool fault() {
    malformed_ = true;
    return false;
  }
  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (rest_.empty()) return false;
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << (shift < 64 ? shift : 63);
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }

  std::string_view rest_;
  bool malformed_ = false;
};

/// Event {1 wall_time double, 2 step int64, 5 summary {1 value {1 tag, 2 simple_value float}}}.
/// False: malformed.
bool parse_event(std::string_view message, std::vector<ScalarEvent>& out) {
  ScalarEvent event;
  std::vector<std::string_view> summaries;
  FieldReader fields(message);
  for (Field field; fields.next(field);) {
    if (field.id == 1 && field.type == kFixed64)
      event.wall_time_s = std::bit_cast<double>(field.number);
    if (field.id == 2 && field.type == kVarint) event.step = static_cast<int64_t>(field.number);
    if (field.id == 5 && field.type == kBytes) summaries.push_back(field.bytes);
  }
  if (fields.malformed()) return false;
  for (std::string_view summary : summaries) {
    FieldReader values(summary);
    for (Field value; values.next(value);) {
      if (value.id != 1 || value.type != kBytes) continue;
      bool has_scalar = false;
      FieldReader parts(value.bytes);
      for (Field part; parts.next(part);) {
        if (part.id == 1 && part.type == kBytes) event.tag = std::string(part.bytes);
        if (part.id == 2 && part.type == kFixed32) {
          event.value = std::bit_cast<float>(static_cast<uint32_t>(part.number));
          has_scalar = true;
        }
      }
      if (parts.malformed()) return false;
      if (has_scalar) out.push_back(event);
    }
    if (values.malformed()) return false;
  }
  return true;
}

}  // namespace

EventWriter EventWriter::open(const std::filesystem::path& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  LS_CHECK(!error, ConfigError, "{}: cannot make the folder for TensorBoard events: {}",
           dir.string(), error.message());
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  EventWriter writer;
  const double start_s = now_s();
  // A number at the end keeps two writers of one process and second apart; O_EXCL makes the choice
  // safe.
  for (int attempt = 0; attempt < 1000 && writer.fd_ < 0; ++attempt) {
    writer.path_ = dir / fmt::format("events.out.tfevents.{:010d}.{}.{}.{}",
                                     static_cast<int64_t>(start_s), host, ::getpid(), attempt);
    writer.fd_ =
        ::open(writer.path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (writer.fd_ < 0 && errno != EEXIST) break;
  }
  LS_CHECK(writer.fd_ >= 0, ConfigError, "{}: cannot be created: {}", writer.path_.string(),
           std::strerror(errno));
  std::string version;
  put_double(version, 1, start_s);
  put_bytes(version, 3, "brain.Event:2");
  writer.append_record(version);
  writer.flush();
  return writer;
}

EventWriter::EventWriter(EventWriter&& other) noexcept {
  *this = std::move(other);
}

EventWriter& EventWriter::operator=(EventWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

EventWriter::~EventWriter() {
  if (fd_ < 0) return;
  try {
    flush();
  } catch (const Error&) {
    // Nothing to tell it to: whoever wants to know calls flush() before.
  }
  ::close(fd_);
}

void EventWriter::scalar(std::string_view tag, int64_t step, double value, double wall_time_s) {
  std::string entry;
  put_bytes(entry, 1, tag);
  put_key(entry, 2, kFixed32);
  put_fixed(entry, std::bit_cast<uint32_t>(static_cast<float>(value)));
  std::string summary;
  put_bytes(summary, 1, entry);
  std::string event;
  put_double(event, 1, wall_time_s < 0 ? now_s() : wall_time_s);
  put_key(event, 2, kVarint);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, 5, summary);
  append_record(event);
  if (buffer_.size() >= kFlushBytes) flush();
}

void EventWriter::append_record(const std::string& event) {
  std::string length;
  put_fixed(length, static_cast<uint64_t>(event.size()));
  buffer_ += length;
  put_fixed(buffer_, masked_crc(length));
  buffer_ += event;
  put_fixed(buffer_, masked_crc(event));
}

void EventWriter::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t count = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int cause = errno;
      buffer_.erase(0, done);
      throw Error(ExitCode::kOther,
                  fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(cause)));
    }
    done += static_cast<size_t>(count);
  }
  buffer_.clear();
}

std::vector<ScalarEvent> read_scalars(const std::filesystem::path& path) {
  const std::string file = read_file(path, kMaxFileBytes, ExitCode::kData);
  std::vector<ScalarEvent> events;
  size_t offset = 0;
  while (file.size() - offset >= kFrameBytes) {
    const std::string_view rest = std::string_view(file).substr(offset);
    const uint64_t length = get_fixed<uint64_t>(rest);
    LS_CHECK(get_fixed<uint32_t>(rest.substr(8)) == masked_crc(rest.substr(0, 8)), DataError,
             "{}: byte {}: checksum of a record's length is wrong; not an event file, or damaged",
             path.string(), offset);
    LS_CHECK(length <= kMaxEventBytes, DataError,
             "{}: byte {}: a record of {} bytes is too large for an event", path.string(), offset,
             length);
    if (rest.size() - kFrameBytes < length) break;  // the writer was killed inside its last record
    const std::string_view event = rest.substr(12, length);
    LS_CHECK(get_fixed<uint32_t>(rest.substr(12 + length)) == masked_crc(event), DataError,
             "{}: byte {}: checksum of a record is wrong; the file is damaged", path.string(),
             offset);
    LS_CHECK(parse_event(event, events), DataError, "{}: byte {}: a record is no TensorBoard event",
             path.string(), offset);
    offset += kFrameBytes + length;
  }
  return events;
}

}  // namespace longship::io
