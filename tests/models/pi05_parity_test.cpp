// The golden cases through the library.
#include <gtest/gtest.h>

#include "models/tiny_case.h"
#include "support/paths.h"

namespace longship::models {
namespace {

class Pi05Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(Pi05Golden, EveryRowPasses) {
  const ParityReport report =
      run_parity_case(longship::testing::golden_path(GetParam()), {}, testing::plain_optimizer);
  EXPECT_TRUE(report.pass()) << format_report(report);
  int64_t grads = 0, norms = 0, weights = 0, samples = 0;
  for (const ParityRow& row : report.rows) {
    grads += row.kind == "grad";
    samples += row.kind == "sample";
    weights += row.name.starts_with("train.safetensors:after20.");
    if (row.kind != "train" || !row.name.ends_with(" grad_norm")) continue;
    ++norms;
    EXPECT_LE(row.tolerance, 2e-3) << row.name;  // rounding widens it no further
  }
  EXPECT_GT(grads, 100);
  EXPECT_GE(norms, 20);
  EXPECT_GE(weights, 40);
  EXPECT_GE(samples, 8);
}

INSTANTIATE_TEST_SUITE_P(All, Pi05Golden,
                         ::testing::Values("pi05/tiny_train", "pi05/tiny_two_cameras",
                                           "pi05/pi0_tiny"));

TEST(Pi05GoldenBf16, StaysWithinTheDocumentedBounds) {
  ParityOptions options;
  options.dtype = at::kBFloat16;
  const ParityReport report = run_parity_case(longship::testing::golden_path("pi05/tiny_train"),
                                              options, testing::plain_optimizer);
  for (const ParityRow& row : report.rows) {
    if (row.kind != "train") {
      EXPECT_TRUE(row.pass) << row.name << " " << row.rel_error;
    }
  }
}

}  // namespace
}  // namespace longship::models
