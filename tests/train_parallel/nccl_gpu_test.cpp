// Two GPUs over NCCL: eager steps, captured ones, and one GPU. The children look for devices,
// because a process that has used CUDA cannot fork.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "../dist/ranks.h"
#include "base/error.h"
#include "bounds.h"
#include "runs.h"
#include "runtime/device.h"
#include "support/paths.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::losses_of;
using testing::pi05_run;
using testing::worst_error;

bool two_gpus() {
  const auto ranks = dist::run_world(1, [](const dist::LaunchInfo&) -> std::string {
    return fmt::format("{}", runtime::num_cuda_devices());
  });
  return !ranks[0].text.empty() && std::stoi(ranks[0].text) >= 2;
}

class ParallelGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!two_gpus()) GTEST_SKIP() << "needs two CUDA devices";
    root_ = longship::testing::scratch_dir(
        std::string("pgpu_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override {
    if (!root_.empty()) fs::remove_all(root_);
  }
  std::vector<double> run(const std::string& name, int64_t world, std::vector<std::string> more,
                          const std::string& passes = "train.micro_batch=2") {
    more.insert(more.begin(),
                {"train.device=cuda", "train.deterministic=true", "model.parity=openpi",
                 "train.steps=12", "train.global_batch=8", passes, "checkpoint.every=6"});
    return losses_of(pi05_run(root_ / name, world, more));
  }
  fs::path root_;
};

TEST_F(ParallelGpu, TwoFollowOne) {
  for (const auto& [dtype, bound] :
       {std::pair{"fp32", kFp32LossBound}, std::pair{"bf16", kBf16LossBound}}) {
    const std::vector<std::string> base = {fmt::format("train.dtype={}", dtype),
                                           "train.tf32=false"};
    const auto one = run(fmt::format("one_{}", dtype), 1, base);
    for (const char* strategy : {"ddp", "zero1", "fsdp"}) {
      auto more = base;
      more.push_back(fmt::format("parallel.strategy={}", strategy));
      const auto two = run(fmt::format("{}_{}", strategy, dtype), 2, more);
      fmt::print("{} {}: {:.2g}\n", strategy, dtype, worst_error(two, one));
      EXPECT_LE(worst_error(two, one), bound) << strategy << " " << dtype;
    }
  }
}

// Copy engines add bf16 gradients up in fp32 as they come, NCCL what was converted before: the same
// sums. The table is large enough for lists of rows.
TEST_F(ParallelGpu, TransportsGiveTheSameBits) {
  for (const char* strategy : {"ddp", "zero1", "fsdp"}) {
    for (const char* micro : {"4", "2"}) {
      std::vector<std::vector<double>> losses;
      for (const char* transport : {"peer", "nccl"}) {
        const std::string name = fmt::format("{}_{}_{}", strategy, micro, transport);
        losses.push_back(
            run(name, 2,
                {"train.dtype=bf16", fmt::format("parallel.strategy={}", strategy),
                 "model.paligemma_config.vocab_size=3000", "train.cuda_graph=full_iteration",
                 fmt::format("parallel.transport={}", transport)},
                fmt::format("train.micro_batch={}", micro)));
      }
      EXPECT_EQ(losses[0], losses[1]) << strategy << " " << micro;
    }
  }
}

// Collectives inside graphs, and after replayed passes, change no bit.
TEST_F(ParallelGpu, GraphsRepeatEagerSteps) {
  for (const char* strategy : {"ddp", "zero1", "fsdp"}) {
    const std::vector<std::string> base = {"train.dtype=bf16",
                                           fmt::format("parallel.strategy={}", strategy)};
    const auto eager = run(fmt::format("{}_eager", strategy), 2, base);
    for (const char* mode : {"per_microbatch", "full_iteration"}) {
      if (strategy == std::string("fsdp") && mode == std::string("per_microbatch")) continue;
      auto more = base;
      more.push_back(fmt::format("train.cuda_graph={}", mode));
      const std::string name = fmt::format("{}_{}", strategy, mode);
      EXPECT_EQ(run(name, 2, more), eager) << name;
      // A replay counts its collectives like an eager step.
      std::ifstream in(root_ / name / "metrics.jsonl");
      std::ifstream plain(root_ / fmt::format("{}_eager", strategy) / "metrics.jsonl");
      for (std::string a, b; std::getline(in, a) && std::getline(plain, b);) {
        const auto captured = nlohmann::json::parse(a), one = nlohmann::json::parse(b);
        EXPECT_EQ(captured["comm_mb"], one["comm_mb"]) << a;
        EXPECT_GT(captured["comm_mb"].get<double>(), 0) << a;
        // The device's own times, inside graphs too.
        for (const auto& record : {captured, one}) {
          const double step = record["step_time_ms"].get<double>();
          EXPECT_GT(record["comm_ms"].get<double>(), 0) << a;
          EXPECT_LT(record["comm_ms"].get<double>(), step) << a;
          EXPECT_GT(record["comm_exposed_ms"].get<double>(), 0) << a;
          EXPECT_LT(record["comm_exposed_ms"].get<double>(), step) << a;
        }
      }
    }
  }
}

TEST_F(ParallelGpu, ResumeIsBitwise) {
  for (const char* mode : {"none", "full_iteration"}) {
    for (const char* strategy : {"zero1", "fsdp"}) {
      const std::vector<std::string> base = {"train.dtype=bf16",
                                             fmt::format("parallel.strategy={}", strategy),
                                             fmt::format("train.cuda_graph={}", mode)};
      const auto whole = run(fmt::format("whole_{}_{}", strategy, mode), 2, base);
      auto half = base;
      half.push_back("train.stop_after=6");
      const std::string name = fmt::format("half_{}_{}", strategy, mode);
      run(name, 2, half);
      const auto rest = run(name, 2, base);
      EXPECT_EQ(rest, std::vector<double>(whole.end() - 6, whole.end())) << name;
    }
  }
}

// The device waits for a peer that is dead; the host finds out and says so.
TEST_F(ParallelGpu, KilledRankEndsTheOther) {
  testing::RunRequest request =
      pi05_run(root_ / "run", 2,
               {"train.device=cuda", "train.dtype=bf16", "model.parity=openpi",
                "train.steps=100000", "train.global_batch=8", "train.micro_batch=2",
                "parallel.strategy=ddp", "checkpoint.every=null", "parallel.timeout_s=60"});
  request.set_up = [](int64_t rank) {
    if (rank != 1) return;
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::seconds(25));
      kill(getpid(), SIGKILL);
    }).detach();
  };
  const auto ranks = run_training(request);
  EXPECT_EQ(ranks[0].exit_code, static_cast<int>(ExitCode::kPeer)) << ranks[0].error;
  EXPECT_THAT(ranks[0].error, HasSubstr("rank 1"));
  EXPECT_LT(ranks[0].seconds, 80);
}

}  // namespace
}  // namespace longship::train
