#pragma once
// The safetensors format: 8 bytes little-endian header length, a JSON header, then the raw tensors
// without gaps. Format: https://huggingface.co/docs/safetensors. Files are untrusted: every number
// is checked before it is used.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace longship::io {

/// Element types of the format. Names in files: BOOL, U8, I8, F8_E4M3, F8_E5M2, U16, I16, F16,
/// BF16, U32, I32, F32, U64, I64, F64.
enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
};

/// The name used in files, e.g. "BF16".
std::string_view dtype_name(DType dtype);
/// The inverse; nullopt for a name that the format does not have.
std::optional<DType> parse_dtype(std::string_view name);
/// Bytes of one element: 1, 2, 4 or 8.
int64_t dtype_bytes(DType dtype);

/// One tensor of a file. Row-major, contiguous.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // empty = scalar
  uint64_t begin = 0;          // bytes from the start of the data part
  uint64_t end = 0;            // one past the last byte

  int64_t numel() const;  // product of shape, 1 for a scalar
  uint64_t num_bytes() const { return end - begin; }
};

/// "[2, 3] F32", for messages.
std::string describe(const TensorInfo& info);

using Metadata = std::map<std::string, std::string>;

/// The header of a file. Its tensors cover the data part exactly: no overlap, no hole, nothing
/// after the last.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  Metadata metadata;
  uint64_t data_offset = 0;  // bytes from the start of the file to the data part
};

/// Parses and checks the header. `head` holds the first bytes of the file (8 + header length at
/// least), `file_bytes` is the size of the whole file, `name` is used in messages. Throws
/// CheckpointError naming `name` and the tensor.
SafetensorsHeader parse_header(std::span<const std::byte> head, uint64_t file_bytes,
                               std::string_view name);
/// The same with the whole file in memory.
SafetensorsHeader parse_header(std::span<const std::byte> file, std::string_view name);

/// An open file, mapped read-only. Movable, not copyable. Const methods are thread-safe.
class SafetensorsFile {
 public:
  /// Throws CheckpointError when the file cannot be read or is not valid.
  static SafetensorsFile open(const std::filesystem::path& path);

  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  ~SafetensorsFile();

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const Metadata& metadata() const { return header_.metadata; }
  /// nullptr when there is no such tensor.
  const TensorInfo* find(std::string_view name) const;
  /// Throws CheckpointError naming the file, the tensor and the nearest names.
  const TensorInfo& at(std::string_view name) const;
  /// First byte of the tensor, in the mapping: valid while this object lives, aligned only as the
  /// file aligns it.
  const std::byte* data(const TensorInfo& info) const;

 private:
  SafetensorsFile() = default;

  std::filesystem::path path_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> by_name_;  // views into header_.tensors
  const std::byte* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
};

/// An open file that is read in ranges, never mapped: memory stays bounded, a damaged disk is an
/// error instead of a signal. Movable, not copyable. Const methods are thread-safe.
class SafetensorsRanges {
 public:
  /// Reads and checks the header. Throws CheckpointError like SafetensorsFile::open.
  static SafetensorsRanges open(const std::filesystem::path& path);

  SafetensorsRanges(SafetensorsRanges&& other) noexcept;
  SafetensorsRanges& operator=(SafetensorsRanges&& other) noexcept;
  SafetensorsRanges(const SafetensorsRanges&) = delete;
  SafetensorsRanges& operator=(const SafetensorsRanges&) = delete;
  ~SafetensorsRanges();

  const std::filesystem::path& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  /// nullptr when there is no such tensor.
  const TensorInfo* find(std::string_view name) const;
  /// Bytes [offset, offset + num_bytes) of a tensor of this file. Throws CheckpointError when the
  /// file cannot be read there, InternalError for a range outside the tensor.
  void read(const TensorInfo& info, uint64_t offset, uint64_t num_bytes, void* out) const;

 private:
  SafetensorsRanges() = default;

  std::filesystem::path path_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> by_name_;  // views into header_.tensors
  int fd_ = -1;
};

/// What a tensor of a file to be written is, without its bytes.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

/// Size and SHA-256 of a written file.
struct FileSum {
  uint64_t bytes = 0;
  std::string sha256;  // 64 hexadecimal digits
};

/// Writes a file piece by piece, so that no tensor has to be in memory as a whole: the header at
/// once, then the bytes of the tensors of order(), one after the other, in pieces of any size. The
/// file appears at commit(), whole or not at all, and is the same as write_safetensors() makes.
class SafetensorsWriter {
 public:
  /// `with_sum`: commit() gives the SHA-256, computed while writing. Throws like
  /// write_safetensors().
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                    const Metadata& metadata = {}, bool with_sum = false);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// The tensors in the order of their bytes; `position` is the index in the constructor's list.
  struct Ordered {
    TensorSpec spec;
    size_t position = 0;
    uint64_t num_bytes = 0;
  };
  const std::vector<Ordered>& order() const { return order_; }
  /// The next bytes of the data part.
  void write(const void* data, size_t num_bytes);
  /// Throws InternalError unless exactly the bytes of all tensors were written.
  FileSum commit();

 private:
  struct Impl;
  std::vector<Ordered> order_;
  std::unique_ptr<Impl> impl_;
};

/// A tensor to be written. `data` is row-major and contiguous, host memory, numel * dtype_bytes
/// bytes.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
};

/// Writes a file through a temporary one in the same folder (fsync, rename), so `path` is either
/// the old file or the whole new one. Tensors are stored by falling element size, then by name, as
/// the Python package does, so each is aligned to its element. Throws CheckpointError: duplicate or
/// reserved name, negative shape, full disk, no permission.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata = {});

}  // namespace longship::io
