// Collectives of GPUs that read each other's memory. Needs two devices or more; the children look
// for them, because a process that has used CUDA cannot fork.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/error.h"
#include "ranks.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace longship::dist {
namespace {

constexpr int64_t kMany = 100'000'000;

void require(bool condition, const std::string& what) {
  LS_CHECK(condition, InternalError, "{}", what);
}

// A group over `transport`, in a child process.
struct Member {
  Member(const LaunchInfo& launch, CudaTransport transport)
      : device(at::kCUDA, static_cast<c10::DeviceIndex>(launch.local_rank)), guard(device) {
    GroupOptions options = test_options(launch);
    options.cuda = true;
    options.transport = transport;
    group = ProcessGroup::connect(options);
  }
  Communicator& c() { return group->world(); }

  at::Device device;
  c10::DeviceGuard guard;
  std::unique_ptr<ProcessGroup> group;
};

// Small whole numbers, whose sums over up to 8 ranks bf16 holds exactly: element i of rank r.
at::Tensor numbers(int64_t count, int64_t rank, at::Device device, at::ScalarType type) {
  return at::arange(count, at::TensorOptions(at::kLong).device(device))
      .remainder_(13)
      .add_(rank)
      .to(type);
}
// Their mean or sum.
at::Tensor reduced(int64_t count, int64_t world, ReduceOp op, at::Device device,
                   at::ScalarType type) {
  const at::Tensor sum = at::arange(count, at::TensorOptions(at::kLong).device(device))
                             .remainder_(13)
                             .mul_(world)
                             .add_(world * (world - 1) / 2)
                             .to(at::kFloat);
  return (op == ReduceOp::kMean ? sum / static_cast<double>(world) : sum).to(type);
}

// In a bigger shared tensor, `offset` elements from its begin.
struct SharedPlace {
  SharedPlace(Communicator& c, int64_t count, int64_t offset, at::Device device,
              at::ScalarType type)
      : whole(at::zeros({count + offset}, at::TensorOptions(type).device(device))),
        tensor(whole.narrow(0, offset, count)) {
    c.share({whole});
  }
  at::Tensor whole, tensor;
};

void check_all_reduce(Member& m, int64_t count, int64_t offset, at::ScalarType type) {
  Communicator& c = m.c();
  SharedPlace place(c, count, offset, m.device, type);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
    place.whole.fill_(77);
    place.tensor.copy_(numbers(count, c.rank(), m.device, type));
    c.all_reduce(place.tensor, op, "grad").wait();
    require(place.tensor.equal(reduced(count, c.world_size(), op, m.device, type)),
            fmt::format("all_reduce of {} {} at {}", count, c10::toString(type), offset));
    require(place.whole.narrow(0, 0, offset).eq(77).all().item<bool>(), "what is before it");
  }
}

void check_reduce_scatter(Member& m, int64_t part, int64_t offset, at::ScalarType type,
                          bool in_place) {
  Communicator& c = m.c();
  const int64_t count = part * c.world_size();
  SharedPlace place(c, count, offset, m.device, type);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
    place.tensor.copy_(numbers(count, c.rank(), m.device, type));
    const at::Tensor own = place.tensor.narrow(0, c.rank() * part, part);
    const at::Tensor output = in_place ? own : at::empty_like(own);
    c.reduce_scatter(output, place.tensor, op, "grad").wait();
    require(
        output.equal(
            reduced(count, c.world_size(), op, m.device, type).narrow(0, c.rank() * part, part)),
        fmt::format("reduce_scatter of {} {} at {}", count, c10::toString(type), offset));
  }
}

// bf16 into fp32, not rounded: values whose sums fp32 holds and bf16 does not. `shared`: the fp32
// tensor too.
void check_widened(Member& m, int64_t part, int64_t offset, bool shared) {
  Communicator& c = m.c();
  const int64_t count = part * c.world_size();
  SharedPlace input(c, count, offset, m.device, at::kBFloat16);
  SharedPlace sums(c, count, offset, m.device, at::kFloat);
  const auto values = [&](int64_t rank) {  // whole numbers of 8 bits, and parts of 256
    return numbers(count, 0, m.device, at::kFloat)
        .mul_(8)
        .add_(128 + rank)
        .div_(rank == 0 ? 1.0 : 256.0)
        .to(at::kBFloat16);
  };
  const at::Tensor output = shared ? sums.tensor : at::empty_like(sums.tensor);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
    const double divisor = op == ReduceOp::kMean ? static_cast<double>(c.world_size()) : 1.0;
    at::Tensor expected = values(0).to(at::kFloat).div(divisor);
    for (int64_t r = 1; r < c.world_size(); ++r) {
      expected.add_(values(r).to(at::kFloat).div(divisor));
    }
    input.tensor.copy_(values(c.rank()));
    sums.whole.fill_(77);
    output.fill_(77);
    c.all_reduce_into(output, input.tensor, op, "grad").wait();
    const std::string what = fmt::format("{} at {}", count, offset);
    require(output.equal(expected), "all_reduce_into of " + what);
    require(input.tensor.equal(values(c.rank())), "the input of " + what);
    require(sums.whole.narrow(0, 0, offset).eq(77).all().item<bool>(), "what is before it");
    const int64_t begin = c.rank() * part;
    output.fill_(77);
    c.reduce_scatter(output.narrow(0, begin, part), input.tensor, op, "grad").wait();
    require(output.narrow(0, begin, part).equal(expected.narrow(0, begin, part)),
            "widening reduce_scatter of " + what);
  }
}

void check_all_gather(Member& m, int64_t part, int64_t offset, at::ScalarType type, bool in_place) {
  Communicator& c = m.c();
  const int64_t count = part * c.world_size();
  SharedPlace place(c, in_place ? count : part, offset, m.device, type);
  const at::Tensor output = in_place ? place.tensor : at::empty({count}, place.tensor.options());
  const at::Tensor input = in_place ? output.narrow(0, c.rank() * part, part) : place.tensor;
  output.fill_(77);
  input.copy_(numbers(part, c.rank(), m.device, type));
  c.all_gather(output, input, "params").wait();
  for (int64_t r = 0; r < c.world_size(); ++r) {
    require(
        output.narrow(0, r * part, part).equal(numbers(part, r, m.device, type)),
        fmt::format("all_gather of {} {} at {}, part {}", count, c10::toString(type), offset, r));
  }
}

std::string check_collectives(const LaunchInfo& launch) {
  if (runtime::num_cuda_devices() < launch.world_size) return "skip";
  Member m(launch, CudaTransport::kPeer);
  Communicator& c = m.c();
  require(c.backend() == "peer", "the transport is " + c.backend());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    // On both sides of what is left to NCCL, and of one, two and many pieces.
    for (const int64_t count : {1, 1001, 65536, 131072, 1048576 + 3, 12345677}) {
      for (const int64_t offset : {0, 3}) {
        check_all_reduce(m, count, offset, type);
        check_reduce_scatter(m, count, offset, type, offset == 0);
        check_all_gather(m, count, offset, type, offset == 0);
        check_all_gather(m, count, offset, type, offset != 0);
      }
    }
    check_all_reduce(m, kMany, 1, type);
    check_reduce_scatter(m, kMany / c.world_size() + 1, 0, type, false);
    check_all_gather(m, kMany / c.world_size() + 1, 0, type, true);
  }
  for (const int64_t part : {1, 1001, 70000, 1048576 + 3, 12345677}) {
    check_widened(m, part, part % 2 == 0 ? 0 : 3, /*shared=*/true);
    check_widened(m, part, 0, /*shared=*/false);
  }
  // Other types, and what only NCCL does.
  for (const at::ScalarType type : {at::kByte, at::kLong, at::kDouble}) {
    check_all_gather(m, 300001, 0, type, true);
    check_all_reduce(m, 1001, 0, at::kDouble);
    SharedPlace place(c, 1 << 20, 0, m.device, type);
    place.tensor.fill_(c.rank() + 1);
    c.all_reduce(place.tensor, ReduceOp::kMax, "maxima").wait();
    require(place.tensor.eq(c.world_size()).all().item<bool>(), "maximum");
    place.tensor.fill_(c.rank() + 1);
    c.broadcast(place.tensor, 1, "params initial").wait();
    require(place.tensor.eq(2).all().item<bool>(), "broadcast");
  }
  const at::Tensor apart = numbers(1 << 20, c.rank(), m.device, at::kFloat);
  c.all_reduce(apart, ReduceOp::kSum, "not shared").wait();
  require(apart.equal(reduced(1 << 20, c.world_size(), ReduceOp::kSum, m.device, at::kFloat)),
          "a tensor that is not shared");
  require(c.sum({1.0}, "scalar").front() == static_cast<double>(c.world_size()), "scalar");
  c.barrier("barrier");
  m.group->close();
  return "done";
}

void expect_done(const std::vector<RankResult>& ranks, size_t devices) {
  if (ranks[0].text == "skip") GTEST_SKIP() << "needs " << devices << " CUDA devices";
  for (const RankResult& rank : ranks) EXPECT_EQ(rank.text, "done");
}

TEST(PeerTransportGpu, CollectivesOfTwoDevices) {
  expect_done(run_world(2, check_collectives, 110), 2);
}

TEST(PeerTransportGpu, CollectivesOfFourDevices) {
  expect_done(run_world(4, check_collectives, 110), 4);
}

// A step whose inputs change, with several collectives under way at once; counts in `wrong` what it
// finds. Nothing in it waits on the host, so that steps follow each other as closely as they can.
class Step {
 public:
  Step(Communicator& c, at::Device device)
      : c_(c),
        turn_(at::zeros({1}, at::TensorOptions(at::kLong).device(device))),
        wrong_(at::zeros({1}, turn_.options())),
        pattern_(numbers(kPart * c.world_size(), 0, device, at::kFloat)),
        shard_(at::zeros({kPart}, pattern_.options())),
        weights_(at::zeros({kPart * c.world_size()}, pattern_.options().dtype(at::kBFloat16))),
        small_(at::zeros({1}, pattern_.options())) {
    for (int i = 0; i < 3; ++i) wires_.push_back(at::zeros_like(pattern_));
    c.share(wires_);
    c.share({weights_});
  }
  void run() {
    const int64_t rank = c_.rank(), world = c_.world_size();
    turn_.add_(1).remainder_(64);
    std::vector<Handle> handles;
    for (size_t i = 0; i < wires_.size(); ++i) {
      wires_[i].copy_(pattern_).add_(turn_).add_(rank + static_cast<int64_t>(i));
      handles.push_back(i == 2 ? c_.reduce_scatter(shard_, wires_[i], ReduceOp::kSum, "grad")
                               : c_.all_reduce(wires_[i], ReduceOp::kSum, "grad"));
    }
    small_.fill_(1);
    handles.push_back(c_.all_reduce(small_, ReduceOp::kSum, "norm"));
    for (Handle& handle : handles) handle.wait();
    const int64_t ranks = world * (world - 1) / 2;
    for (int64_t i = 0; i < 3; ++i) {
      const at::Tensor expected = pattern_.add(turn_).mul(world).add(ranks + world * i);
      count(i < 2 ? wires_[static_cast<size_t>(i)] : shard_,
            i < 2 ? expected : expected.narrow(0, rank * kPart, kPart));
    }
    count(small_, small_.new_full({1}, world));
    const at::Tensor own = weights_.narrow(0, rank * kPart, kPart);
    own.fill_(rank).add_(turn_);
    c_.all_gather(weights_, own, "params").wait();
    for (int64_t r = 0; r < world; ++r) {
      const at::Tensor got = weights_.narrow(0, r * kPart, kPart);
      count(got, at::zeros_like(got).add_(turn_).add_(r));
    }
  }
  int64_t wrong() const { return wrong_.item<int64_t>(); }

 private:
  static constexpr int64_t kPart = 3'000'000;
  void count(const at::Tensor& got, const at::Tensor& expected) {
    wrong_.add_(got.ne(expected).sum());
  }

  Communicator& c_;
  at::Tensor turn_, wrong_, pattern_, shard_, weights_, small_;
  std::vector<at::Tensor> wires_;
};

TEST(PeerTransportGpu, CapturedStepsAndEagerOnesMeet) {
  const auto ranks = run_world(
      2,
      [](const LaunchInfo& launch) -> std::string {
        if (runtime::num_cuda_devices() < 2) return "skip";
        Member m(launch, CudaTransport::kPeer);
        const auto stream = runtime::Stream::make(m.device);
        runtime::GraphPool pool(m.device);
        const runtime::StreamScope scope(stream);
        Step step(m.c(), m.device);
        for (int i = 0; i < 3; ++i) step.run();
        require(step.wrong() == 0, fmt::format("eager: {} wrong", step.wrong()));
        runtime::CapturedGraph graph;
        graph.capture(stream, pool, [&] { step.run(); });
        for (int i = 0; i < 50; ++i) graph.replay();
        require(step.wrong() == 0, fmt::format("50 replays: {} wrong", step.wrong()));
        // Graphs belong to shapes of batches, which the ranks need not have alike.
        for (int i = 0; i < 20; ++i) {
          if ((i / 2 + launch.rank) % 2 == 0) {
            graph.replay();
          } else {
            step.run();
          }
        }
        require(step.wrong() == 0, fmt::format("mixed: {} wrong", step.wrong()));
        // A rank whose host is late.
        for (int i = 0; i < 6; ++i) {
          if (i % 2 == launch.rank) std::this_thread::sleep_for(std::chrono::milliseconds(50));
          graph.replay();
        }
        require(step.wrong() == 0, fmt::format("late: {} wrong", step.wrong()));
        m.group->close();
        return "done";
      },
      110);
  expect_done(ranks, 2);
}

TEST(PeerTransportGpu, SharingWhileAGraphIsCapturedIsRefused) {
  const auto ranks = run_world(2, [](const LaunchInfo& launch) -> std::string {
    if (runtime::num_cuda_devices() < 2) return "skip";
    Member m(launch, CudaTransport::kPeer);
    const auto stream = runtime::Stream::make(m.device);
    runtime::GraphPool pool(m.device);
    const at::Tensor x = at::zeros({1 << 20}, at::TensorOptions(at::kFloat).device(m.device));
    runtime::CapturedGraph graph;
    std::string said;
    try {
      graph.capture(stream, pool, [&] {
        x.add_(1);
        m.c().share({x});
      });
    } catch (const InternalError& error) {
      said = error.what();
    }
    require(said.find("while a graph is captured") != std::string::npos, "said: " + said);
    m.group->close();
    return "done";
  });
  expect_done(ranks, 2);
}

TEST(PeerTransportGpu, TensorsThatDiedAreSharedAgain) {
  const auto ranks = run_world(2, [](const LaunchInfo& launch) -> std::string {
    if (runtime::num_cuda_devices() < 2) return "skip";
    Member m(launch, CudaTransport::kPeer);
    for (int i = 0; i < 5; ++i) {
      check_all_reduce(m, (4 << 20) + i, 0, at::kFloat);
      if (i % 2 == 1) runtime::release_cached_memory();
    }
    m.group->close();
    return "done";
  });
  expect_done(ranks, 2);
}

TEST(PeerTransportGpu, TheEndOfAPeerDoesNotHoldTheOthers) {
  const auto ranks = run_world(2, [](const LaunchInfo& launch) -> std::string {
    if (runtime::num_cuda_devices() < 2) return "skip";
    Member m(launch, CudaTransport::kPeer);
    Communicator& c = m.c();
    SharedPlace place(c, 8 << 20, 0, m.device, at::kFloat);
    const auto stream = runtime::Stream::current(m.device);
    c.all_reduce(place.tensor, ReduceOp::kSum, "grad").wait();
    stream.synchronize();
    if (launch.rank == 1) kill(getpid(), SIGKILL);
    Handle lost = c.all_reduce(place.tensor, ReduceOp::kSum, "grad");
    lost.wait();
    runtime::Event end;
    end.record(stream);
    const auto ended_within = [&](double seconds) {
      for (int i = 0; i < static_cast<int>(seconds * 100) && !end.done(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      return end.done();
    };
    require(!ended_within(1), "a collective ended without the peer");
    c.abort();
    require(ended_within(10), "the device still waits 10 s after abort()");
    try {
      c.all_reduce(place.tensor, ReduceOp::kSum, "grad");
    } catch (const PeerError& error) {
      const std::string said = error.what();
      return said.find("aborted") != std::string::npos ? "done" : said;
    }
    return "a collective after abort()";
  });
  if (ranks[0].text == "skip") GTEST_SKIP() << "needs two CUDA devices";
  EXPECT_EQ(ranks[0].text, "done");
  EXPECT_EQ(ranks[1].signal, SIGKILL);
}

TEST(PeerTransportGpu, AutoTakesItOnOneHost) {
  const auto ranks = run_world(2, [](const LaunchInfo& launch) -> std::string {
    if (runtime::num_cuda_devices() < 2) return "skip";
    Member m(launch, CudaTransport::kAuto);
    require(m.c().backend() == "peer", "the transport is " + m.c().backend());
    m.group->close();
    return "done";
  });
  expect_done(ranks, 2);
}

}  // namespace
}  // namespace longship::dist
