#include "dist/communicator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "ranks.h"

namespace longship::dist {
namespace {

using ::testing::HasSubstr;

void require(bool condition, const std::string& what) {
  LS_CHECK(condition, InternalError, "{}", what);
}

void expect_all_good(const std::vector<RankResult>& ranks) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(ranks[r].exit_code, 0) << "rank " << r << ": " << ranks[r].text;
  }
}

// Values that bf16 holds exactly: sums over few ranks are exact in every dtype.
void check_values(Communicator& c, at::ScalarType dtype) {
  const int64_t w = c.world_size(), r = c.rank();
  const auto iota = [&](int64_t n, int64_t from) {
    return at::arange(from, from + n, at::kDouble).to(dtype);
  };
  const std::string name = c10::toString(dtype);
  at::Tensor t = iota(5, r);
  c.all_reduce(t, ReduceOp::kSum, "sum").wait();
  require(at::equal(t, (at::arange(0, 5, at::kDouble) * w + w * (w - 1) / 2).to(dtype)),
          name + " sum");
  t = iota(5, 10 * r);
  c.all_reduce(t, ReduceOp::kMax, "max").wait();
  require(at::equal(t, iota(5, 10 * (w - 1))), name + " max");
  t = at::full({2, 3}, static_cast<double>(r + 1), dtype);
  c.broadcast(t, w - 1, "broadcast").wait();
  require(at::equal(t, at::full({2, 3}, static_cast<double>(w), dtype)), name + " broadcast");

  at::Tensor input = iota(3 * w, r), output = at::zeros({3}, dtype);
  c.reduce_scatter(output, input, ReduceOp::kSum, "scatter").wait();
  require(at::equal(output,
                    (at::arange(3 * r, 3 * r + 3, at::kDouble) * w + w * (w - 1) / 2).to(dtype)),
          name + " reduce_scatter");
  at::Tensor all = at::zeros({3 * w}, dtype);
  all.narrow(0, 3 * r, 3).copy_(iota(3, 3 * r));
  c.all_gather(all, all.narrow(0, 3 * r, 3), "gather").wait();  // in place
  require(at::equal(all, iota(3 * w, 0)), name + " all_gather");
  if (dtype == at::kLong || dtype == at::kByte) return;
  t = at::full({7}, static_cast<double>(2 * r), dtype);
  c.all_reduce(t, ReduceOp::kMean, "mean").wait();
  require(at::equal(t, at::full({7}, static_cast<double>(w - 1), dtype)), name + " mean");
}

TEST(Communicator, ValuesAreRight) {
  for (const int64_t world : {1, 2, 3}) {
    expect_all_good(run_world(world, [](const LaunchInfo& launch) {
      const auto group = ProcessGroup::connect(test_options(launch));
      // A mean of 3 is exact: 0 + 2 + 4 over 3, each divided first, up to the last bit.
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong, at::kByte}) {
        if (launch.world_size == 3 && dtype != at::kLong && dtype != at::kByte) continue;
        check_values(group->world(), dtype);
      }
      if (launch.world_size == 3) {
        check_values(group->world(), at::kLong);
        at::Tensor t = at::full({4}, static_cast<double>(2 * launch.rank), at::kFloat);
        group->world().all_reduce(t, ReduceOp::kMean, "mean").wait();
        require((t - 2.0).abs().max().item<float>() < 1e-6f, "mean of three");
      }
      const std::vector<double> sums =
          group->world().sum({1.5, static_cast<double>(launch.rank)}, "scalars");
      const double w = static_cast<double>(launch.world_size);
      require(sums[0] == 1.5 * w && sums[1] == w * (w - 1) / 2, "scalars");
      group->close();
      return std::string();
    }));
  }
}

TEST(Communicator, SubgroupsOfFourRanks) {
  expect_all_good(run_world(4, [](const LaunchInfo& launch) {
    const auto group = ProcessGroup::connect(test_options(launch));
    const HsdpGroups ranks = hsdp_groups(launch.rank, 4, 2);
    const auto shard = group->make_group("shard", ranks.shard);
    const auto replicate = group->make_group("replicate", ranks.replicate);
    const double r = static_cast<double>(launch.rank);
    const double in_shard = launch.rank < 2 ? 1 : 5;          // 0 + 1, 2 + 3
    const double in_replicas = launch.rank % 2 == 0 ? 2 : 4;  // 0 + 2, 1 + 3
    require(shard->sum({r}, "s").front() == in_shard, "shard group");
    require(replicate->sum({r}, "s").front() == in_replicas, "replica group");
    group->close();
    return std::string();
  }));
}

TEST(Communicator, CountersAndFlightRecord) {
  expect_all_good(run_world(2, [](const LaunchInfo& launch) {
    const auto group = ProcessGroup::connect(test_options(launch));
    Communicator& c = group->world();
    c.set_step(7);
    at::Tensor a = at::zeros({1000}, at::kFloat), b = at::zeros({1000}, at::kBFloat16);
    Handle first = c.all_reduce(a, ReduceOp::kSum, "grad", "bucket 0");
    Handle second = c.all_reduce(b, ReduceOp::kSum, "grad", "bucket 1");
    first.wait();
    second.wait();
    first.wait();  // twice is fine
    const CollectiveCounter counter = c.counters().at("grad");
    require(counter.count == 2 && counter.tensor_bytes == 6000 && counter.wire_bytes == 6000,
            "counters");
    require(counter.elapsed_ms >= counter.exposed_ms && counter.exposed_ms > 0, "times");
    const auto record = nlohmann::json::parse(c.flight_record_json());
    require(record["step"] == 7 && record["rank"] == launch.rank && record["backend"] == "gloo",
            "head of the record");
    const auto& entry = record["entries"][1];
    require(entry["name"] == "grad bucket 1" && entry["step"] == 7 && entry["numel"] == 1000 &&
                entry["dtype"] == "BFloat16" && entry["state"] == "finished" &&
                entry["collective"] == "all_reduce" && entry["sequence"] == 1,
            "entry " + entry.dump());
    c.reset_counters();
    require(c.counters().empty(), "reset");
    group->close();
    return std::string();
  }));
}

TEST(Communicator, TellsWhatItWaitsFor) {
  expect_all_good(run_world(2, [](const LaunchInfo& launch) {
    const auto group = ProcessGroup::connect(test_options(launch));
    Communicator& c = group->world();
    c.set_step(3);
    if (launch.rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      c.barrier("checkpoint");
    } else {
      std::optional<Communicator::Waiting> seen;
      std::thread spy([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(250));
        seen = c.waiting();
      });
      c.barrier("checkpoint");
      spy.join();
      require(seen.has_value() && seen->entry.name == "checkpoint" && seen->entry.step == 3 &&
                  seen->entry.kind == CollectiveKind::kBarrier && seen->seconds > 0.1,
              "waiting");
      require(!c.waiting().has_value(), "nothing to wait for");
    }
    group->close();
    return std::string();
  }));
}

TEST(Communicator, OldEntriesLeaveTheRecord) {
  CommunicatorOptions options;
  options.flight_capacity = 3;
  Communicator c(make_local_transport(), options);
  for (int i = 0; i < 5; ++i) c.barrier("b");
  ASSERT_EQ(c.flight_record().size(), 3u);
  EXPECT_EQ(c.flight_record().front().sequence, 2);
  EXPECT_GE(c.flight_record().back().finished_s, 0);
  EXPECT_EQ(c.counters().at("b").count, 5);
}

TEST(Communicator, WrongTensorsAreRefused) {
  Communicator c(make_local_transport());
  const at::Tensor t = at::empty({4, 4}, at::kFloat);
  EXPECT_THROW(c.all_reduce(t.t(), ReduceOp::kSum, "x"), ShapeError);
  EXPECT_THROW(c.all_reduce(at::empty({4}, at::kHalf), ReduceOp::kSum, "x"), ShapeError);
  EXPECT_THROW(c.all_gather(at::empty({4}), at::empty({3}), "x"), ShapeError);
  EXPECT_THROW(c.reduce_scatter(at::empty({4}), at::empty({4}, at::kBFloat16), ReduceOp::kSum, "x"),
               ShapeError);
  EXPECT_THROW(c.broadcast(at::empty({4}), 1, "x"), ShapeError);
}

// A transport whose collectives fail or hang, for the watchdog.
class BrokenTransport : public Transport {
 public:
  std::string name() const override { return "broken"; }
  int64_t rank() const override { return 1; }
  int64_t world_size() const override { return 2; }
  std::unique_ptr<Pending> all_reduce(at::Tensor, ReduceOp) override { return hang(); }
  std::unique_ptr<Pending> reduce_scatter(at::Tensor, at::Tensor, ReduceOp) override {
    throw std::runtime_error("no link\nframes of the library");
  }
  std::unique_ptr<Pending> all_gather(at::Tensor, at::Tensor) override { return hang(); }
  std::unique_ptr<Pending> broadcast(at::Tensor, int64_t) override { return hang(); }
  std::unique_ptr<Pending> barrier() override { return hang(); }
  void abort() override { aborted = true; }
  std::atomic<bool> aborted = false;

 private:
  struct Hanging : Pending {
    explicit Hanging(BrokenTransport* owner) : transport(owner) {}
    bool done() override { return transport->aborted; }
    void wait() override {
      while (!transport->aborted) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      throw std::runtime_error("aborted");
    }
    BrokenTransport* transport;
  };
  std::unique_ptr<Pending> hang() { return std::make_unique<Hanging>(this); }
};

TEST(Communicator, WatchdogEndsAHang) {
  CommunicatorOptions options;
  options.warn_after_s = 0.3;
  options.lost_after_s = 0.6;
  Communicator c(std::make_unique<BrokenTransport>(), options);
  c.set_step(12);
  try {
    c.all_reduce(at::zeros({2}), ReduceOp::kSum, "grad", "bucket 4").wait();
    FAIL() << "no error";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.code(), ExitCode::kPeer);
    EXPECT_THAT(error.what(), HasSubstr("rank 1: all_reduce 'grad bucket 4' of step 12"));
    EXPECT_THAT(error.what(), HasSubstr("aborted"));
  }
  EXPECT_TRUE(c.flight_record().back().failed);
}

TEST(Communicator, ErrorsAreOneLine) {
  CommunicatorOptions options;
  options.explain = [](const FlightEntry&) { return std::string("rank 0 reported: no disk"); };
  Communicator c(std::make_unique<BrokenTransport>(), options);
  try {
    c.reduce_scatter(at::zeros({2}), at::zeros({4}), ReduceOp::kSum, "grad");
    FAIL() << "no error";
  } catch (const PeerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no link; rank 0 reported: no disk"));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace longship::dist
