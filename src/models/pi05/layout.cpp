#include "models/pi05/layout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "nn/attention.h"

namespace longship::models {
namespace {

at::Tensor to_device(const std::vector<int64_t>& values, at::Device device) {
  at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  if (!values.empty()) {
    std::memcpy(host.mutable_data_ptr<int64_t>(), values.data(), values.size() * sizeof(int64_t));
  }
  return host.to(device, /*dtype=*/at::kLong, /*non_blocking=*/false, /*copy=*/false);
}

}  // namespace

PrefixLayout make_prefix_layout(const Pi05Batch& batch, int64_t tokens_per_image) {
  const at::Device device = batch.token_ids.device();
  const int64_t batch_size = static_cast<int64_t>(batch.tokens_per_sample.size());
  PrefixLayout out;
  out.batch_size = batch_size;
  std::vector<int64_t> lengths;
  int64_t num_images = 0;
  for (size_t b = 0; b < batch.tokens_per_sample.size(); ++b) {
    lengths.push_back(batch.images_per_sample[b] * tokens_per_image + batch.tokens_per_sample[b]);
    num_images += batch.images_per_sample[b];
    out.num_tokens += lengths.back();
    out.max_length = std::max(out.max_length, lengths.back());
  }
  out.dense = out.num_tokens == batch_size * out.max_length;

  std::vector<int64_t> gather, pad_index(static_cast<size_t>(batch_size * out.max_length), 0);
  std::vector<int64_t> unpad_index, unused;
  int64_t next_image_row = 0, next_text_row = num_images * tokens_per_image, packed = 0;
  for (int64_t b = 0; b < batch_size; ++b) {
    const size_t i = static_cast<size_t>(b);
    const int64_t image_rows = batch.images_per_sample[i] * tokens_per_image;
    for (int64_t k = 0; k < image_rows; ++k) gather.push_back(next_image_row++);
    for (int64_t k = 0; k < batch.tokens_per_sample[i]; ++k) gather.push_back(next_text_row++);
    for (int64_t place = 0; place < out.max_length; ++place) {
      const int64_t padded = b * out.max_length + place;
      if (place < lengths[i]) {
        pad_index[static_cast<size_t>(padded)] = packed++;
        unpad_index.push_back(padded);
      } else {
        unused.push_back(padded);
      }
    }
  }
  out.gather = to_device(gather, device);
  out.lengths = to_device(lengths, device);
  if (out.dense) return out;
  out.pad_index = to_device(pad_index, device);
  out.unpad_index = to_device(unpad_index, device);
  out.unused = to_device(unused, device);
  at::Tensor mask = at::zeros({batch_size, 1, 1, out.max_length}, at::kFloat);
  float* values = mask.mutable_data_ptr<float>();
  for (const int64_t place : unused) values[place] = static_cast<float>(nn::kMasked);
  out.key_mask = mask.to(device);
  return out;
}

}  // namespace longship::models
