// Captured graphs and the memory that they share.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <memory>

#include "runtime/device.h"
#include "runtime/stream.h"

namespace longship::runtime {
namespace {

TEST(GraphPoolGpu, CanBeCapturedIntoAfterItsLastGraphIsGone) {
  if (!cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const c10::Device device(c10::DeviceType::CUDA, 0);
  const Stream stream = Stream::make(device, false);
  const GraphPool pool(device);
  at::Tensor sum = at::ones({4}, at::TensorOptions().device(device));
  for (int round = 0; round < 3; ++round) {
    auto graph = std::make_unique<CapturedGraph>();
    graph->capture(stream, pool, [&] { sum.add_(at::ones({4}, sum.options())); });
    const StreamScope scope(stream);
    graph->replay();
    graph->replay();
    stream.synchronize();
  }
  EXPECT_EQ(sum.cpu()[0].item<float>(), 7.0f);
}

}  // namespace
}  // namespace longship::runtime
