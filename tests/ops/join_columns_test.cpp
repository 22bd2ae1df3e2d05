#include "ops/join_columns.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "op_support.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support

TEST(JoinColumns, PartsSideBySideAndTheirSums) {
  const at::Tensor a = random({5, 3}, at::kDouble), b = random({5, 8}, at::kDouble);
  const JoinedColumns joined = join_columns({a, b}, true);
  EXPECT_TRUE(joined.values.equal(at::cat({a, b}, 1)));
  EXPECT_TRUE(at::allclose(joined.sums, at::cat({a, b}, 1).sum(0)));
  EXPECT_FALSE(join_columns({a, b}, false).sums.defined());
  const JoinedColumns one = join_columns({a}, true);
  EXPECT_EQ(one.values.data_ptr(), a.data_ptr()) << "a part alone is not copied";
  EXPECT_TRUE(at::allclose(one.sums, a.sum(0)));
}

TEST(JoinColumns, RefusesWhatDoesNotFit) {
  const at::Tensor a = random({5, 3}, at::kFloat);
  EXPECT_THROW(join_columns({}, true), ShapeError);
  EXPECT_THROW(join_columns({a, random({4, 3}, at::kFloat)}, true), ShapeError);
  EXPECT_THROW(join_columns({a, random({5, 3}, at::kBFloat16)}, true), ShapeError);
  EXPECT_THROW(join_columns({a, random({5}, at::kFloat)}, true), ShapeError);
}

// Rows of one launch, of several groups, of strided parts, and what the kernel does not take.
TEST(JoinColumnsGpu, SameAsTheLibrary) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t rows : {0, 1, 63, 164, 1024, 1025, 4592}) {
      for (const std::vector<int64_t>& widths :
           std::vector<std::vector<int64_t>>{{32}, {40, 8}, {1536, 1536, 1536}, {13, 24}}) {
        for (const bool strided : {false, true}) {
          std::vector<at::Tensor> parts;
          for (const int64_t width : widths) {
            at::Tensor part = random({rows, strided ? width + 16 : width}, type, at::kCUDA);
            parts.push_back(strided ? part.narrow(1, 8, width) : part);
          }
          const at::Tensor values = at::cat(parts, 1);
          const JoinedColumns joined = join_columns(parts, true);
          EXPECT_TRUE(joined.values.equal(values));
          const at::Tensor exact = values.to(at::kDouble).sum(0);
          const double tolerance = type == at::kFloat ? 1e-4 : 1e-2;
          EXPECT_TRUE(at::allclose(joined.sums.to(at::kDouble), exact, tolerance,
                                   tolerance * static_cast<double>(rows + 1) / 64))
              << rows << " rows, " << widths.size() << " parts, strided " << strided;
          EXPECT_TRUE(join_columns(parts, true).sums.equal(joined.sums)) << "not deterministic";
        }
      }
    }
  }
}

}  // namespace
}  // namespace longship::ops
