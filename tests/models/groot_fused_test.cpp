// The same loss and gradients of GR00T whatever operators are used, dropout included. On the CPU
// the fused operators run as their oracles.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <set>
#include <span>

#include "base/rng.h"
#include "groot_head_case.h"
#include "models/groot/dropout.h"
#include "models/groot/layout.h"
#include "models/parity.h"
#include "models/tiny_case.h"
#include "nn/tensor_math.h"
#include "runtime/device.h"
#include "support/paths.h"

namespace longship::models {
namespace {

using namespace testing;  // groot_head_case, tiny_case
using Tensors = HeadTensors;
using Case = HeadCase;

nn::Fused everything() {
  return {.norms = true,
          .activations = true,
          .rope = true,
          .embedding = false,
          .loss = false,
          .stacked = true,
          .attention = true};
}

at::Tensor make_keys(int64_t count) {
  at::Tensor keys = at::empty({count}, at::TensorOptions(at::kLong));
  for (int64_t b = 0; b < count; ++b) {
    keys[b].fill_(static_cast<int64_t>(
        random_bits(make_key(3, RngStream::kDropout), static_cast<uint64_t>(b))));
  }
  return keys;
}

at::Tensor long_tensor(const std::vector<int64_t>& values) {
  at::Tensor out = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions(at::kLong));
  for (size_t i = 0; i < values.size(); ++i) out[static_cast<int64_t>(i)].fill_(values[i]);
  return out;
}

at::Tensor running_sum(const at::Tensor& counts) {
  at::Tensor out = at::empty({counts.size(0) + 1}, at::TensorOptions(at::kInt));
  out[0].fill_(0);
  out.narrow(0, 1, counts.size(0)).copy_(counts.cumsum(0));
  return out;
}

/// The tables of a prepared batch, written out from the masks.
GrootReadRows read_of(const Case& c) {
  const at::Tensor valid = c.flag("backbone_attention_mask"), image = c.flag("image_mask");
  const at::Tensor is_image = valid.logical_and(image);
  const at::Tensor is_text = valid.logical_and(image.logical_not());
  std::vector<int64_t> order;
  for (const at::Tensor& kind : {is_text, valid.logical_not(), is_image}) {
    const at::Tensor flat = kind.flatten();
    for (int64_t place = 0; place < flat.size(0); ++place) {
      if (flat[place].item<bool>()) order.push_back(place);
    }
  }
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return {long_tensor(order), long_tensor(back), running_sum(is_text.sum(1)),
          running_sum(is_image.sum(1)), is_image.sum().item<int64_t>()};
}

/// What a policy hands to the head in training.
GrootHeadCall training_call(const Case& c) {
  GrootHeadCall call;
  call.dropout = groot_dropout(c.head, make_keys(c.in("state").size(0)));
  call.read = read_of(c);
  return call;
}

Tensors outcome(const char* golden, const nn::Fused& fused, at::ScalarType dtype = at::kFloat,
                const std::function<void(Case&)>& change = {}) {
  Case c(golden, fused, dtype);
  if (change) change(c);
  return c.outcome(training_call(c));
}

/// In fp64, where the ways differ by rounding that no tolerance needs to allow for.
constexpr double kExact = 1e-9;

class GrootFused : public ::testing::TestWithParam<const char*> {};

TEST_P(GrootFused, EveryOperatorAloneAndTogetherGivesTheSame) {
  const Tensors plain = outcome(GetParam(), {}, at::kDouble);
  for (bool nn::Fused::*one :
       {&nn::Fused::norms, &nn::Fused::activations, &nn::Fused::stacked, &nn::Fused::attention}) {
    nn::Fused fused;
    fused.*one = true;
    expect_close(outcome(GetParam(), fused, at::kDouble), plain, kExact);
  }
  expect_close(outcome(GetParam(), everything(), at::kDouble), plain, kExact);
  // The golden cases' own tolerance for gradients.
  expect_close(outcome(GetParam(), everything()), outcome(GetParam(), {}), 1e-4);
}

// Masks do not depend on the operators that draw them, and other dropouts work with all of them.
TEST_P(GrootFused, DropoutByAnyFunction) {
  Case plain(GetParam(), {}, at::kDouble), fused(GetParam(), everything(), at::kDouble);
  GrootHeadCall call{.dropout = drop_drawn};
  const Tensors expected = plain.outcome(call);
  call.read = read_of(fused);
  expect_close(fused.outcome(call), expected, kExact);
  Case without(GetParam(), everything(), at::kDouble);
  EXPECT_GT(head_error(without.outcome().at("pred"), expected.at("pred")), 1e-3);
}

TEST_P(GrootFused, SamplesWithoutPicturesOrWithoutText) {
  const auto change = [](Case& c) {
    c.inputs["image_mask"] = c.in("image_mask").clone();
    c.inputs["image_mask"][2].zero_();
    c.inputs["image_mask"][1].fill_(1);
  };
  const Tensors plain = outcome(GetParam(), {}, at::kDouble, change);
  const Tensors packed = outcome(GetParam(), everything(), at::kDouble, change);
  expect_close(packed, plain, kExact);
  for (const auto& [name, tensor] : packed) {
    EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
  }
}

// Both round their products; what lies between them is rounded at other places.
TEST_P(GrootFused, InBf16AsCloseToFp32AsThePlainWay) {
  const Tensors exact = outcome(GetParam(), {});
  const Tensors plain = outcome(GetParam(), {}, at::kBFloat16);
  const Tensors fused = outcome(GetParam(), everything(), at::kBFloat16);
  const double error = head_error(plain.at("pred"), exact.at("pred"));
  EXPECT_LT(head_error(fused.at("pred"), exact.at("pred")), 1.5 * error + 1e-3);
  for (const auto& [name, tensor] : plain) {
    EXPECT_EQ(fused.at(name).scalar_type(), tensor.scalar_type()) << name;
  }
}

TEST_P(GrootFused, RecomputedUnitsGiveTheSameBits) {
  const Tensors kept = outcome(GetParam(), everything());
  expect_equal(outcome(GetParam(), everything(), at::kFloat,
                       [](Case& c) { c.head.recomputed = [](std::string_view) { return true; }; }),
               kept);
}

struct Silent : nn::UnitHooks {
  void before_forward(std::string_view) override {}
  void after_forward(std::string_view, bool, bool) override {}
  void before_backward(std::string_view) override {}
  void after_backward(std::string_view) override {}
};

TEST_P(GrootFused, WatchedUnitsGiveTheSameBits) {
  Silent hooks;
  expect_equal(
      outcome(GetParam(), everything(), at::kFloat, [&](Case& c) { c.head.hooks = &hooks; }),
      outcome(GetParam(), everything()));
}

TEST_P(GrootFused, SamplesTheSame) {
  const at::NoGradGuard no_grad;
  const auto sample = [&](const nn::Fused& fused) {
    const Case c(GetParam(), fused);
    const GrootHeadCall call{.read = read_of(c)};
    return c.head.integrate(c.context(call), c.in("state"), c.in("embodiment_id"),
                            c.in("sample_noise"), call);
  };
  EXPECT_LT(head_error(sample(everything()), sample({})), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(All, GrootFused,
                         ::testing::Values("groot_n16/dit_head", "groot_n17/dit_head"));

class GrootFusedGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(GrootFusedGolden, EveryRowPasses) {
  ParityOptions options;
  options.fused = everything();
  const ParityReport report = run_parity_case(longship::testing::golden_path(GetParam()), options,
                                              testing::plain_optimizer);
  EXPECT_TRUE(report.pass()) << format_report(report);
}

INSTANTIATE_TEST_SUITE_P(All, GrootFusedGolden,
                         ::testing::Values("groot_n16/dit_head", "groot_n16/full_tiny",
                                           "groot_n16/full_windows", "groot_n17/dit_head",
                                           "groot_n17/full_tiny"));

// Two samples, the first with one picture of 2 x 4 patches: places of [2, 5], tokens at the right.
TEST(GrootReadRows, TextThenPaddingThenPictures) {
  GrootSizes sizes;
  sizes.text.image_token = 9;
  GrootLayoutRequest request;
  request.grids = {{2, 4}};
  request.pictures = {1, 0};
  request.lengths = {5, 3};
  request.token_ids = long_tensor({1, 9, 9, 2, 3, 4, 5, 6});
  GrootLayout layout = make_groot_layout(request, sizes);
  EXPECT_TRUE(at::equal(layout.read.order, long_tensor({0, 3, 4, 7, 8, 9, 5, 6, 1, 2})));
  EXPECT_TRUE(at::equal(layout.read.order.index_select(0, layout.read.back),
                        long_tensor({0, 1, 2, 3, 4, 5, 6, 7, 8, 9})));
  EXPECT_TRUE(at::equal(layout.read.text_cu.to(at::kLong), long_tensor({0, 3, 6})));
  EXPECT_TRUE(at::equal(layout.read.image_cu.to(at::kLong), long_tensor({0, 2, 2})));
  EXPECT_EQ(layout.read.image_rows, 2);
  std::set<std::string> names;
  for (const auto& [name, tensor] : layout.tensors()) names.insert(name);
  for (const char* name : {"order", "back", "text_cu", "image_cu"}) {
    EXPECT_TRUE(names.contains(std::string("layout.read_") + name)) << name;
  }
}

TEST(GrootReadRows, FanOutAddsInOneOrderAndInTheWiderDtype) {
  const at::Tensor rows = long_tensor({1, 2, 3}).to(at::kFloat).set_requires_grad(true);
  const std::vector<at::Tensor> shares = fan_out(rows, at::kBFloat16, 3);
  ASSERT_EQ(shares.size(), 3u);
  for (const at::Tensor& share : shares) EXPECT_EQ(share.scalar_type(), at::kBFloat16);
  // 256 + 1 is no number of bf16; the second share is not read.
  (shares[2] * 1.0 + shares[0] * 256.0).sum().backward();
  EXPECT_EQ(rows.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(rows.grad(), at::empty({3}).fill_(257.0)));
}

/// Of leaves {q, keys, values}: the result and their gradients, on the CPU in fp32.
std::vector<at::Tensor> read_and_back(const std::vector<at::Tensor>& values, const at::Tensor& dy,
                                      GrootRows source, at::Device device, at::ScalarType dtype) {
  std::vector<at::Tensor> leaves, out;
  for (const at::Tensor& t : values) {
    leaves.push_back(t.to(device, dtype, false, /*copy=*/true).set_requires_grad(true));
  }
  source.cu = source.cu.to(device);
  source.query_cu = source.query_cu.to(device);
  const at::Tensor y = read_packed_rows(leaves[0], leaves[1], leaves[2], source);
  y.backward(dy.to(device, dtype));
  out.push_back(y.detach().to(at::kCPU, at::kFloat));
  for (const at::Tensor& t : leaves) out.push_back(t.grad().to(at::kCPU, at::kFloat));
  return out;
}

// Samples of 4, 0, 150 and 3 rows, and rows behind the last that nobody reads.
TEST(GrootReadRowsGpu, PackedAttentionAsOnTheCpu) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const int64_t queries = 51, rows = 157, padding = 8, heads = 4, dim = 48;
  const auto drawn = [](std::vector<int64_t> sizes, uint64_t seed) {
    at::Tensor out = at::empty(sizes);
    fill_normal(make_key(seed, RngStream::kTest),
                std::span(out.mutable_data_ptr<float>(), static_cast<size_t>(out.numel())));
    return out.to(at::kBFloat16).to(at::kFloat);
  };
  const std::vector<at::Tensor> values = {drawn({4, queries, heads, dim}, 1),
                                          drawn({rows + padding, heads, dim}, 2),
                                          drawn({rows + padding, heads, dim}, 3)};
  const at::Tensor dy = drawn({4, queries, heads * dim}, 4);
  GrootRows source;
  source.cu = running_sum(long_tensor({4, 0, 150, 3}));
  source.query_cu = running_sum(long_tensor({queries, queries, queries, queries}));
  source.longest = 200;  // an upper bound
  const auto expected = read_and_back(values, dy, source, at::kCPU, at::kFloat);
  const auto got = read_and_back(values, dy, source, at::kCUDA, at::kBFloat16);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LT(head_error(got[i], expected[i]), 2e-2) << i;
  }
  EXPECT_EQ(got[0][1].abs().max().item<float>(), 0.0f);
  EXPECT_EQ(got[1][1].abs().max().item<float>(), 0.0f);
  for (const size_t i : {2, 3}) {
    EXPECT_EQ(got[i].narrow(0, rows, padding).abs().max().item<float>(), 0.0f) << i;
  }
}

}  // namespace
}  // namespace longship::models
