#include "runtime/profiler.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>

#ifdef LS_CUDA_ENABLED
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "runtime/device.h"
#include "runtime/trace_summary.h"
#include "support/paths.h"

namespace longship::runtime {
namespace {

int64_t count_named(const nlohmann::json& trace, const std::string& name) {
  int64_t count = 0;
  for (const auto& event : trace.at("traceEvents"))
    count += event.value("name", "") == name && event.value("ph", "") == "X" ? 1 : 0;
  return count;
}

TEST(Profiler, HostOperatorsAreRecordedWithoutADevice) {
  const at::Tensor x = at::randn({16, 16});
  Profiler profiler;
  profiler.start();
  profiler.mark_step();
  at::Tensor y = at::relu(at::matmul(x, x));
  profiler.mark_step();
  const DeviceTrace trace = profiler.stop();
  EXPECT_GE(trace.num_host_events, 2);
  EXPECT_TRUE(cuda_available() || trace.events.empty());
  ASSERT_EQ(trace.boundaries_ns.size(), 2u);
  EXPECT_LT(trace.boundaries_ns[0], trace.boundaries_ns[1]);

  const auto path = testing::scratch_dir("profiler_host") / "deep" / "trace.json";
  profiler.save_trace(path);
  const nlohmann::json json = parse_json_file(path);
  EXPECT_EQ(count_named(json, "aten::relu"), 1);
  EXPECT_EQ(count_named(json, "aten::matmul"), 1);
  // Nothing else is left beside it.
  int64_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path.parent_path()))
    ++files;
  EXPECT_EQ(files, 1);
}

TEST(Profiler, RecordsAgainAndOnlyWhileRunning) {
  const at::Tensor x = at::randn({4});
  const auto folder = testing::scratch_dir("profiler_again");
  Profiler profiler;
  at::relu(x);
  for (const char* name : {"first.json", "second.json"}) {
    profiler.start();
    at::relu(x);
    profiler.stop();
    at::relu(x);
    profiler.save_trace(folder / name);
    EXPECT_EQ(count_named(parse_json_file(folder / name), "aten::relu"), 1) << name;
  }
}

TEST(Profiler, MisuseIsNamed) {
  Profiler profiler;
  EXPECT_THROW(profiler.stop(), InternalError);
  EXPECT_THROW(profiler.save_trace("x.json"), InternalError);
  profiler.start();
  EXPECT_THROW(profiler.start(), InternalError);
  profiler.stop();
  const auto folder = testing::scratch_dir("profiler_misuse");
  // A folder stands where the file should go.
  std::filesystem::create_directories(folder / "taken" / "inside");
  EXPECT_THROW(profiler.save_trace(folder / "taken"), Error);
}

TEST(Profiler, DestructorEndsARecording) {
  { Profiler().start(); }
  Profiler profiler;
  profiler.start();
  EXPECT_NO_THROW(profiler.stop());
}

#ifdef LS_CUDA_ENABLED
TEST(ProfilerGpu, SeesKernelsInsideGraphReplays) {
  if (!cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  Profiler::prepare_for_graphs();
  const at::Tensor x = at::randn({1024, 1024}, at::TensorOptions().device(at::kCUDA));
  const auto work = [&x] { return at::relu(at::matmul(x, x)); };
  at::cuda::CUDAGraph graph;
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    work();
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    work();
    graph.capture_end();
    c10::cuda::device_synchronize();
  }
  graph.replay();
  Profiler profiler;
  profiler.start();
  constexpr int kSteps = 3;
  for (int i = 0; i < kSteps; ++i) {
    profiler.mark_step();
    graph.replay();
  }
  profiler.mark_step();
  const DeviceTrace trace = profiler.stop();
  ASSERT_EQ(trace.boundaries_ns.size(), kSteps + 1u);
  const TraceSummary s = summarise_trace(trace.events, trace.boundaries_ns);
  EXPECT_GE(s.kernels, 2);
  EXPECT_DOUBLE_EQ(s.host_launches, 1);
  EXPECT_GT(s.categories[static_cast<size_t>(KernelCategory::kGemm)].ms_per_step, 0);
  EXPECT_EQ(s.events_outside, 0);
  for (const DeviceEvent& event : trace.events) EXPECT_TRUE(event.from_graph) << event.name;
  const auto path = testing::scratch_dir("profiler_graph") / "trace.json";
  profiler.save_trace(path);
  EXPECT_GT(parse_json_file(path).at("traceEvents").size(), 6u);
}
#endif

}  // namespace
}  // namespace longship::runtime
