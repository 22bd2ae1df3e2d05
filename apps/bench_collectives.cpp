// longship bench collectives: what moves gradients and weights between GPUs, how fast, and what it
// costs the matrix products beside it.
#include "apps/bench_collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "apps/bench_report.h"
#include "base/error.h"
#include "base/log.h"
#include "dist/launch.h"
#include "dist/process_group.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace longship::apps {
namespace {

// A graph holds so many collectives of one kind, and so many products beside collectives.
constexpr int kInGraph = 10, kProducts = 40;
constexpr int kWarmup = 2, kTimed = 5;
// Tensors that travel in turn beside the products, as buckets of gradients do.
constexpr int kBuckets = 8;
// [kRows, kInner] x [kInner, kColumns], bf16: the size of a language layer's products.
constexpr int64_t kRows = 8192, kInner = 2048, kColumns = 16384;
constexpr double kFlop = 2.0 * kRows * kInner * kColumns;

struct Options {
  std::vector<int64_t> mib = {1, 25, 256, 2048};
  double bucket_mib = 25;
  std::string dtype = "fp32";
  std::string json;
};

struct Bench {
  at::Device device;
  dist::ProcessGroup& group;
  runtime::Stream stream;
  runtime::GraphPool pool;

  Bench(at::Device on, dist::ProcessGroup& all)
      : device(on), group(all), stream(runtime::Stream::make(on)), pool(on) {}

  /// Milliseconds of one replay of what `work` enqueues: the median of kTimed, of the slowest rank.
  double time(const std::function<void()>& work) {
    const runtime::StreamScope scope(stream);
    work();
    stream.synchronize();
    runtime::CapturedGraph graph;
    graph.capture(stream, pool, work);
    std::vector<double> times;
    for (int i = 0; i < kWarmup + kTimed; ++i) {
      stream.synchronize();
      group.world().barrier("replay");
      runtime::Event begin(/*with_time=*/true), end(/*with_time=*/true);
      begin.record(stream);
      graph.replay();
      end.record(stream);
      end.synchronize();
      if (i >= kWarmup) times.push_back(end.ms_since(begin));
    }
    std::sort(times.begin(), times.end());
    const at::Tensor median = at::empty({1}, at::kDouble).fill_(times[times.size() / 2]);
    group.world().all_reduce(median, dist::ReduceOp::kMax, "times").wait();
    return median.item<double>();
  }
};

at::ScalarType type_of(const Options& options) {
  return options.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
}

int64_t numel_of(double mib, const Options& options, int64_t world_size) {
  const auto element = static_cast<double>(c10::elementSize(type_of(options)));
  const auto unit = 64 * world_size;
  return static_cast<int64_t>(mib * 1024 * 1024 / element) / unit * unit;
}

// GB/s: bytes that each rank sends (dist::ring_bytes) over the time of a collective.
nlohmann::ordered_json measure_kind(Bench& bench, dist::Communicator& c, dist::CollectiveKind kind,
                                    const Options& options) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const int64_t mib : options.mib) {
    const int64_t numel = numel_of(static_cast<double>(mib), options, c.world_size());
    const at::Tensor whole =
        at::zeros({numel}, at::TensorOptions(type_of(options)).device(bench.device));
    const at::Tensor own =
        whole.narrow(0, c.rank() * numel / c.world_size(), numel / c.world_size());
    c.share({whole});
    const double ms = bench.time([&] {
      for (int i = 0; i < kInGraph; ++i) {
        if (kind == dist::CollectiveKind::kAllReduce) {
          c.all_reduce(whole, dist::ReduceOp::kMean, "bench").wait();
        } else if (kind == dist::CollectiveKind::kReduceScatter) {
          c.reduce_scatter(own, whole, dist::ReduceOp::kMean, "bench").wait();
        } else {
          c.all_gather(whole, own, "bench").wait();
        }
      }
    }) / kInGraph;
    const auto bytes = static_cast<int64_t>(whole.nbytes());
    const auto sent = static_cast<double>(dist::ring_bytes(kind, c.world_size(), bytes));
    out.push_back({{"mib", mib}, {"ms", ms}, {"gb_s", sent / ms / 1e6}});
  }
  return out;
}

// Products alone, collectives alone, and both at once, as in a backward pass: before each product
// one bucket sets off.
nlohmann::ordered_json measure_beside(Bench& bench, dist::Communicator& c, const Options& options) {
  const auto bf16 = at::TensorOptions(at::kBFloat16).device(bench.device);
  const at::Tensor a = at::randn({kRows, kInner}, bf16), b = at::randn({kInner, kColumns}, bf16);
  at::Tensor product = at::empty({kRows, kColumns}, bf16);
  std::vector<at::Tensor> buckets;
  for (int i = 0; i < kBuckets; ++i) {
    buckets.push_back(at::zeros({numel_of(options.bucket_mib, options, c.world_size())},
                                at::TensorOptions(type_of(options)).device(bench.device)));
  }
  c.share(buckets);
  const auto work = [&](bool products, bool collectives) {
    std::vector<dist::Handle> handles(kBuckets);
    for (int i = 0; i < kProducts; ++i) {
      dist::Handle& handle = handles[static_cast<size_t>(i % kBuckets)];
      if (collectives) {
        handle.wait();
        handle = c.all_reduce(buckets[static_cast<size_t>(i % kBuckets)], dist::ReduceOp::kMean,
                              "bench");
      }
      if (products) at::mm_out(product, a, b);
    }
    for (dist::Handle& handle : handles) handle.wait();
  };
  const double alone = bench.time([&] { work(true, false); });
  const double moving = bench.time([&] { work(false, true); });
  const double both = bench.time([&] { work(true, true); });
  const double again = bench.time([&] { work(true, false); });
  const double products = (alone + again) / 2;
  return {
      {"products", kProducts},
      {"bucket_mib", options.bucket_mib},
      {"products_ms", products},
      {"products_tflop_s", kFlop * kProducts / products / 1e9},
      {"collectives_ms", moving},
      {"both_ms", both},
      {"slower_by", both / products - 1},
      {"lost_ms_per_gb", (both - products) / (kProducts *
                                              static_cast<double>(dist::ring_bytes(
                                                  dist::CollectiveKind::kAllReduce, c.world_size(),
                                                  static_cast<int64_t>(buckets[0].nbytes()))) /
                                              1e9)}};
}

nlohmann::ordered_json measure(Bench& bench, dist::CudaTransport transport, const std::string& name,
                               const Options& options) {
  std::vector<int64_t> all(static_cast<size_t>(bench.group.world_size()));
  std::iota(all.begin(), all.end(), 0);
  nlohmann::ordered_json out;
  std::unique_ptr<dist::Communicator> c;
  try {
    c = bench.group.make_group("bench_" + name, all, /*cuda=*/true, transport);
  } catch (const DeviceError& error) {  // the same on all ranks
    return {{"error", error.what()}};
  }
  for (const auto kind : {dist::CollectiveKind::kAllReduce, dist::CollectiveKind::kReduceScatter,
                          dist::CollectiveKind::kAllGather}) {
    out[std::string(dist::collective_name(kind))] = measure_kind(bench, *c, kind, options);
  }
  out["beside_products"] = measure_beside(bench, *c, options);
  runtime::synchronize(bench.device);
  bench.group.world().barrier("end of a transport");
  return out;
}

std::string text_of(const nlohmann::ordered_json& report) {
  std::string out;
  for (const auto& [transport, results] : report["transports"].items()) {
    if (results.contains("error")) {
      out += fmt::format("{}: {}\n", transport, results["error"].get<std::string>());
      continue;
    }
    for (const char* kind : {"all_reduce", "reduce_scatter", "all_gather"}) {
      out += fmt::format("{:5} {:14}", transport, kind);
      for (const auto& row : results[kind]) {
        out += fmt::format("  {} MiB {:.3f} ms {:.0f} GB/s", row["mib"].get<int64_t>(),
                           row["ms"].get<double>(), row["gb_s"].get<double>());
      }
      out += "\n";
    }
    const auto& beside = results["beside_products"];
    out += fmt::format(
        "{:5} {} products: alone {:.2f} ms ({:.0f} TFLOP/s), {} all_reduce of {:g} MiB alone "
        "{:.2f} ms, both {:.2f} ms ({:+.1f} %)\n",
        transport, beside["products"].get<int>(), beside["products_ms"].get<double>(),
        beside["products_tflop_s"].get<double>(), beside["products"].get<int>(),
        beside["bucket_mib"].get<double>(), beside["collectives_ms"].get<double>(),
        beside["both_ms"].get<double>(), 100 * beside["slower_by"].get<double>());
  }
  return out;
}

int run(const Options& options) {
  dist::GroupOptions group;
  group.launch = dist::read_launch();
  log::init(group.launch.rank == 0 ? log::Level::kInfo : log::Level::kError);
  LS_CHECK(group.launch.distributed(), ConfigError,
           "bench collectives: one process has nobody to talk to; start it with torchrun "
           "--no-python --nproc-per-node 2");
  group.setup_timeout_s = 60;
  group.collective_timeout_s = 60;
  const auto device = runtime::parse_device(fmt::format("cuda:{}", group.launch.local_rank));
  runtime::set_current_device(device);
  const auto processes = dist::ProcessGroup::connect(group);
  nlohmann::ordered_json report;
  try {
    Bench bench(device, *processes);
    report = {{"device", runtime::describe(device)},
              {"world_size", processes->world_size()},
              {"dtype", options.dtype}};
    for (const auto& [name, transport] :
         {std::pair{"nccl", dist::CudaTransport::kNccl}, {"peer", dist::CudaTransport::kPeer}}) {
      report["transports"][name] = measure(bench, transport, name, options);
    }
  } catch (const std::exception& error) {
    processes->report_failure(error.what());
    throw;
  }
  processes->close();
  return processes->rank() == 0 ? put_report(report, options.json, text_of(report)) : 0;
}

}  // namespace

void add_bench_collectives_command(CLI::App& bench, std::function<int()>& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "collectives",
      "NCCL and peer copies between the GPUs of one host (under torchrun): GB/s, and what they "
      "cost matrix products beside them");
  command
      ->add_option_function<std::string>(
          "--mib",
          [options](const std::string& text) {
            options->mib = numbers_of("--mib", text, 1, "number of MiB");
          },
          "Sizes of whole tensors in MiB")
      ->default_str("1,25,256,2048");
  command
      ->add_option("--bucket-mib", options->bucket_mib, "What travels beside the products, in MiB")
      ->check(CLI::Range(0.5, 4096.0))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "Type of what is sent")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--json", options->json,
                      "Write the report to this file; '-': standard output, and nothing else");
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace longship::apps
