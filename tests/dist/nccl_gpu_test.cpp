// The same collectives over CUDA tensors. Needs two devices; the children look for them, because a
// process that has used CUDA cannot fork.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "dist/device_clock.h"
#include "dist/store.h"
#include "ranks.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace longship::dist {
namespace {

void require(bool condition, const std::string& what) {
  LS_CHECK(condition, InternalError, "{}", what);
}

bool two_devices() {
  try {
    runtime::parse_device("cuda:1");
    return true;
  } catch (const DeviceError&) {
    return false;
  }
}

TEST(NcclGpu, CollectivesOfTwoDevices) {
  const auto ranks = run_world(2, [](const LaunchInfo& launch) -> std::string {
    if (!two_devices()) return "skip";
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(launch.rank));
    const c10::DeviceGuard guard(device);
    GroupOptions options = test_options(launch);
    options.cuda = true;
    const auto group = ProcessGroup::connect(options);
    Communicator& c = group->world();
    const double r = static_cast<double>(launch.rank);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto on = at::TensorOptions().device(device).dtype(dtype);
      at::Tensor t = at::full({1001}, 2 * r, on);
      c.all_reduce(t, ReduceOp::kMean, "grad").wait();
      require(at::equal(t, at::full({1001}, 1.0, on)), "mean");
      at::Tensor part = at::zeros({64}, on);
      c.reduce_scatter(part, at::full({128}, 2 * r, on), ReduceOp::kMean, "grad").wait();
      require(at::equal(part, at::full({64}, 1.0, on)), "reduce_scatter");
      at::Tensor all = at::zeros({128}, on);
      all.narrow(0, 64 * launch.rank, 64).fill_(r + 1);
      c.all_gather(all, all.narrow(0, 64 * launch.rank, 64), "params").wait();
      require(all.narrow(0, 0, 64).eq(1).all().item<bool>() &&
                  all.narrow(0, 64, 64).eq(2).all().item<bool>(),
              "all_gather in place");
    }
    require(c.sum({r}, "scalar").front() == 1, "scalar");
    group->close();
    return "done";
  });
  if (ranks[0].text == "skip") GTEST_SKIP() << "needs two CUDA devices";
  for (const RankResult& rank : ranks) EXPECT_EQ(rank.text, "done");
}

// One device is enough: a group of one over NCCL still launches its collectives.
TEST(DeviceClockGpu, TimesStepsEagerAndReplayed) {
  const auto ranks = run_world(1, [](const LaunchInfo&) -> std::string {
    if (!runtime::cuda_available()) return "skip";
    const at::Device device(at::kCUDA, 0);
    const c10::DeviceGuard guard(device);
    StoreAddress address{"127.0.0.1", free_port(), true, "clock"};
    const auto store = open_store(address);
    BackendOptions backend;
    backend.group = "clock";
    backend.master_host = address.host;
    backend.master_port = address.port;
    Communicator c(make_nccl_transport(*store, backend));
    c.time_on(device);
    const auto stream = runtime::Stream::make(device);
    runtime::GraphPool pool(device);
    const runtime::StreamScope scope(stream);
    const at::Tensor x = at::full({1 << 24}, 1.0, at::TensorOptions(at::kFloat).device(device));
    const at::Tensor y = at::full({1}, 1.0, x.options());
    TimedStep step;
    const auto work = [&] {
      c.clock()->begin();
      Handle grad = c.all_reduce(x, ReduceOp::kSum, "grad");
      Handle norm = c.all_reduce(y, ReduceOp::kSum, "norm");
      {
        const WaitTime together(c);
        grad.wait();
        norm.wait();
      }
      step = c.clock()->end();
    };
    const auto check = [&](const char* what) {
      const StepTimes times = DeviceClock::read(step, c.clock()->stamps().cpu());
      require(times.collectives.size() == 2, std::string(what) + ": two collectives");
      for (const auto& [name, ms] : times.collectives) {
        require(ms >= 0 && ms < 1000, what + (" " + name) + fmt::format(": {} ms", ms));
      }
      require(times.waited > 0 && times.waited < 1000, std::string(what) + ": waited");
      c.add_times(times);
    };
    work();
    stream.synchronize();
    check("eager");
    runtime::CapturedGraph graph;
    graph.capture(stream, pool, work);
    for (int i = 0; i < 3; ++i) {
      c.clock()->stamps().zero_();
      graph.replay();
      stream.synchronize();
      check("replayed");
    }
    require(c.counters()["grad"].elapsed_ms > 0, "counted");
    return "done";
  });
  if (ranks[0].text == "skip") GTEST_SKIP() << "no CUDA device";
  EXPECT_EQ(ranks[0].text, "done");
}

}  // namespace
}  // namespace longship::dist
