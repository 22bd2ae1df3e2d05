#include "runtime/speed_of_light.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace longship::runtime {
namespace {

TEST(SpeedOfLight, DevicesAreFoundByTheirName) {
  ASSERT_TRUE(device_ceilings("NVIDIA H200").has_value());
  EXPECT_DOUBLE_EQ(device_ceilings("NVIDIA H200")->bf16_tflops, 989.5);
  EXPECT_DOUBLE_EQ(device_ceilings("NVIDIA H200")->fp8_tflops, 1979.0);
  EXPECT_DOUBLE_EQ(device_ceilings("NVIDIA GH200 480GB")->memory_tb_s, 4.0);
  EXPECT_DOUBLE_EQ(device_ceilings("NVIDIA H100 80GB HBM3")->bf16_tflops, 989.5);
  EXPECT_DOUBLE_EQ(device_ceilings("NVIDIA H100 PCIe")->bf16_tflops, 756.0);
  EXPECT_FALSE(device_ceilings("Some other card").has_value());
}

TEST(SpeedOfLight, UtilisationIsWorkOverPeak) {
  // 10 TFLOP a sample, 50 samples a second, 1000 TFLOP/s: half of the peak.
  EXPECT_DOUBLE_EQ(flops_utilisation(10e12, 50, 1000), 0.5);
  EXPECT_EQ(flops_utilisation(10e12, 50, 0), 0.0);
  const Utilisation u = utilisation(20e12, 10e12, 50, 1000);
  EXPECT_DOUBLE_EQ(u.reference_mfu, 1.0);
  EXPECT_DOUBLE_EQ(u.hardware_mfu, 0.5);
  EXPECT_DOUBLE_EQ(u.executed_tflops, 500);
}

TEST(SpeedOfLight, PercentilesInterpolate) {
  // NumPy: percentile([4, 1, 3, 2], [10, 50, 90]) = 1.3, 2.5, 3.7
  const Percentiles p = percentiles({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(p.p10, 1.3);
  EXPECT_DOUBLE_EQ(p.median, 2.5);
  EXPECT_DOUBLE_EQ(p.p90, 3.7);
  EXPECT_EQ(p.min, 1);
  EXPECT_EQ(p.max, 4);
  EXPECT_EQ(p.mean, 2.5);
  EXPECT_EQ(p.count, 4);
  EXPECT_DOUBLE_EQ(percentile({5}, 0.9), 5);
  EXPECT_DOUBLE_EQ(percentile({3, 1}, 1.0), 3);
  EXPECT_DOUBLE_EQ(percentile({3, 1}, 0.0), 1);
  EXPECT_EQ(percentiles({}).count, 0);
  EXPECT_THROW(percentile({}, 0.5), InternalError);
}

TEST(SpeedOfLight, ReportsKeepSixDigits) {
  EXPECT_EQ(rounded(1.23456789), 1.23457);
  EXPECT_EQ(rounded(123456789.0), 123457000.0);
  EXPECT_EQ(percentiles_json(percentiles({1.0 / 3}))["median"], 0.333333);
}

}  // namespace
}  // namespace longship::runtime
