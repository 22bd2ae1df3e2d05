#include "nn/packed_samples.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "nn/attention.h"
#include "nn/packed_attention.h"
#include "ops/rows.h"

namespace longship::nn {

at::Tensor packed_mask(const at::Tensor& segment_ids, bool causal, at::ScalarType dtype) {
  const int64_t rows = segment_ids.size(0);
  const at::Tensor from = segment_ids.unsqueeze(1), to = segment_ids.unsqueeze(0);
  const at::Tensor order = at::arange(rows, segment_ids.options().dtype(at::kLong));
  const at::Tensor own = order.unsqueeze(1) == order.unsqueeze(0);
  at::Tensor seen = (from == to).logical_and(from != 0);
  if (causal) seen = seen.logical_and(order.unsqueeze(0) <= order.unsqueeze(1));
  const auto options = segment_ids.options().dtype(dtype);
  return at::where(seen.logical_or(own), at::zeros({}, options), at::full({}, kMasked, options))
      .view({1, 1, rows, rows});
}

namespace {

// A row sees rows up to itself.
at::Tensor causal_mask(int64_t length, at::TensorOptions options) {
  return at::full({length, length}, kMasked, options).triu(1).view({1, 1, length, length});
}

// Sample by sample, where the host knows the lengths: work goes by the squares of the samples, not
// by the square of the pack.
at::Tensor attention_by_sample(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& cu, bool causal) {
  const auto bounds = cu.accessor<int32_t, 1>();
  const int64_t samples = cu.size(0) - 1, rows = bounds[samples];
  const auto attend = [&](int64_t begin, int64_t length, int64_t count) {
    const auto part = [&](const at::Tensor& x) {
      return x.narrow(0, begin, count * length).unflatten(0, {count, length});
    };
    const at::Tensor mask = causal ? causal_mask(length, q.options()) : at::Tensor();
    return attention(part(q), part(k), part(v), mask).flatten(0, 1);
  };
  // Neighbours of one length go together.
  std::vector<at::Tensor> out;
  for (int64_t b = 0; b < samples;) {
    const int64_t length = bounds[b + 1] - bounds[b];
    int64_t end = b + 1;
    while (end < samples && bounds[end + 1] - bounds[end] == length) ++end;
    if (length > 0) out.push_back(attend(bounds[b], length, end - b));
    b = end;
  }
  if (rows < q.size(0)) {
    out.push_back(at::zeros({q.size(0) - rows, q.size(1) * q.size(2)}, q.options()));
  }
  return out.size() == 1 ? out.front() : at::cat(out);
}

}  // namespace

at::Tensor packed_self_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const PackedSamples& samples, bool causal, bool flash) {
  LS_CHECK(samples.segment_ids.dim() == 1 && samples.segment_ids.size(0) == q.size(0) &&
               k.size(0) == q.size(0) && v.size(0) == q.size(0),
           ShapeError, "packed attention: {} queries, {} keys, {} values, {} segment ids",
           q.size(0), k.size(0), v.size(0), samples.segment_ids.numel());
  if (flash && flash_takes(q)) {
    return varlen_attention(q, k, v, samples.cu_seqlens, samples.cu_seqlens, samples.longest,
                            samples.longest, causal);
  }
  if (q.is_cpu() && samples.cu_seqlens.defined() && samples.cu_seqlens.is_cpu()) {
    return attention_by_sample(q, k, v, samples.cu_seqlens, causal);
  }
  if (samples.cu_seqlens.defined() && samples.longest > 0) {
    return padded_self_attention(q, k, v, samples, causal);
  }
  const at::Tensor mask = packed_mask(samples.segment_ids, causal, q.scalar_type());
  const at::Tensor out = attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), mask).squeeze(0);
  // A product would keep a NaN of a padding row; a choice does not.
  const at::Tensor valid = (samples.segment_ids != 0).unsqueeze(1);
  return at::where(valid, out, at::zeros({}, out.options()));
}

at::Tensor padded_self_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const PackedSamples& samples, bool causal) {
  const int64_t count = samples.cu_seqlens.size(0) - 1, length = samples.longest;
  const at::Tensor cu = samples.cu_seqlens.to(at::kLong);
  const at::Tensor begin = cu.narrow(0, 0, count).unsqueeze(1);
  const at::Tensor end = cu.narrow(0, 1, count).unsqueeze(1);
  // Which row stands at each of [count, length] places, and where each row stands; -1: nowhere.
  const at::Tensor row_at = begin + at::arange(length, cu.options());
  const at::Tensor used = row_at < end;
  const at::Tensor pad = row_at.masked_fill(used.logical_not(), -1).flatten();
  const at::Tensor row = at::arange(q.size(0), cu.options());
  const at::Tensor sample =
      at::searchsorted(cu, row, /*out_int32=*/false, /*right=*/true).sub(1).clamp_max(count - 1);
  const at::Tensor unpad = (sample * length + row - cu.index_select(0, sample))
                               .masked_fill(row >= cu.narrow(0, count, 1), -1);
  const auto padded = [&](const at::Tensor& x) {
    return ops::permute_rows(x, pad, unpad).unflatten(0, {count, length});
  };
  // A row that is used sees no row behind itself, so that the causal mask hides the unused ones.
  const at::Tensor mask =
      causal ? causal_mask(length, q.options())
             : at::where(used, at::zeros({}, q.options()), at::full({}, kMasked, q.options()))
                   .view({count, 1, 1, length});
  const at::Tensor mixed = attention(padded(q), padded(k), padded(v), mask);
  return ops::permute_rows(mixed.flatten(0, 1), unpad, pad);
}

}  // namespace longship::nn
