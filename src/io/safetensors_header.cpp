#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_set>

#include "base/error.h"
#include "base/strings.h"
#include "io/safetensors.h"

namespace longship::io {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the Python and Rust packages
constexpr size_t kMaxDims = 64;

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<DTypeRow, 15> kDTypes = {{{DType::kBool, "BOOL", 1},
                                               {DType::kU8, "U8", 1},
                                               {DType::kI8, "I8", 1},
                                               {DType::kF8E4M3, "F8_E4M3", 1},
                                               {DType::kF8E5M2, "F8_E5M2", 1},
                                               {DType::kU16, "U16", 2},
                                               {DType::kI16, "I16", 2},
                                               {DType::kF16, "F16", 2},
                                               {DType::kBF16, "BF16", 2},
                                               {DType::kU32, "U32", 4},
                                               {DType::kI32, "I32", 4},
                                               {DType::kF32, "F32", 4},
                                               {DType::kU64, "U64", 8},
                                               {DType::kI64, "I64", 8},
                                               {DType::kF64, "F64", 8}}};

const DTypeRow& row_of(DType dtype) {
  return kDTypes.at(static_cast<size_t>(dtype));
}

std::string known_dtypes() {
  std::string all;
  for (const DTypeRow& row : kDTypes) all += fmt::format("{}{}", all.empty() ? "" : ", ", row.name);
  return all;
}

/// Fills a SafetensorsHeader from the events of the JSON parser. The header has a fixed form, so
/// anything else is refused where it appears: no tree is built, and nesting cannot grow.
class HeaderBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderBuilder(std::string_view file, SafetensorsHeader& out) : file_(file), out_(out) {}

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTopValue) {
      place_ = key_ == "__metadata__" ? Place::kMetadata : Place::kTensor;
      tensor_ = TensorInfo{};
      tensor_.name = key_;
      has_dtype_ = has_shape_ = has_offsets_ = false;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) finish_tensor();
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kShape) {
      place_ = Place::kShapeItems;
    } else if (place_ == Place::kOffsets) {
      place_ = Place::kOffsetItems;
      offsets_.clear();
    } else {
      unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsetItems) {
      if (offsets_.size() != 2)
        fail(fmt::format("data_offsets has {} numbers, expected 2", offsets_.size()));
      tensor_.begin = offsets_[0];
      tensor_.end = offsets_[1];
    }
    place_ = Place::kTensor;
    return true;
  }

  bool key(std::string& text) override {
    if (place_ == Place::kTop) {
      if (!names_.insert(text).second) {
        throw_error(fmt::format("the header lists '{}' twice", printable(text)));
      }
      key_ = text;
      place_ = Place::kTopValue;
    } else if (place_ == Place::kMetadata) {
      if (out_.metadata.contains(text)) {
        throw_error(fmt::format("__metadata__ lists the key '{}' twice", printable(text)));
      }
      metadata_key_ = text;
      place_ = Place::kMetadataValue;
    } else {
      tensor_key(text);
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::kMetadataValue) {
      out_.metadata.emplace(metadata_key_, text);
      place_ = Place::kMetadata;
    } else if (place_ == Place::kDType) {
      std::optional<DType> dtype = parse_dtype(text);
      if (!dtype)
        fail(
            fmt::format("unknown dtype '{}', expected one of {}", printable(text), known_dtypes()));
      tensor_.dtype = *dtype;
      place_ = Place::kTensor;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::kShapeItems) {
      if (value > static_cast<uint64_t>(INT64_MAX))
        fail(fmt::format("dimension {} is too large", value));
      if (tensor_.shape.size() == kMaxDims) fail(fmt::format("more than {} dimensions", kMaxDims));
      tensor_.shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::kOffsetItems) {
      if (offsets_.size() == 2) fail("data_offsets has more than 2 numbers");
      offsets_.push_back(value);
    } else {
      unexpected(fmt::format("the number {}", value));
    }
    return true;
  }

  bool number_integer(int64_t value) override {
    unexpected(fmt::format("the number {}", value));
    return false;
  }
  bool number_float(double, const std::string& text) override {
    unexpected(fmt::format("the number {}", printable(text, 32)));
    return false;
  }
  bool boolean(bool value) override {
    unexpected(value ? "true" : "false");
    return false;
  }
  bool null() override {
    unexpected("null");
    return false;
  }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // not in JSON text

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    throw_error(
        fmt::format("the header is not valid JSON (byte {} of the file)", kLengthBytes + position));
  }

 private:
  enum class Place {
    kStart,
    kTop,
    kTopValue,
    kMetadata,
    kMetadataValue,
    kTensor,
    kDType,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
    kEnd
  };

  [[noreturn]] void throw_error(const std::string& fact) const {
    throw CheckpointError(
        fmt::format("{}: {}; the file is damaged or not a safetensors file", file_, fact));
  }
  [[noreturn]] void fail(const std::string& fact) const {
    throw_error(fmt::format("tensor '{}': {}", printable(tensor_.name, 200), fact));
  }
  [[noreturn]] void unexpected(const std::string& what) const {
    std::string place =
        key_.empty() ? std::string("the header") : fmt::format("'{}'", printable(key_, 200));
    throw_error(fmt::format("{} holds {} where the format has none", place, what));
  }

  void tensor_key(const std::string& text) {
    bool* seen = nullptr;
    if (text == "dtype") {
      seen = &has_dtype_;
      place_ = Place::kDType;
    } else if (text == "shape") {
      seen = &has_shape_;
      place_ = Place::kShape;
    } else if (text == "data_offsets") {
      seen = &has_offsets_;
      place_ = Place::kOffsets;
    } else {
      fail(fmt::format("unknown key '{}', expected dtype, shape, data_offsets", printable(text)));
    }
    if (*seen) fail(fmt::format("'{}' is given twice", text));
    *seen = true;
  }

  void finish_tensor() {
    if (!has_dtype_) fail("no dtype");
    if (!has_shape_) fail("no shape");
    if (!has_offsets_) fail("no data_offsets");
    if (tensor_.begin > tensor_.end) {
      fail(fmt::format("data_offsets [{}, {}] run backwards", tensor_.begin, tensor_.end));
    }
    // Zero dimensions stay out of the product that must not overflow: strides are products of the
    // others.
    uint64_t bytes = static_cast<uint64_t>(dtype_bytes(tensor_.dtype));
    bool empty = false, overflow = false;
    for (int64_t dim : tensor_.shape) {
      if (dim == 0) {
        empty = true;
      } else {
        overflow = overflow || __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes);
      }
    }
    if (overflow || bytes > static_cast<uint64_t>(INT64_MAX)) {
      fail(fmt::format("{} is larger than any file", describe(tensor_)));
    }
    if (empty) bytes = 0;
    if (tensor_.num_bytes() != bytes) {
      fail(fmt::format("{} needs {} bytes, data_offsets [{}, {}] hold {}", describe(tensor_), bytes,
                       tensor_.begin, tensor_.end, tensor_.num_bytes()));
    }
    out_.tensors.push_back(std::move(tensor_));
  }

  std::string_view file_;
  SafetensorsHeader& out_;
  Place place_ = Place::kStart;
  std::unordered_set<std::string> names_;
  std::string key_, metadata_key_;
  TensorInfo tensor_;
  std::vector<uint64_t> offsets_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
};

/// Sorts the tensors by their bytes and checks that these cover [0, data_bytes) exactly.
void check_layout(std::vector<TensorInfo>& tensors, uint64_t data_bytes, std::string_view name) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t next = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = tensors[i];
    if (tensor.end > data_bytes) {
      throw CheckpointError(
          fmt::format("{}: tensor '{}': its bytes [{}, {}] end past the data of the file ({} "
                      "bytes); the file is cut, "
                      "copy or download it again",
                      name, printable(tensor.name, 200), tensor.begin, tensor.end, data_bytes));
    }
    if (tensor.begin < next) {
      throw CheckpointError(
          fmt::format("{}: tensor '{}': its bytes [{}, {}] overlap those of '{}', which end at {}",
                      name, printable(tensor.name, 200), tensor.begin, tensor.end,
                      printable(tensors[i - 1].name, 200), next));
    }
    if (tensor.begin > next) {
      throw CheckpointError(
          fmt::format("{}: {} bytes before tensor '{}' belong to no tensor (data bytes {} to {})",
                      name, tensor.begin - next, printable(tensor.name, 200), next, tensor.begin));
    }
    next = tensor.end;
  }
  if (next != data_bytes) {
    throw CheckpointError(fmt::format(
        "{}: {} bytes at the end belong to no tensor (the tensors end at data byte {} of {})", name,
        data_bytes - next, next, data_bytes));
  }
}

}  // namespace

std::string_view dtype_name(DType dtype) {
  return row_of(dtype).name;
}
std::optional<DType> parse_dtype(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}
int64_t dtype_bytes(DType dtype) {
  return row_of(dtype).bytes;
}

int64_t TensorInfo::numel() const {
  int64_t product = 1;
  for (int64_t dim : shape) product *= dim;
  return product;
}

std::string describe(const TensorInfo& info) {
  std::string dims;
  for (int64_t dim : info.shape) dims += fmt::format("{}{}", dims.empty() ? "" : ", ", dim);
  return fmt::format("[{}] {}", dims, dtype_name(info.dtype));
}

SafetensorsHeader parse_header(std::span<const std::byte> head, uint64_t file_bytes,
                               std::string_view name) {
  if (file_bytes < kLengthBytes || head.size() < kLengthBytes) {
    throw CheckpointError(
        fmt::format("{}: {} bytes are too few for a safetensors file (cut, or an empty download?)",
                    name, file_bytes));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(head[i]) << (8 * i);
  if (length > kMaxHeaderBytes) {
    throw CheckpointError(
        fmt::format("{}: header of {} bytes, the format allows {}; not a safetensors file", name,
                    length, kMaxHeaderBytes));
  }
  if (length > file_bytes - kLengthBytes || length > head.size() - kLengthBytes) {
    throw CheckpointError(fmt::format(
        "{}: the header should have {} bytes, the file has {} in all; it is cut, or not a "
        "safetensors file",
        name, length, file_bytes));
  }
  const char* text = reinterpret_cast<const char*>(head.data()) + kLengthBytes;
  if (length < 2 || text[0] != '{') {
    throw CheckpointError(
        fmt::format("{}: the header does not begin with '{{'; not a safetensors file", name));
  }
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + length;
  HeaderBuilder builder(name, header);
  nlohmann::json::sax_parse(text, text + length, &builder);
  check_layout(header.tensors, file_bytes - header.data_offset, name);
  return header;
}

SafetensorsHeader parse_header(std::span<const std::byte> file, std::string_view name) {
  return parse_header(file, file.size(), name);
}

}  // namespace longship::io
