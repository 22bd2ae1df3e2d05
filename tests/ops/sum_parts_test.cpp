#include "ops/sum_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "op_support.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support

struct Types {
  at::ScalarType part, sum;
};
constexpr Types kTypes[] = {
    {at::kFloat, at::kFloat}, {at::kBFloat16, at::kBFloat16}, {at::kBFloat16, at::kFloat}};

// In the order of the parts, as numbers one by one.
TEST(SumParts, AddsInOrder) {
  for (const auto& [type, sum_type] : kTypes) {
    for (const int64_t num_parts : {1, 2, 3, 8}) {
      std::vector<at::Tensor> parts;
      for (int64_t p = 0; p < num_parts; ++p) parts.push_back(random({29}, type));
      const at::Tensor out = at::empty({29}, sum_type);
      const auto divisor = static_cast<float>(num_parts);
      sum_parts(out, parts, divisor, 4);
      const at::Tensor values = out.to(at::kFloat);
      for (int64_t i = 0; i < 29; ++i) {
        float sum = 0;
        for (int64_t p = 0; p < num_parts; ++p) {
          const float value = parts[static_cast<size_t>(p)][i].item<float>() / divisor;
          sum = p == 0 ? value : sum + value;
        }
        const float expected = at::empty({1}, sum_type).fill_(sum).item<float>();
        EXPECT_EQ(values[i].item<float>(), expected) << num_parts << " " << i;
      }
    }
  }
}

TEST(SumParts, RefusesWhatDoesNotFit) {
  const at::Tensor a = at::empty({8}), b = at::empty({9});
  EXPECT_THROW(sum_parts(a, {}, 1, 1), ShapeError);
  EXPECT_THROW(sum_parts(a, {a, b}, 1, 1), ShapeError);
  EXPECT_THROW(sum_parts(a.to(at::kBFloat16), {a}, 1, 1), ShapeError);
  EXPECT_THROW(sum_parts(a, {a, a.to(at::kBFloat16)}, 1, 1), ShapeError);
  EXPECT_THROW(sum_parts(a, {a}, 0, 1), ShapeError);
  EXPECT_THROW(sum_parts(a, std::vector<at::Tensor>(9, a), 1, 1), ShapeError);
  EXPECT_THROW(sum_parts(at::empty({4, 2}).t(), {a}, 1, 1), ShapeError);
}

TEST(SumPartsGpu, SameBitsAsTheOracle) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  for (const auto& [type, sum_type] : kTypes) {
    for (const int64_t num_parts : {1, 2, 3, 4, 5, 6, 7, 8}) {
      for (const int64_t count : {1, 7, 8, 1000, 123457, 1 << 20}) {
        for (const int64_t offset : {0, 3, 8}) {
          std::vector<at::Tensor> parts, on_device;
          for (int64_t p = 0; p < num_parts; ++p) {
            parts.push_back(random({count + offset}, type).narrow(0, offset, count));
            on_device.push_back(random({count + offset}, type, at::kCUDA).narrow(0, offset, count));
            on_device.back().copy_(parts.back());
          }
          for (const double divisor : {1.0, static_cast<double>(num_parts)}) {
            const at::Tensor expected = at::empty({count}, sum_type);
            sum_parts(expected, parts, divisor, 1);
            const at::Tensor out = at::empty({count}, expected.options().device(at::kCUDA));
            sum_parts(out, on_device, divisor, 24);
            EXPECT_TRUE(same_bits(out.cpu(), expected))
                << num_parts << " parts of " << count << " at " << offset << " over " << divisor;
          }
        }
      }
    }
  }
}

TEST(SumPartsGpu, IntoOneOfThem) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  const at::Tensor a = random({300001}, at::kFloat), b = random({300001}, at::kFloat);
  const at::Tensor out = b.to(at::kCUDA);
  sum_parts(out, {a.to(at::kCUDA), out}, 2, 3);
  EXPECT_TRUE(same_bits(out.cpu(), a / 2 + b / 2));
}

}  // namespace
}  // namespace longship::ops
