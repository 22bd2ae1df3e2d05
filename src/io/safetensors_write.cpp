#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "base/fs.h"
#include "base/strings.h"
#include "io/safetensors.h"

namespace longship::io {
namespace {

constexpr size_t kAlignment = 8;

uint64_t checked_bytes(const TensorView& tensor, const std::string& file) {
  uint64_t bytes = static_cast<uint64_t>(dtype_bytes(tensor.dtype));
  for (int64_t dim : tensor.shape) {
    LS_CHECK(dim >= 0, CheckpointError, "{}: tensor '{}' has the negative dimension {}", file,
             tensor.name, dim);
    LS_CHECK(!__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes), CheckpointError,
             "{}: tensor '{}' is larger than any file", file, tensor.name);
  }
  LS_CHECK(tensor.data != nullptr || bytes == 0, CheckpointError, "{}: tensor '{}' has no data",
           file, tensor.name);
  return bytes;
}

void check_text(const std::string& text, const char* what, const std::string& file) {
  LS_CHECK(find_invalid_utf8(text) == std::string::npos, CheckpointError,
           "{}: {} '{}' is not UTF-8", file, what, printable(text));
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata) {
  const std::string file = path.string();
  std::vector<const TensorView*> order;
  std::unordered_set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    check_text(tensor.name, "tensor name", file);
    LS_CHECK(tensor.name != "__metadata__", CheckpointError,
             "{}: a tensor must not be named __metadata__", file);
    LS_CHECK(names.insert(tensor.name).second, CheckpointError, "{}: two tensors are named '{}'",
             file, tensor.name);
    order.push_back(&tensor);
  }
  // By falling element size every tensor starts at a multiple of its own, because the header is
  // padded to 8 bytes.
  std::sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    const int64_t a_bytes = dtype_bytes(a->dtype), b_bytes = dtype_bytes(b->dtype);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a->name < b->name;
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    nlohmann::ordered_json& entries = header["__metadata__"] = nlohmann::ordered_json::object();
    for (const auto& [key, value] : metadata) {
      check_text(key, "metadata key", file);
      check_text(value, "metadata value", file);
      entries.emplace(key, value);
    }
  }
  std::vector<uint64_t> sizes;
  uint64_t offset = 0;
  std::string text = header.dump();
  text.pop_back();  // the tensors follow by hand: ordered_json looks every key up by a linear
                    // search
  for (const TensorView* tensor : order) {
    const uint64_t bytes = checked_bytes(*tensor, file);
    nlohmann::ordered_json entry;
    entry["dtype"] = dtype_name(tensor->dtype);
    entry["shape"] = tensor->shape;
    entry["data_offsets"] = {offset, offset + bytes};
    if (text.size() > 1) text += ',';
    text += nlohmann::json(tensor->name).dump() + ':' + entry.dump();
    sizes.push_back(bytes);
    offset += bytes;
  }
  text += '}';
  while (text.size() % kAlignment != 0) text += ' ';

  std::array<char, 8> length{};
  for (size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  AtomicFile out(path, length.size() + text.size() + offset, ExitCode::kCheckpoint);
  out.write(length.data(), length.size());
  out.write(text);
  for (size_t i = 0; i < order.size(); ++i) {
    const void* data =
        order[i]->data == nullptr && order[i]->fetch ? order[i]->fetch() : order[i]->data;
    if (sizes[i] > 0) out.write(data, sizes[i]);
  }
  out.commit();
}

}  // namespace longship::io
