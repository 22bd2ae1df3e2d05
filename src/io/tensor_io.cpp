#include "io/tensor_io.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <fmt/core.h>

#include <cstring>

#include "base/error.h"

namespace longship::io {
namespace {

constexpr std::pair<DType, at::ScalarType> kTypes[] = {
    {DType::kBool, at::kBool},
    {DType::kU8, at::kByte},
    {DType::kI8, at::kChar},
    {DType::kF8E4M3, at::kFloat8_e4m3fn},
    {DType::kF8E5M2, at::kFloat8_e5m2},
    {DType::kU16, at::kUInt16},
    {DType::kI16, at::kShort},
    {DType::kF16, at::kHalf},
    {DType::kBF16, at::kBFloat16},
    {DType::kU32, at::kUInt32},
    {DType::kI32, at::kInt},
    {DType::kF32, at::kFloat},
    {DType::kU64, at::kUInt64},
    {DType::kI64, at::kLong},
    {DType::kF64, at::kDouble},
};

at::Tensor copy_out(const std::byte* data, const TensorInfo& info) {
  at::Tensor tensor = at::empty(info.shape, at::TensorOptions().dtype(to_scalar_type(info.dtype)));
  if (info.num_bytes() > 0) std::memcpy(tensor.mutable_data_ptr(), data, info.num_bytes());
  return tensor;
}

}  // namespace

at::ScalarType to_scalar_type(DType dtype) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  throw InternalError(fmt::format("no tensor type for safetensors dtype {}", dtype_name(dtype)));
}

DType to_dtype(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  throw CheckpointError(
      fmt::format("tensors of type {} cannot be stored in a safetensors file; convert them first",
                  c10::toString(type)));
}

at::Tensor to_tensor(const SafetensorsFile& file, const TensorInfo& info) {
  return copy_out(file.data(info), info);
}

at::Tensor to_tensor(const Weights& weights, const TensorInfo& info) {
  return copy_out(weights.data(info), info);
}

std::map<std::string, at::Tensor> load_tensors(const std::filesystem::path& path) {
  const Weights weights = open_weights(path);
  std::map<std::string, at::Tensor> tensors;
  for (const TensorInfo& info : weights.tensors())
    tensors.emplace(info.name, to_tensor(weights, info));
  return tensors;
}

void save_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                  const Metadata& metadata) {
  std::vector<at::Tensor> kept;  // host copies live until the file is written
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    LS_CHECK(tensor.defined(), CheckpointError, "{}: tensor '{}' is undefined, nothing to save",
             path.string(), name);
    LS_CHECK(!tensor.is_meta(), CheckpointError,
             "{}: tensor '{}' is on the meta device and has no values", path.string(), name);
    kept.push_back(tensor.detach().to(at::kCPU).contiguous());
    views.push_back(
        {name, to_dtype(tensor.scalar_type()), tensor.sizes().vec(), kept.back().const_data_ptr()});
  }
  write_safetensors(path, views, metadata);
}

}  // namespace longship::io
