// Positions, rotation and attention of Pi05Model over packed rows: the plain path pads rows to the
// longest sample and masks, the fused one reads packed rows. Letters as in forward.cpp.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/error.h"
#include "models/pi05/model.h"
#include "nn/attention.h"
#include "nn/functions.h"
#include "nn/packed_attention.h"
#include "nn/rope.h"
#include "ops/rope_qkv.h"
#include "ops/rows.h"

namespace longship::models {
namespace {

/// x [N, ...] -> [B, L, ...]; places behind a sample's end hold arbitrary rows.
at::Tensor padded(const at::Tensor& x, const PrefixLayout& layout) {
  const at::Tensor valid = x.narrow(0, 0, layout.num_valid);
  const at::Tensor rows = layout.pad_index.defined()
                              ? nn::pad_rows(valid, layout.pad_index, layout.unpad_index)
                              : valid;
  return rows.unflatten(0, {layout.batch_size, layout.max_length});
}

/// The inverse, [B, L, ...] -> [N, ...] with zero padding rows.
at::Tensor unpadded(const at::Tensor& y, const PrefixLayout& layout) {
  at::Tensor rows = y.flatten(0, 1);
  if (layout.pad_index.defined()) {
    rows = nn::unpad_rows(rows, layout.pad_index, layout.unpad_index, layout.unused);
  }
  const int64_t tail = layout.num_rows - layout.num_valid;
  if (tail == 0) return rows;
  return at::cat({rows, at::zeros({tail, rows.size(1)}, rows.options())});
}

}  // namespace

void Pi05Model::prepare(Pi05Batch& batch, bool to_buckets) const {
  if (batch.layout) return;
  LS_CHECK(batch.token_ids.is_cpu(), InternalError, "pi05: prepare() works on host batches");
  int64_t rows = batch.token_ids.size(0);
  if (to_buckets) {
    if (pad_text_) rows = std::max(rows, batch.size() * sizes_.token_limit);
    rows = (rows + token_bucket_ - 1) / token_bucket_ * token_bucket_;
  }
  const int64_t missing = rows - batch.token_ids.size(0);
  if (missing > 0) {
    batch.token_ids =
        at::cat({batch.token_ids, at::full({missing}, -1, batch.token_ids.options())});
  }
  batch.layout = make_prefix_layout(layout_request(batch));
}

LayoutRequest Pi05Model::layout_request(const Pi05Batch& batch) const {
  LayoutRequest request;
  request.images_per_sample = batch.images_per_sample;
  request.tokens_per_sample = batch.tokens_per_sample;
  request.tokens_per_image = sizes_.vision.num_tokens();
  request.text_rows = batch.token_ids.size(0);
  request.suffix_length = suffix_length();
  request.packed = fused_.attention;
  int64_t images = 0, tokens = sizes_.token_limit;
  for (const int64_t n : batch.images_per_sample) images = std::max(images, n);
  for (const int64_t n : batch.tokens_per_sample) tokens = std::max(tokens, n);
  request.length_bound = images * request.tokens_per_image + tokens;
  return request;
}

PrefixLayout Pi05Model::layout(const Pi05Batch& batch) const {
  if (batch.layout) {
    reserve_positions(*batch.layout);
    return *batch.layout;
  }
  PrefixLayout out = make_prefix_layout(layout_request(batch));
  for (auto& [name, tensor] : out.tensors()) *tensor = tensor->to(batch.token_ids.device());
  reserve_positions(out);
  return out;
}

void Pi05Model::reserve_positions(const PrefixLayout& layout) const {
  const int64_t needed = std::max(layout.length_bound, layout.max_length) + suffix_length();
  const at::Device device = embedding_.device();
  if (rope_.cos.defined() && rope_.cos.size(0) >= needed && rope_.cos.device() == device) return;
  const at::Tensor positions =
      at::arange(needed, at::TensorOptions().dtype(at::kLong).device(device));
  rope_ = nn::rope_table(positions, sizes_.head_dim, sizes_.rope_theta, precision_.rope);
}

nn::RopeTable Pi05Model::rope_rows(const at::Tensor& positions) const {
  if (fused_.rope) return {};  // the fused operator reads the table by position
  return {nn::select_rows(rope_.cos, positions), nn::select_rows(rope_.sin, positions)};
}

Pi05Model::Heads Pi05Model::split_heads(const at::Tensor& qkv, const at::Tensor& positions,
                                        const nn::RopeTable& rows,
                                        const at::Tensor& rows_valid) const {
  const int64_t groups = sizes_.num_kv_heads;
  if (fused_.rope) {
    const int64_t num_heads = qkv.size(-1) / sizes_.head_dim - 2 * groups;
    auto [q, k, v] =
        ops::rope_qkv(qkv, rope_.cos.select(1, 0), rope_.sin.select(1, 0), positions, num_heads,
                      groups, sizes_.head_dim,
                      rows_valid.defined() ? std::optional<at::Tensor>(rows_valid) : std::nullopt);
    return {num_heads > 0 ? q : at::Tensor(), k, v};
  }
  const at::Tensor all = qkv.unflatten(-1, {-1, sizes_.head_dim});
  const int64_t heads = all.size(-2) - 2 * groups;
  const auto parts = all.split_with_sizes({heads + groups, groups}, -2);
  const at::Tensor rotated = nn::apply_rope(parts[0], rows);
  if (heads == 0) return {{}, rotated, parts[1]};
  const auto qk = rotated.split_with_sizes({heads, groups}, -2);
  return {qk[0], qk[1], parts[1]};
}

at::Tensor Pi05Model::attend_prefix(const Heads& heads, const PrefixLayout& layout,
                                    at::Tensor& cached_k, at::Tensor& cached_v) const {
  if (!fused_.attention) {
    cached_k = padded(heads.k, layout);
    cached_v = padded(heads.v, layout);
    if (!heads.q.defined()) return {};
    const at::Tensor mask =
        layout.key_mask.defined() ? layout.key_mask.to(precision_.stream) : layout.key_mask;
    return unpadded(nn::attention(padded(heads.q, layout), cached_k, cached_v, mask), layout);
  }
  cached_k = heads.k;
  cached_v = heads.v;
  if (!heads.q.defined()) return {};
  if (layout.dense) {
    const auto dense = [&](const at::Tensor& x) {
      return x.unflatten(0, {layout.batch_size, layout.max_length});
    };
    return nn::dense_attention(dense(heads.q), dense(heads.k), dense(heads.v)).flatten(0, 1);
  }
  return nn::varlen_attention(heads.q, heads.k, heads.v, layout.cu_prefix, layout.cu_prefix,
                              layout.length_bound, layout.length_bound);
}

at::Tensor Pi05Model::suffix_mask(const PrefixLayout& layout, int64_t suffix_length) const {
  const bool has_state = !config_.is_pi05();
  if (fused_.attention || (!layout.key_mask.defined() && !has_state)) return {};
  const at::TensorOptions options = layout.gather.options().dtype(at::kFloat);
  const at::Tensor prefix = layout.key_mask.defined()
                                ? layout.key_mask
                                : at::zeros({layout.batch_size, 1, 1, layout.max_length}, options);
  const int64_t rows = has_state ? suffix_length : 1;
  at::Tensor suffix = at::zeros({layout.batch_size, 1, rows, suffix_length}, options);
  // The state token is a block of its own: it does not see the actions.
  if (has_state) suffix.narrow(2, 0, 1).narrow(3, 1, suffix_length - 1).fill_(nn::kMasked);
  return at::cat({prefix.expand({-1, -1, rows, -1}), suffix}, -1).to(precision_.stream);
}

at::Tensor Pi05Model::attend_suffix(const Heads& own, const at::Tensor& k, const at::Tensor& v,
                                    const PrefixLayout& layout, const at::Tensor& mask) const {
  const auto by_sample = [&](const at::Tensor& x, int64_t length) {
    return x.unflatten(0, {layout.batch_size, length});
  };
  const int64_t suffix = layout.suffix_length;
  if (!fused_.attention || layout.dense) {
    const bool packed = fused_.attention;
    const at::Tensor keys = packed ? by_sample(k, layout.max_length) : k;
    const at::Tensor values = packed ? by_sample(v, layout.max_length) : v;
    const at::Tensor all_k = at::cat({keys, by_sample(own.k, suffix)}, 1);
    const at::Tensor all_v = at::cat({values, by_sample(own.v, suffix)}, 1);
    const at::Tensor q = by_sample(own.q, suffix);
    return packed ? nn::dense_attention(q, all_k, all_v) : nn::attention(q, all_k, all_v, mask);
  }
  const auto joint = [&](const at::Tensor& prefix, const at::Tensor& rest) {
    return ops::permute_rows(at::cat({prefix, rest}), layout.joint_index, layout.joint_inverse);
  };
  const at::Tensor mixed =
      nn::varlen_attention(own.q, joint(k, own.k), joint(v, own.v), layout.cu_suffix,
                           layout.cu_joint, suffix, layout.length_bound + suffix);
  return by_sample(mixed, suffix);
}

}  // namespace longship::models
