#include "train/batch_transfer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace longship::train {
namespace {

constexpr int64_t kSmallBytes = int64_t{256} << 10;  // of a tensor that travels in the block
constexpr int64_t kBlockBytes = int64_t{4} << 20;
constexpr int64_t kAlignment = 256;

using Tensors = std::vector<at::Tensor*>;
using Key = const c10::StorageImpl*;

Key key_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

/// The tensors of a batch by the block that they share; those with a memory of their own under
/// null.
std::map<Key, Tensors> by_block(models::Batch& batch) {
  std::map<Key, Tensors> out;
  for (const auto& [name, tensor] : batch.tensors()) {
    const bool small = static_cast<int64_t>(tensor->storage().nbytes()) <= kBlockBytes;
    out[small ? key_of(*tensor) : nullptr].push_back(tensor);
  }
  for (auto it = out.begin(); it != out.end();) {
    if (it->first == nullptr || it->second.size() > 1) {
      ++it;
      continue;
    }
    out[nullptr].push_back(it->second.front());
    it = out.erase(it);
  }
  return out;
}

at::Tensor whole(const at::Tensor& part) {
  const auto bytes = static_cast<int64_t>(part.storage().nbytes());
  return at::empty({0}, part.options().dtype(at::kByte)).set_(part.storage(), 0, {bytes}, {1});
}

/// `like` over the memory of `block`.
at::Tensor placed(const at::Tensor& like, const at::Tensor& block) {
  return at::empty({0}, like.options())
      .set_(block.storage(), like.storage_offset(), like.sizes(), like.strides());
}

bool lie_alike(const Tensors& a, const Tensors& b) {
  if (a.front()->storage().nbytes() != b.front()->storage().nbytes()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (key_of(*b[i]) != key_of(*b.front()) || a[i]->storage_offset() != b[i]->storage_offset() ||
        a[i]->sizes() != b[i]->sizes() || a[i]->strides() != b[i]->strides() ||
        a[i]->scalar_type() != b[i]->scalar_type()) {
      return false;
    }
  }
  return true;
}

}  // namespace

void send(models::Batch& batch, at::Device device) {
  if (!device.is_cuda()) return batch.to(device);
  Tensors small;
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
  for (const auto& [name, tensor] : batch.tensors()) {
    const auto own = static_cast<int64_t>(tensor->nbytes());
    if (!tensor->is_cpu() || own > kSmallBytes || bytes + own > kBlockBytes) continue;
    small.push_back(tensor);
    offsets.push_back(bytes);
    bytes += (own + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (small.size() > 1) {
    const at::Tensor host =
        at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    const auto slot = [&](const at::Tensor& block, size_t i) {
      return block.narrow(0, offsets[i], static_cast<int64_t>(small[i]->nbytes()))
          .view(small[i]->scalar_type())
          .view(small[i]->sizes());
    };
    for (size_t i = 0; i < small.size(); ++i) slot(host, i).copy_(*small[i]);
    const at::Tensor there = host.to(device, /*non_blocking=*/true);
    for (size_t i = 0; i < small.size(); ++i) *small[i] = slot(there, i);
  }
  batch.to(device);  // the others
}

Batches graph_inputs(const Batches& micro, size_t count) {
  Batches out;
  for (size_t m = 0; m < count; ++m) {
    out.push_back(micro[m]->clone());
    for (const auto& [key, tensors] : by_block(*out.back())) {
      const at::Tensor block =
          key == nullptr ? at::Tensor() : at::empty_like(whole(*tensors.front()));
      for (at::Tensor* tensor : tensors) {
        *tensor = key == nullptr ? at::empty_like(*tensor) : placed(*tensor, block);
      }
    }
  }
  return out;
}

void take_values(models::Batch& target, models::Batch& source) {
  const auto from = source.tensors(), to = target.tensors();
  LS_CHECK(from.size() == to.size(), InternalError,
           "batches of one signature have {} and {} tensors", from.size(), to.size());
  std::map<const at::Tensor*, at::Tensor*> own;
  for (size_t i = 0; i < from.size(); ++i) own[from[i].second] = to[i].second;
  const std::map<Key, Tensors> blocks = by_block(target);
  for (const auto& [key, tensors] : by_block(source)) {
    Tensors into;
    for (const at::Tensor* tensor : tensors) into.push_back(own.at(tensor));
    // The block of the target may hold nothing else: all of it is overwritten.
    const auto block = blocks.find(key_of(*into.front()));
    const bool alone = block != blocks.end() && block->second.size() == into.size();
    if (key != nullptr && alone && lie_alike(tensors, into)) {
      whole(*into.front()).copy_(whole(*tensors.front()), /*non_blocking=*/true);
      continue;
    }
    for (size_t i = 0; i < tensors.size(); ++i) into[i]->copy_(*tensors[i], /*non_blocking=*/true);
  }
}

}  // namespace longship::train
