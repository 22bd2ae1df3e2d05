#include "models/pi05/layout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "nn/attention.h"

namespace longship::models {
namespace {

template <class T>
at::Tensor host_tensor(const std::vector<T>& values) {
  at::Tensor out =
      at::empty({static_cast<int64_t>(values.size())}, sizeof(T) == 8 ? at::kLong : at::kInt);
  if (!values.empty()) {
    std::memcpy(out.mutable_data_ptr(), values.data(), values.size() * sizeof(T));
  }
  return out;
}

std::vector<int64_t> inverse_of(const std::vector<int64_t>& permutation) {
  std::vector<int64_t> out(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i) {
    out[static_cast<size_t>(permutation[i])] = static_cast<int64_t>(i);
  }
  return out;
}

std::vector<int32_t> running_sum(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> out{0};
  for (const int64_t length : lengths) out.push_back(out.back() + static_cast<int32_t>(length));
  return out;
}

/// Rows of images, then of valid text, sample by sample; padding text last.
void fill_rows(const LayoutRequest& request, const std::vector<int64_t>& lengths,
               PrefixLayout& out) {
  const int64_t image_rows =
      request.tokens_per_image * std::accumulate(request.images_per_sample.begin(),
                                                 request.images_per_sample.end(), int64_t{0});
  std::vector<int64_t> gather;
  std::vector<int32_t> positions;
  gather.reserve(static_cast<size_t>(out.num_rows));
  int64_t next_image = 0, next_text = image_rows;
  for (size_t b = 0; b < lengths.size(); ++b) {
    const int64_t from_images = request.images_per_sample[b] * request.tokens_per_image;
    for (int64_t k = 0; k < from_images; ++k) gather.push_back(next_image++);
    for (int64_t k = from_images; k < lengths[b]; ++k) gather.push_back(next_text++);
    for (int64_t k = 0; k < lengths[b]; ++k) positions.push_back(static_cast<int32_t>(k));
  }
  while (static_cast<int64_t>(gather.size()) < out.num_rows) gather.push_back(next_text++);
  positions.resize(gather.size(), 0);
  out.gather = host_tensor(gather);
  out.gather_inverse = host_tensor(inverse_of(gather));
  out.positions = host_tensor(positions);
  std::vector<int32_t> suffix;
  for (const int64_t length : lengths) {
    for (int64_t k = 0; k < request.suffix_length; ++k) {
      suffix.push_back(static_cast<int32_t>(length + k));
    }
  }
  out.suffix_positions = host_tensor(suffix);
}

void fill_packed(const LayoutRequest& request, const std::vector<int64_t>& lengths,
                 PrefixLayout& out) {
  const int64_t suffix = request.suffix_length;
  std::vector<int64_t> joint, joint_lengths;
  int64_t next_prefix = 0, next_suffix = out.num_rows;
  for (const int64_t length : lengths) {
    for (int64_t k = 0; k < length; ++k) joint.push_back(next_prefix++);
    for (int64_t k = 0; k < suffix; ++k) joint.push_back(next_suffix++);
    joint_lengths.push_back(length + suffix);
  }
  while (next_prefix < out.num_rows) joint.push_back(next_prefix++);
  out.joint_index = host_tensor(joint);
  out.joint_inverse = host_tensor(inverse_of(joint));
  out.cu_suffix = host_tensor(running_sum(std::vector<int64_t>(lengths.size(), suffix)));
  out.cu_joint = host_tensor(running_sum(joint_lengths));
}

void fill_plain(const std::vector<int64_t>& lengths, PrefixLayout& out) {
  const int64_t places = out.batch_size * out.max_length;
  std::vector<int64_t> pad(static_cast<size_t>(places), 0), unpad, unused;
  int64_t packed = 0;
  for (int64_t b = 0; b < out.batch_size; ++b) {
    for (int64_t k = 0; k < out.max_length; ++k) {
      const int64_t place = b * out.max_length + k;
      if (k < lengths[static_cast<size_t>(b)]) {
        pad[static_cast<size_t>(place)] = packed++;
        unpad.push_back(place);
      } else {
        unused.push_back(place);
      }
    }
  }
  if (unused.empty()) return;
  out.pad_index = host_tensor(pad);
  out.unpad_index = host_tensor(unpad);
  out.unused = host_tensor(unused);
  out.key_mask = at::zeros({out.batch_size, 1, 1, out.max_length}, at::kFloat);
  float* values = out.key_mask.mutable_data_ptr<float>();
  for (const int64_t place : unused) values[place] = static_cast<float>(nn::kMasked);
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor*>> PrefixLayout::tensors() {
  std::vector<std::pair<std::string, at::Tensor*>> out;
  const auto add = [&](const char* name, at::Tensor& tensor) {
    if (tensor.defined()) out.emplace_back(name, &tensor);
  };
  add("gather", gather);
  add("gather_inverse", gather_inverse);
  add("positions", positions);
  add("suffix_positions", suffix_positions);
  add("cu_prefix", cu_prefix);
  add("cu_suffix", cu_suffix);
  add("cu_joint", cu_joint);
  add("joint_index", joint_index);
  add("joint_inverse", joint_inverse);
  add("pad_index", pad_index);
  add("unpad_index", unpad_index);
  add("unused", unused);
  add("key_mask", key_mask);
  return out;
}

PrefixLayout make_prefix_layout(const LayoutRequest& request) {
  PrefixLayout out;
  out.batch_size = static_cast<int64_t>(request.tokens_per_sample.size());
  out.suffix_length = request.suffix_length;
  out.length_bound = request.length_bound;
  std::vector<int64_t> lengths;
  int64_t valid_text = 0;
  for (size_t b = 0; b < request.tokens_per_sample.size(); ++b) {
    lengths.push_back(request.images_per_sample[b] * request.tokens_per_image +
                      request.tokens_per_sample[b]);
    valid_text += request.tokens_per_sample[b];
    out.num_valid += lengths.back();
    out.max_length = std::max(out.max_length, lengths.back());
  }
  out.num_rows = out.num_valid + request.text_rows - valid_text;
  // Padding may fill the rows of shorter samples exactly: the count of rows alone says nothing.
  out.dense = out.num_valid == out.batch_size * out.max_length && out.num_rows == out.num_valid;
  fill_rows(request, lengths, out);
  out.cu_prefix = host_tensor(running_sum(lengths));
  if (request.packed && !out.dense) fill_packed(request, lengths, out);
  if (!request.packed) fill_plain(lengths, out);
  return out;
}

}  // namespace longship::models
