// Attention over packed rows on a GPU against the plain attention of each sample in fp64.
#include "nn/packed_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "nn/attention.h"
#include "runtime/device.h"

namespace longship::nn {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor running_sum(const std::vector<int>& counts) {
  std::vector<int> sums{0};
  for (const int count : counts) sums.push_back(sums.back() + count);
  return at::tensor(sums, at::kInt);
}

/// out, dq, dk, dv of samples one by one.
Tensors one_by_one(const Tensors& in, const at::Tensor& dout, const std::vector<int>& queries,
                   const std::vector<int>& keys) {
  Tensors leaves;
  for (const at::Tensor& t : in) leaves.push_back(t.to(at::kDouble).set_requires_grad(true));
  Tensors parts;
  int64_t first_q = 0, first_k = 0;
  for (size_t b = 0; b < queries.size(); ++b) {
    const auto rows = [](const at::Tensor& t, int64_t first, int64_t count) {
      return t.narrow(0, first, count).unsqueeze(0);
    };
    parts.push_back(attention(rows(leaves[0], first_q, queries[b]),
                              rows(leaves[1], first_k, keys[b]), rows(leaves[2], first_k, keys[b]))
                        .squeeze(0));
    first_q += queries[b];
    first_k += keys[b];
  }
  at::Tensor out = at::cat(parts);
  out.backward(dout.narrow(0, 0, first_q).to(at::kDouble));
  return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(PackedAttentionGpu, SamplesOfDifferentLengthsMatchTheirOwnAttention) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  struct Case {
    std::vector<int> queries, keys;
    int64_t heads, groups, width;
  };
  const Case cases[] = {
      {{5, 5, 5}, {70, 130, 9}, 8, 1, 256},        // few queries, one key head: heads as rows
      {{300, 77, 150}, {300, 77, 150}, 8, 1, 64},  // many queries
      {{20, 31}, {20, 31}, 4, 2, 32},
  };
  for (const Case& c : cases) {
    const at::Tensor cu_q = running_sum(c.queries), cu_k = running_sum(c.keys);
    const int64_t tail = 3;  // rows behind the last sample
    const int64_t num_q = cu_q[-1].item<int>() + tail, num_k = cu_k[-1].item<int>() + tail;
    const auto random = [&](int64_t rows, int64_t heads) {
      return at::randn({rows, heads, c.width}).to(at::kBFloat16);
    };
    const Tensors in = {random(num_q, c.heads), random(num_k, c.groups), random(num_k, c.groups)};
    const at::Tensor dout = random(num_q, c.heads).flatten(1, 2);
    Tensors leaves;
    for (const at::Tensor& t : in) leaves.push_back(t.to(at::kCUDA).set_requires_grad(true));
    const at::Tensor out = varlen_attention(leaves[0], leaves[1], leaves[2], cu_q.to(at::kCUDA),
                                            cu_k.to(at::kCUDA), 320, 320);
    out.backward(dout.to(at::kCUDA));
    const Tensors expected = one_by_one(in, dout, c.queries, c.keys);
    const Tensors ours = {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
    for (size_t i = 0; i < ours.size(); ++i) {
      const at::Tensor host = ours[i].cpu().to(at::kDouble);
      const int64_t valid = host.size(0) - tail;
      EXPECT_LE(relative_error(host.narrow(0, 0, valid),
                               expected[i].narrow(0, 0, valid).view_as(host.narrow(0, 0, valid))),
                1e-2)
          << fmt::format("{} heads of width {}, output {}", c.heads, c.width, i);
      EXPECT_EQ(host.narrow(0, valid, tail).abs().max().item<double>(), 0.0);
    }
  }
}

}  // namespace
}  // namespace longship::nn
