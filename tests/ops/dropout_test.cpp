#include "ops/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"
#include "op_support.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support

/// Keys of `count` samples, of which every bit may be set.
at::Tensor make_keys(int64_t count, uint64_t seed = 7) {
  at::Tensor keys = at::empty({count}, at::TensorOptions(at::kLong));
  for (int64_t b = 0; b < count; ++b) {
    keys[b].fill_(static_cast<int64_t>(
        random_bits(make_key(seed, RngStream::kTest), static_cast<uint64_t>(b))));
  }
  return keys;
}

int64_t num_zeros(const at::Tensor& mask) {
  return mask.numel() - mask.count_nonzero().item<int64_t>();
}

/// Two masks of n independent elements each are equal in n (p^2 + (1 - p)^2) places.
void expect_independent(const at::Tensor& a, const at::Tensor& b, double p) {
  const double n = static_cast<double>(a.numel());
  const double same = p * p + (1 - p) * (1 - p);
  const double got = static_cast<double>(a.eq(b).sum().item<int64_t>());
  EXPECT_LT(std::abs(got - n * same), 5 * std::sqrt(n * same * (1 - same)));
}

TEST(DropoutMask, IsTheWordsOfPhilox) {
  const at::Tensor keys = make_keys(3);
  const int64_t site = 0xFEDCBA98;  // all 32 bits count
  const at::Tensor mask = dropout_mask(keys, site, {3, 2, 5}, 0.3, at::kFloat).view({3, 10});
  const auto threshold = static_cast<uint32_t>(std::round(0.3 * 4294967296.0));
  for (int64_t b = 0; b < 3; ++b) {
    const auto key = static_cast<uint64_t>(keys[b].item<int64_t>());
    for (int64_t i = 0; i < 10; ++i) {
      const std::array<uint32_t, 4> words = philox4x32(
          {static_cast<uint32_t>(i / 4), 0, static_cast<uint32_t>(site), kDropoutPurpose},
          {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
      const float expected = words[static_cast<size_t>(i % 4)] < threshold ? 0.0f : 1.0f / 0.7f;
      EXPECT_EQ(mask[b][i].item<float>(), expected) << b << " " << i;
    }
  }
}

TEST(DropoutMask, KnownVector) {
  // Random123's vector for Philox4x32-10 holds the generator; these bits hold the mask that a key
  // gives: they must never change.
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  const at::Tensor keys = at::full({1}, 0x0123456789ABCDEF, at::TensorOptions(at::kLong));
  const at::Tensor kept = dropout_mask(keys, 5, {1, 32}, 0.5, at::kFloat).ne(0).view({32});
  uint32_t bits = 0;
  for (int64_t i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(kept[i].item<bool>()) << i;
  EXPECT_EQ(bits, 0x8AFC38C3u);
}

TEST(DropoutMask, DropsTheShareAskedFor) {
  for (const double p : {0.0, 0.01, 0.1, 0.2, 0.5, 0.9, 0.999}) {
    const at::Tensor mask = dropout_mask(make_keys(16), 3, {16, 101, 129}, p, at::kFloat);
    const double n = static_cast<double>(mask.numel());
    EXPECT_LE(std::abs(static_cast<double>(num_zeros(mask)) - n * p),
              5 * std::sqrt(n * p * (1 - p)))
        << p;
  }
}

TEST(DropoutMask, KeepsWithTheMultiplierOfTheDtype) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const double p : {0.0, 0.1, 0.2, 0.5}) {
      const at::Tensor mask = dropout_mask(make_keys(4), 0, {4, 33}, p, type);
      EXPECT_EQ(mask.scalar_type(), type);
      const at::Tensor multiplier = at::full({}, 1.0 / (1.0 - p), at::kDouble).to(type);
      EXPECT_TRUE(same_bits(mask, mask.ne(0).to(type) * multiplier)) << p;
    }
  }
}

TEST(DropoutMask, SameInEveryDtype) {
  const at::Tensor single = dropout_mask(make_keys(4), 1, {4, 7, 9}, 0.2, at::kFloat).ne(0);
  for (const at::ScalarType type : {at::kBFloat16, at::kDouble}) {
    EXPECT_TRUE(same_bits(single, dropout_mask(make_keys(4), 1, {4, 7, 9}, 0.2, type).ne(0)));
  }
}

TEST(DropoutMask, SameArgumentsSameMaskOthersAnotherOne) {
  constexpr double kP = 0.3;
  const auto mask = [&](uint64_t seed, int64_t site) {
    return dropout_mask(make_keys(4, seed), site, {4, 50, 40}, kP, at::kFloat);
  };
  const at::Tensor first = mask(1, 0);
  EXPECT_TRUE(same_bits(first, mask(1, 0)));
  expect_independent(first, mask(2, 0), kP);
  expect_independent(first, mask(1, 1), kP);
  expect_independent(first, mask(1, 1 << 16), kP);
  expect_independent(first[0], first[1], kP);
  // Keys that differ in one bit of either half.
  for (const int64_t bit : {int64_t{1}, int64_t{1} << 32, int64_t{1} << 62}) {
    const at::Tensor keys = make_keys(4, 1);
    expect_independent(first, dropout_mask(keys.bitwise_xor(bit), 0, {4, 50, 40}, kP, at::kFloat),
                       kP);
  }
}

TEST(DropoutMask, ASamplesMaskDependsOnNeitherItsRowNorTheBatch) {
  for (const int64_t width : {1, 3, 4, 30, 64}) {
    const at::Tensor keys = make_keys(5);
    const at::Tensor all = dropout_mask(keys, 9, {5, 7, width}, 0.4, at::kFloat);
    EXPECT_TRUE(
        same_bits(dropout_mask(keys.flip(0), 9, {5, 7, width}, 0.4, at::kFloat).flip(0), all));
    for (int64_t b = 0; b < 5; ++b) {
      const at::Tensor alone =
          dropout_mask(keys.narrow(0, b, 1), 9, {1, 7, width}, 0.4, at::kFloat);
      EXPECT_TRUE(same_bits(alone[0], all[b])) << b << " " << width;
    }
    // How the elements of a sample are arranged does not matter, and a longer sample goes on.
    EXPECT_TRUE(same_bits(dropout_mask(keys, 9, {5, 7 * width + 3}, 0.4, at::kFloat)
                              .narrow(1, 0, 7 * width)
                              .reshape({5, 7, width}),
                          all));
  }
}

TEST(DropoutMask, NeverRequiresGradAndTakesEmptyShapes) {
  EXPECT_FALSE(dropout_mask(make_keys(2), 0, {2, 3}, 0.1, at::kFloat).requires_grad());
  EXPECT_EQ(dropout_mask(make_keys(0), 0, {0, 3}, 0.1, at::kFloat).numel(), 0);
  EXPECT_EQ(dropout_mask(make_keys(2), 0, {2, 0, 3}, 0.1, at::kFloat).sizes(),
            at::IntArrayRef({2, 0, 3}));
  EXPECT_EQ(dropout_mask(make_keys(4), 0, {4}, 0.1, at::kFloat).numel(), 4);
}

TEST(DropoutMask, NextToOneStillGivesNumbers) {
  const at::Tensor mask =
      dropout_mask(make_keys(1), 0, {1, 1000}, std::nextafter(1.0, 0.0), at::kFloat);
  EXPECT_EQ(num_zeros(mask), 1000);
}

TEST(DropoutMask, FaultsAndMeta) {
  const at::Tensor keys = make_keys(2);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double p : {-0.1, 1.0, 1.5, nan}) {
    EXPECT_THROW(dropout_mask(keys, 0, {2, 3}, p, at::kFloat), ShapeError) << p;
  }
  EXPECT_THROW(dropout_mask(keys.to(at::kInt), 0, {2, 3}, 0.1, at::kFloat), ShapeError);
  EXPECT_THROW(dropout_mask(keys.view({2, 1}), 0, {2, 3}, 0.1, at::kFloat), ShapeError);
  EXPECT_THROW(dropout_mask(keys, 0, {3, 3}, 0.1, at::kFloat), ShapeError);
  EXPECT_THROW(dropout_mask(keys, 0, {}, 0.1, at::kFloat), ShapeError);
  EXPECT_THROW(dropout_mask(keys, 0, {2, -1}, 0.1, at::kFloat), ShapeError);
  EXPECT_THROW(dropout_mask(keys, -1, {2, 3}, 0.1, at::kFloat), ShapeError);
  EXPECT_THROW(dropout_mask(keys, int64_t{1} << 32, {2, 3}, 0.1, at::kFloat), ShapeError);
  EXPECT_THROW(dropout_mask(keys, 0, {2, 3}, 0.1, at::kHalf), ShapeError);
  EXPECT_THROW(dropout_mask(keys, 0, {2, 3}, 0.1, at::kLong), ShapeError);
  const at::Tensor mask = dropout_mask(keys.to(at::kMeta), 0, {2, 3, 4}, 0.1, at::kBFloat16);
  EXPECT_TRUE(mask.is_meta());
  EXPECT_EQ(mask.scalar_type(), at::kBFloat16);
  EXPECT_EQ(mask.sizes(), at::IntArrayRef({2, 3, 4}));
}

TEST(Dropout, IsTheProductWithTheMask) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor keys = make_keys(3);
    const at::Tensor x = random({3, 5, 7}, type);
    const at::Tensor mask = dropout_mask(keys, 2, x.sizes(), 0.2, type);
    EXPECT_TRUE(same_bits(dropout(x, keys, 2, 0.2), x * mask));
    // Contiguous or copied.
    const at::Tensor strided = x.permute({0, 2, 1}).contiguous().permute({0, 2, 1});
    EXPECT_TRUE(
        same_bits(dropout(strided, at::cat({keys, keys}).view({2, 3})[1], 2, 0.2), x * mask));
  }
}

TEST(Dropout, GradientIsTheMaskMadeAgain) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor keys = make_keys(3);
    const at::Tensor x = random({3, 5, 7}, type).set_requires_grad(true);
    const at::Tensor mask = dropout_mask(keys, 2, x.sizes(), 0.2, type);
    dropout(x, keys, 2, 0.2).sum().backward();
    EXPECT_TRUE(same_bits(x.grad(), mask));
    const at::Tensor again = leaf_on(x, at::kCPU), dy = random({3, 5, 7}, type);
    dropout(again, keys, 2, 0.2).backward(dy);
    EXPECT_TRUE(same_bits(again.grad(), dy * mask));
  }
}

TEST(Dropout, NumericalGradientInFloat64) {
  const at::Tensor keys = make_keys(2), weight = random({2, 3, 5});
  const at::Tensor x = random({2, 3, 5}).set_requires_grad(true);
  expect_numeric_gradients(
      [&] {
        const at::Tensor y = dropout(x, keys, 4, 0.4);
        return (y * y * weight).sum();
      },
      {x});
}

TEST(Dropout, WithoutProbabilityReturnsTheArgument) {
  const at::Tensor x = random({3, 4}, at::kFloat).set_requires_grad(true);
  EXPECT_TRUE(dropout(x, make_keys(3), 0, 0.0).is_same(x));
  EXPECT_THROW(dropout(x, make_keys(4), 0, 0.0), ShapeError);
}

TEST(Dropout, FaultsAndMeta) {
  const at::Tensor x = at::ones({2, 3}), keys = make_keys(2);
  EXPECT_THROW(dropout(x, make_keys(3), 0, 0.1), ShapeError);
  EXPECT_THROW(dropout(x, keys.to(at::kDouble), 0, 0.1), ShapeError);
  EXPECT_THROW(dropout(x, keys, 0, 1.0), ShapeError);
  EXPECT_THROW(dropout(x, keys, -1, 0.1), ShapeError);
  EXPECT_THROW(dropout(x.to(at::kHalf), keys, 0, 0.1), ShapeError);
  EXPECT_THROW(dropout(at::ones({}), keys, 0, 0.1), ShapeError);
  EXPECT_THROW(dropout(x, keys.to(at::kMeta), 0, 0.1), ShapeError);
  EXPECT_THROW(dropout(x.to(at::kMeta), keys, 0, 0.1), ShapeError);
  const at::Tensor meta = at::empty({2, 3}, at::TensorOptions(at::kMeta)).set_requires_grad(true);
  const at::Tensor y = dropout(meta, keys.to(at::kMeta), 0, 0.1);
  EXPECT_EQ(y.sizes(), meta.sizes());
  y.sum().backward();
  EXPECT_EQ(meta.grad().sizes(), meta.sizes());
}

TEST(DropoutGpu, EqualsTheCpuBitForBit) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const std::vector<std::vector<int64_t>> shapes{
      {1},       {5},       {3, 1},      {2, 7},        {3, 8}, {5, 13, 3}, {4, 50, 64},
      {1, 8192}, {7, 2049}, {300, 2, 3}, {2, 41, 1536}, {0, 4}, {2, 0, 4}};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto& shape : shapes) {
      for (const double p : {0.0, 0.2, 0.9}) {
        const at::Tensor keys = make_keys(shape[0]), on_gpu = keys.to(at::kCUDA);
        const at::Tensor mask = dropout_mask(on_gpu, 6, shape, p, type);
        EXPECT_TRUE(same_bits(mask, dropout_mask(keys, 6, shape, p, type))) << shape << p;
        EXPECT_TRUE(same_bits(mask, dropout_mask(on_gpu, 6, shape, p, type))) << shape << p;
        const at::Tensor x = random(shape, type), dy = random(shape, type);
        for (const bool shifted : {false, true}) {
          std::vector<at::Tensor> results[2];
          for (const at::Device device : cpu_and_gpu()) {
            at::Tensor leaf = leaf_on(x, device);
            at::Tensor gradient = dy.to(device);
            if (shifted) {
              leaf = misaligned(leaf.detach()).set_requires_grad(true);
              gradient = misaligned(gradient);
            }
            const at::Tensor y = dropout(leaf, keys.to(device), 6, p);
            y.backward(gradient);
            results[device.is_cuda()] = {y, leaf.grad()};
          }
          EXPECT_TRUE(same_bits(results[0][0], results[1][0])) << shape << p;
          EXPECT_TRUE(same_bits(results[0][1], results[1][1])) << shape << p;
        }
      }
    }
  }
}

TEST(DropoutGpu, RefusesOtherDtypesAndDevices) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Tensor keys = make_keys(2), on_gpu = keys.to(at::kCUDA), x = at::ones({2, 3});
  EXPECT_THROW(dropout_mask(on_gpu, 0, {2, 3}, 0.1, at::kDouble), ShapeError);
  EXPECT_THROW(dropout(x.to(at::kCUDA), keys, 0, 0.1), ShapeError);
  EXPECT_THROW(dropout(x, on_gpu, 0, 0.1), ShapeError);
}

TEST(DropoutGpu, ACapturedCallReadsTheKeysOfTheReplay) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const c10::Device device(c10::DeviceType::CUDA, 0);
  const at::Tensor x = random({4, 33, 40}, at::kBFloat16);
  const at::Tensor on_gpu = x.to(device);
  at::Tensor keys = make_keys(4).to(device);
  at::Tensor mask, y, dx;
  const runtime::Stream stream = runtime::Stream::make(device, false);
  const runtime::GraphPool pool(device);
  runtime::CapturedGraph graph;
  const auto step = [&] {
    mask = dropout_mask(keys, 1, x.sizes(), 0.2, at::kFloat);
    const at::Tensor leaf = on_gpu.detach().set_requires_grad(true);
    y = dropout(leaf, keys, 2, 0.2);
    y.backward(on_gpu);
    dx = leaf.grad();
  };
  {
    const runtime::StreamScope scope(stream);
    step();  // loads the kernels, as the eager step before a captured one does
  }
  graph.capture(stream, pool, step);
  for (const uint64_t seed : {11u, 12u, 11u}) {
    const at::Tensor now = make_keys(4, seed);
    const runtime::StreamScope scope(stream);
    keys.copy_(now);
    graph.replay();
    stream.synchronize();
    EXPECT_TRUE(same_bits(mask, dropout_mask(now, 1, x.sizes(), 0.2, at::kFloat)));
    EXPECT_TRUE(same_bits(y, dropout(x, now, 2, 0.2)));
    EXPECT_TRUE(same_bits(dx, dropout(x, now, 2, 0.2)));
  }
}

}  // namespace
}  // namespace longship::ops
