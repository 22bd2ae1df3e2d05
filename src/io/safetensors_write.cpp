#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "base/fs.h"
#include "base/sha256.h"
#include "base/strings.h"
#include "io/safetensors.h"

namespace longship::io {
namespace {

constexpr size_t kAlignment = 8;

uint64_t checked_bytes(const TensorSpec& tensor, const std::string& file) {
  uint64_t bytes = static_cast<uint64_t>(dtype_bytes(tensor.dtype));
  for (int64_t dim : tensor.shape) {
    LS_CHECK(dim >= 0, CheckpointError, "{}: tensor '{}' has the negative dimension {}", file,
             tensor.name, dim);
    LS_CHECK(!__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes), CheckpointError,
             "{}: tensor '{}' is larger than any file", file, tensor.name);
  }
  return bytes;
}

void check_text(const std::string& text, const char* what, const std::string& file) {
  LS_CHECK(find_invalid_utf8(text) == std::string::npos, CheckpointError,
           "{}: {} '{}' is not UTF-8", file, what, printable(text));
}

std::vector<SafetensorsWriter::Ordered> ordered(std::vector<TensorSpec> tensors,
                                                const std::string& file) {
  std::vector<SafetensorsWriter::Ordered> order;
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_text(tensors[i].name, "tensor name", file);
    LS_CHECK(tensors[i].name != "__metadata__", CheckpointError,
             "{}: a tensor must not be named __metadata__", file);
    const uint64_t bytes = checked_bytes(tensors[i], file);
    order.push_back({std::move(tensors[i]), i, bytes});
  }
  // By falling element size every tensor starts at a multiple of its own, because the header is
  // padded to 8 bytes.
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    const int64_t a_bytes = dtype_bytes(a.spec.dtype), b_bytes = dtype_bytes(b.spec.dtype);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.spec.name < b.spec.name;
  });
  std::unordered_set<std::string_view> names;
  for (const auto& entry : order) {
    LS_CHECK(names.insert(entry.spec.name).second, CheckpointError,
             "{}: two tensors are named '{}'", file, entry.spec.name);
  }
  return order;
}

std::string header_text(const std::vector<SafetensorsWriter::Ordered>& order,
                        const Metadata& metadata, const std::string& file) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    nlohmann::ordered_json& entries = header["__metadata__"] = nlohmann::ordered_json::object();
    for (const auto& [key, value] : metadata) {
      check_text(key, "metadata key", file);
      check_text(value, "metadata value", file);
      entries.emplace(key, value);
    }
  }
  std::string text = header.dump();
  text.pop_back();  // the tensors follow by hand: ordered_json looks every key up by a linear
                    // search
  uint64_t offset = 0;
  for (const SafetensorsWriter::Ordered& tensor : order) {
    nlohmann::ordered_json entry;
    entry["dtype"] = dtype_name(tensor.spec.dtype);
    entry["shape"] = tensor.spec.shape;
    entry["data_offsets"] = {offset, offset + tensor.num_bytes};
    if (text.size() > 1) text += ',';
    text += nlohmann::json(tensor.spec.name).dump() + ':' + entry.dump();
    offset += tensor.num_bytes;
  }
  text += '}';
  while (text.size() % kAlignment != 0) text += ' ';
  return text;
}

}  // namespace

struct SafetensorsWriter::Impl {
  Impl(const std::filesystem::path& path, uint64_t bytes, bool with_sum)
      : out(path, bytes, ExitCode::kCheckpoint) {
    if (with_sum) sum.emplace();
  }
  void write(const void* data, size_t num_bytes) {
    out.write(data, num_bytes);
    if (sum) sum->update(data, num_bytes);
  }
  AtomicFile out;
  std::optional<Sha256> sum;
  std::string file;
  uint64_t total = 0;  // of the whole file
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorSpec> tensors, const Metadata& metadata,
                                     bool with_sum)
    : order_(ordered(std::move(tensors), path.string())) {
  const std::string text = header_text(order_, metadata, path.string());
  std::array<char, 8> length{};
  for (size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  uint64_t total = length.size() + text.size();
  for (const Ordered& tensor : order_) {
    LS_CHECK(!__builtin_add_overflow(total, tensor.num_bytes, &total), CheckpointError,
             "{}: tensor '{}' is larger than any file", path.string(), tensor.spec.name);
  }
  impl_ = std::make_unique<Impl>(path, total, with_sum);
  impl_->file = path.string();
  impl_->total = total;
  impl_->write(length.data(), length.size());
  impl_->write(text.data(), text.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const void* data, size_t num_bytes) {
  if (num_bytes > 0) impl_->write(data, num_bytes);
}

FileSum SafetensorsWriter::commit() {
  LS_CHECK(impl_->out.bytes_written() == impl_->total, InternalError,
           "{}: {} bytes were written, its header promises {}", impl_->file,
           impl_->out.bytes_written(), impl_->total);
  impl_->out.commit();
  return {impl_->total, impl_->sum ? impl_->sum->hex() : std::string()};
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata) {
  std::vector<TensorSpec> specs;
  for (const TensorView& tensor : tensors) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
    LS_CHECK(tensor.data != nullptr || checked_bytes(specs.back(), path.string()) == 0,
             CheckpointError, "{}: tensor '{}' has no data", path.string(), tensor.name);
  }
  SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const SafetensorsWriter::Ordered& tensor : writer.order()) {
    writer.write(tensors[tensor.position].data, tensor.num_bytes);
  }
  writer.commit();
}

}  // namespace longship::io
