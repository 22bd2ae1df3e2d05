// Everything that can go wrong between processes: one message, the right exit code, in time.
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "ranks.h"
#include "support/paths.h"

namespace longship::dist {
namespace {

using ::testing::HasSubstr;

constexpr int kConfig = static_cast<int>(ExitCode::kConfig);
constexpr int kPeer = static_cast<int>(ExitCode::kPeer);
// Forks and library start-up on a busy machine.
constexpr double kSlack = 15;

TEST(SetUp, RanksThatDifferAllEndWithOneMessage) {
  const auto ranks = run_world(3, [](const LaunchInfo& launch) {
    GroupOptions options = test_options(launch);
    if (launch.rank == 2) options.facts[1].second = "cccc";
    if (launch.rank > 0) options.facts[2].second = "dddd";
    ProcessGroup::connect(options);
    return std::string();
  });
  for (const RankResult& rank : ranks) {
    EXPECT_EQ(rank.exit_code, kConfig);
    EXPECT_EQ(rank.text, ranks[0].text);
    EXPECT_LT(rank.seconds, kSlack);
  }
  EXPECT_THAT(ranks[0].text, HasSubstr("recipe: ranks 0-1"));
  EXPECT_THAT(ranks[0].text, HasSubstr("have 'aaaa', rank 2"));
  EXPECT_THAT(ranks[0].text, HasSubstr("has 'cccc'"));
  EXPECT_THAT(ranks[0].text, HasSubstr("datasets: rank 0"));
  EXPECT_THAT(ranks[0].text, HasSubstr("ranks 1-2"));
  EXPECT_EQ(ranks[0].text.find("version"), std::string::npos);
}

TEST(SetUp, NumberOfRanksDiffers) {
  const auto ranks = run_world(2, [](const LaunchInfo& launch) {
    GroupOptions options = test_options(launch);
    if (launch.rank == 1) options.launch.world_size = 3;
    ProcessGroup::connect(options);
    return std::string();
  });
  for (const RankResult& rank : ranks) {
    EXPECT_EQ(rank.exit_code, kConfig);
    EXPECT_THAT(rank.text, HasSubstr("number of ranks: rank 0"));
    EXPECT_THAT(rank.text, HasSubstr("has '3'"));
  }
}

TEST(SetUp, MissingRanksAreNamed) {
  const auto ranks = run_ranks({0, 2}, 5, [](const LaunchInfo& launch) {
    GroupOptions options = test_options(launch);
    options.setup_timeout_s = 2;
    options.launch.note = "was it srun?";
    ProcessGroup::connect(options);
    return std::string();
  });
  for (const RankResult& rank : ranks) {
    EXPECT_EQ(rank.exit_code, kPeer);
    EXPECT_EQ(rank.text, "ranks 1, 3-4 of 5 did not come within 2 s; was it srun?");
    EXPECT_LT(rank.seconds, 2 + kSlack);
  }
}

TEST(SetUp, MissingFirstRank) {
  const auto ranks = run_ranks({1}, 2, [](const LaunchInfo& launch) {
    GroupOptions options = test_options(launch);
    options.setup_timeout_s = 2;
    ProcessGroup::connect(options);
    return std::string();
  });
  EXPECT_EQ(ranks[0].exit_code, kPeer);
  EXPECT_THAT(ranks[0].text, HasSubstr("rank 1: the store of rank 0 at 127.0.0.1:"));
  EXPECT_THAT(ranks[0].text, HasSubstr("within 2 s"));
  EXPECT_LT(ranks[0].seconds, 2 + kSlack);
}

TEST(SetUp, TwoProcessesAreTheSameRank) {
  const auto ranks = run_ranks({0, 1, 1}, 3, [](const LaunchInfo& launch) {
    ProcessGroup::connect(test_options(launch));
    return std::string();
  });
  for (const RankResult& rank : ranks) {
    EXPECT_EQ(rank.exit_code, kConfig) << rank.text;
    EXPECT_THAT(rank.text, HasSubstr("two processes are rank 1"));
    EXPECT_LT(rank.seconds, kSlack);
  }
}

// Somebody else's socket on the port, which takes connections and never answers.
TEST(SetUp, PortInUse) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 16), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const uint16_t port = ntohs(address.sin_port);
  const auto ranks = run_ranks(
      {0, 1}, 2,
      [](const LaunchInfo& launch) {
        GroupOptions options = test_options(launch);
        options.setup_timeout_s = 2;
        ProcessGroup::connect(options);
        return std::string();
      },
      60, port);
  close(fd);
  EXPECT_EQ(ranks[0].exit_code, kPeer);
  EXPECT_THAT(ranks[0].text,
              HasSubstr("rank 0: port " + std::to_string(port) + " (MASTER_PORT) is in use"));
  EXPECT_EQ(ranks[1].exit_code, kPeer);
  EXPECT_THAT(ranks[1].text, HasSubstr(std::to_string(port)));
  EXPECT_LT(ranks[1].seconds, 2 + 5 + kSlack);
}

// What is shared by the tests of a running group: `fault` runs on rank 1 in step 5.
std::vector<RankResult> run_with_fault(const std::function<void(ProcessGroup&)>& fault,
                                       double collective_timeout_s,
                                       const std::filesystem::path& folder) {
  return run_world(3, [&](const LaunchInfo& launch) {
    GroupOptions options = test_options(launch);
    options.collective_timeout_s = collective_timeout_s;
    options.flight_folder = folder;
    const auto group = ProcessGroup::connect(options);
    at::Tensor t = at::zeros({1000}, at::kFloat);
    for (int64_t step = 0; step < 10; ++step) {
      group->world().set_step(step);
      if (step == 5 && launch.rank == 1) fault(*group);
      group->world().all_reduce(t, ReduceOp::kMean, "grad", "bucket 2").wait();
    }
    return std::string("no fault was noticed");
  });
}

TEST(Faults, ADeadRankIsNamedAtOnce) {
  const auto folder = testing::scratch_dir("dead_rank");
  const auto ranks = run_with_fault(
      [](ProcessGroup&) {
        // The step before is over on every rank.
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        _exit(9);
      },
      40, folder);
  EXPECT_EQ(ranks[1].exit_code, 9);
  for (const int r : {0, 2}) {
    const RankResult& rank = ranks[static_cast<size_t>(r)];
    EXPECT_EQ(rank.exit_code, kPeer) << rank.text;
    EXPECT_THAT(rank.text,
                HasSubstr("rank " + std::to_string(r) + ": all_reduce 'grad bucket 2' of step 5"));
    EXPECT_THAT(rank.text, HasSubstr("from rank 1: dead"));
    EXPECT_LT(rank.seconds, kSlack);
    std::ifstream file(folder / ("flight_world_rank" + std::to_string(r) + ".json"));
    const auto record = nlohmann::json::parse(file);
    EXPECT_EQ(record["entries"].back()["state"], "failed");
    EXPECT_EQ(record["entries"].back()["step"], 5);
    EXPECT_EQ(record["entries"].size(), 6u);
  }
}

TEST(Faults, AHangingRankEndsTheOthersInTime) {
  const auto ranks = run_with_fault(
      [](ProcessGroup&) { std::this_thread::sleep_for(std::chrono::seconds(8)); }, 2, "");
  for (const int r : {0, 2}) {
    const RankResult& rank = ranks[static_cast<size_t>(r)];
    EXPECT_EQ(rank.exit_code, kPeer) << rank.text;
    EXPECT_THAT(rank.text, HasSubstr("of step 5"));
    // The first to give up closes its connections, so the other may see that instead.
    EXPECT_THAT(rank.text, HasSubstr("from rank 1: dead, hanging or still busy"));
  }
  // Comes back to find everybody gone.
  EXPECT_EQ(ranks[1].exit_code, kPeer) << ranks[1].text;
}

TEST(Faults, TheReasonOfALeavingRankReachesItsPeers) {
  const auto ranks = run_with_fault(
      [](ProcessGroup& group) {
        group.report_failure("the loss is nan (samples 4, 9)");
        throw NonFiniteError("the loss is nan (samples 4, 9)");
      },
      40, "");
  EXPECT_EQ(ranks[1].exit_code, static_cast<int>(ExitCode::kNonFinite));
  for (const int r : {0, 2}) {
    const RankResult& rank = ranks[static_cast<size_t>(r)];
    EXPECT_EQ(rank.exit_code, kPeer);
    EXPECT_THAT(rank.text, HasSubstr("rank 1 reported: the loss is nan (samples 4, 9)"));
  }
}

// The store goes with rank 0, but not before the peers have read it.
TEST(Faults, TheReasonOfTheFirstRankToo) {
  const auto ranks = run_world(3, [](const LaunchInfo& launch) {
    const auto group = ProcessGroup::connect(test_options(launch));
    at::Tensor t = at::zeros({1000}, at::kFloat);
    group->world().all_reduce(t, ReduceOp::kMean, "grad").wait();
    if (launch.rank == 0) {
      group->report_failure("data/x.parquet: row 3 is NaN");
      throw DataError("data/x.parquet: row 3 is NaN");
    }
    group->world().all_reduce(t, ReduceOp::kMean, "grad").wait();
    return std::string("no fault was noticed");
  });
  EXPECT_EQ(ranks[0].exit_code, static_cast<int>(ExitCode::kData));
  for (const int r : {1, 2}) {
    const RankResult& rank = ranks[static_cast<size_t>(r)];
    EXPECT_EQ(rank.exit_code, kPeer) << rank.text;
    EXPECT_THAT(rank.text, HasSubstr("rank 0 reported: data/x.parquet: row 3 is NaN"));
    EXPECT_LT(rank.seconds, kSlack);
  }
}

TEST(Faults, TheRankWithTheStoreDies) {
  const auto ranks = run_world(3, [](const LaunchInfo& launch) {
    const auto group = ProcessGroup::connect(test_options(launch));
    group->world().set_step(4);
    group->world().barrier("begin");
    if (launch.rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      _exit(9);
    }
    at::Tensor t = at::zeros({1000}, at::kFloat);
    group->world().all_reduce(t, ReduceOp::kMean, "grad").wait();
    return std::string("no fault was noticed");
  });
  for (const int r : {1, 2}) {
    const RankResult& rank = ranks[static_cast<size_t>(r)];
    EXPECT_EQ(rank.exit_code, kPeer) << rank.text;
    EXPECT_THAT(rank.text, HasSubstr("rank 0, which holds the store, has ended"));
    EXPECT_LT(rank.seconds, kSlack);
  }
}

}  // namespace
}  // namespace longship::dist
