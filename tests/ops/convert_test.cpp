#include "ops/convert.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "op_support.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support

// All pairs of types against the library, at sizes and offsets that allow wide accesses and that do
// not.
void expect_like_the_library(at::Device device) {
  for (const auto& [to, from] : {std::pair{at::kFloat, at::kBFloat16},
                                 {at::kFloat, at::kFloat},
                                 {at::kBFloat16, at::kBFloat16},
                                 {at::kBFloat16, at::kFloat}}) {
    for (const int64_t count : {1, 7, 8, 1000, 8192, 123457}) {
      for (const int64_t offset : {0, 3, 8}) {
        const at::Tensor source =
            random({count + offset}, from).to(device).narrow(0, offset, count);
        const at::Tensor whole = random({count + offset + 5}, to).to(device);
        at::Tensor expected = whole.clone();
        expected.narrow(0, offset, count).copy_(source);
        convert_into(whole.narrow(0, offset, count), source, false);
        EXPECT_TRUE(same_bits(whole, expected)) << count << " " << offset;
        expected.narrow(0, offset, count).add_(source);
        convert_into(whole.narrow(0, offset, count), source, true);
        EXPECT_TRUE(same_bits(whole, expected)) << count << " " << offset;
      }
    }
  }
}

TEST(ConvertInto, LikeTheLibrary) {
  expect_like_the_library(at::kCPU);
}

TEST(ConvertInto, TakesAnyLayoutOfTheSameShape) {
  for (const bool add : {false, true}) {
    const at::Tensor source = random({5, 7}, at::kBFloat16).t();
    const at::Tensor target = random({7, 5}, at::kFloat);
    const at::Tensor expected = add ? target + source.to(at::kFloat) : source.to(at::kFloat);
    convert_into(target, source, add);
    EXPECT_TRUE(same_bits(target, expected.contiguous()));
  }
}

TEST(ConvertInto, RefusesWhatDoesNotFit) {
  const at::Tensor a = at::empty({8}), b = at::empty({9});
  EXPECT_THROW(convert_into(a, b, false), ShapeError);
  EXPECT_THROW(convert_into(a, a.to(at::kDouble), false), ShapeError);
  EXPECT_THROW(convert_into(at::empty({4, 2}).t(), a, false), ShapeError);
}

TEST(ConvertIntoGpu, LikeTheLibrary) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  expect_like_the_library(at::kCUDA);
}

}  // namespace
}  // namespace longship::ops
