#include "ops/stamp.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/error.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

void expect_ascending(at::Device device) {
  const at::Tensor stamps = at::zeros({3}, at::TensorOptions(at::kLong).device(device));
  stamp_time(stamps, 0);
  runtime::synchronize(device);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  stamp_time(stamps, 1);
  stamp_time(stamps, 2);
  const at::Tensor host = stamps.cpu();
  const int64_t* at = host.const_data_ptr<int64_t>();
  EXPECT_GT(at[0], 0);
  EXPECT_GE(at[1] - at[0], 20'000'000);
  EXPECT_LT(at[1] - at[0], 5'000'000'000);
  EXPECT_GE(at[2], at[1]);
}

TEST(StampTime, Ascends) {
  expect_ascending(at::kCPU);
  const at::Tensor stamps = at::zeros({3}, at::kLong);
  EXPECT_THROW(stamp_time(stamps, 3), ShapeError);
  EXPECT_THROW(stamp_time(at::empty({3}), 0), ShapeError);
}

TEST(StampTimeGpu, Ascends) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device";
  expect_ascending(at::Device(at::kCUDA, 0));
}

}  // namespace
}  // namespace longship::ops
