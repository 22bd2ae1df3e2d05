#include "train/parallel.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "base/version.h"
#include "runtime/device.h"

namespace longship::train {
namespace {

// How often a process that waits says that it lives.
constexpr auto kBeat = std::chrono::milliseconds(200);
// After this long a step on a device is suspicious; peers are then looked at so often; and a
// process that has not said for so long that it lives is dead.
constexpr double kSuspicious = 5, kCheckEvery = 1, kSilent = 15;

dist::CudaTransport transport_of(const ParallelSection& section) {
  if (section.transport == "nccl") return dist::CudaTransport::kNccl;
  return section.transport == "peer" ? dist::CudaTransport::kPeer : dist::CudaTransport::kAuto;
}

}  // namespace

bool shards_weights(const ParallelSection& section) {
  return section.strategy == "fsdp" || section.strategy == "hsdp";
}

int64_t hsdp_shard_size(const ParallelSection& section, const dist::LaunchInfo& launch) {
  const int64_t world = launch.world_size;
  const auto number = [](const std::string& text) -> std::optional<int64_t> {
    if (text == "auto") return std::nullopt;
    return std::stoll(text);
  };
  const std::optional<int64_t> replicate = number(section.replicate);
  std::optional<int64_t> shard = number(section.shard);
  LS_CHECK(!replicate || world % *replicate == 0, ConfigError,
           "parallel.replicate: {} groups do not divide the {} processes", *replicate, world);
  if (!shard && replicate) shard = world / *replicate;
  if (!shard) shard = launch.local_world_size;
  LS_CHECK(shard.has_value(), ConfigError,
           "parallel.shard: auto means the processes of one host, and {} does not tell how many "
           "these are; give parallel.shard",
           dist::launcher_name(launch.launcher));
  LS_CHECK(world % *shard == 0, ConfigError,
           "parallel.shard: {} processes a copy do not divide the {} processes", *shard, world);
  LS_CHECK(!replicate || *replicate * *shard == world, ConfigError,
           "parallel.replicate, parallel.shard: {} groups of {} are {} processes, but {} were "
           "started; leave one of them auto",
           *replicate, *shard, *replicate * *shard, world);
  LS_CHECK(*shard > 1, ConfigError,
           "parallel.shard: 1 leaves every process with all weights; use parallel.strategy ddp or "
           "zero1");
  return *shard;
}

namespace {

void check_sharding(const Recipe& recipe, const dist::LaunchInfo& launch) {
  const std::string& strategy = recipe.parallel.strategy;
  LS_CHECK(!recipe.train.fp8, ConfigError,
           "train.fp8: converts all weights at the start of a step, which {} has not in one place; "
           "use parallel.strategy ddp or zero1",
           strategy);
  LS_CHECK(recipe.train.cuda_graph != "per_microbatch", ConfigError,
           "train.cuda_graph: per_microbatch is one graph for all passes, but with {} the last one "
           "differs; use full_iteration or none",
           strategy);
  if (strategy == "hsdp") hsdp_shard_size(recipe.parallel, launch);
}

}  // namespace

void check_parallel(const Recipe& recipe, const dist::LaunchInfo& launch) {
  const std::string& strategy = recipe.parallel.strategy;
  const int64_t world_size = launch.world_size;
  LS_CHECK(world_size == 1 || strategy != "none", ConfigError,
           "parallel.strategy: none is for one process, but {} were started; choose ddp, zero1, "
           "fsdp or hsdp, or start one process",
           world_size);
  if (world_size > 1 && shards_weights(recipe.parallel)) check_sharding(recipe, launch);
  const int64_t batch = recipe.train.global_batch;
  const int64_t micro = recipe.train.micro_batch.value_or(1);
  LS_CHECK(batch % (world_size * micro) == 0, ConfigError,
           "train.global_batch: {} samples do not divide among {} processes in micro-batches of {} "
           "(train.micro_batch); it must be a multiple of {}",
           batch, world_size, micro, world_size * micro);
}

std::unique_ptr<Parallel> Parallel::connect(const Recipe& recipe, const dist::LaunchInfo& launch) {
  check_parallel(recipe, launch);
  auto out = std::make_unique<Parallel>();
  out->launch_ = launch;
  out->timeout_s_ = recipe.parallel.timeout_s;
  out->transport_ = recipe.parallel.transport;
  if (launch.distributed() && recipe.parallel.strategy == "hsdp") {
    out->shard_size_ = hsdp_shard_size(recipe.parallel, launch);
  }
  if (!launch.distributed()) return out;
  dist::GroupOptions options;
  options.launch = launch;
  options.setup_timeout_s = recipe.parallel.setup_timeout_s;
  options.collective_timeout_s = recipe.parallel.timeout_s;
  options.transport = transport_of(recipe.parallel);
  options.flight_folder = recipe.output_dir;
  options.facts = {{"version", version()}};
  // Key by key, so that a difference is named.
  for (auto& [key, value] : flatten(recipe)) options.facts.emplace_back("recipe " + key, value);
  out->group_ = dist::ProcessGroup::connect(options);
  return out;
}

Parallel::~Parallel() = default;

c10::Device Parallel::device(const Recipe& recipe) const {
  std::string text = recipe.train.device;
  if (!distributed()) return runtime::parse_device(text);
  LS_CHECK(!text.starts_with("cuda:"), ConfigError,
           "train.device: {} would be the device of all {} processes; with several processes use "
           "cuda, which gives each its own",
           text, world_size());
  if (text == "auto") text = runtime::cuda_available() ? "cuda" : "cpu";
  if (text != "cuda") return runtime::parse_device(text);
  const int64_t count = runtime::num_cuda_devices();
  LS_CHECK(count == 0 || launch_.local_rank < count, DeviceError,
           "rank {}: it is process {} of its host (from 0), which has {} CUDA devices; start at "
           "most one process per device",
           rank(), launch_.local_rank, count);
  const c10::Device device = runtime::parse_device(fmt::format("cuda:{}", launch_.local_rank));
  runtime::set_current_device(device);
  return device;
}

void Parallel::open_data_plane(c10::Device device) {
  if (!distributed()) return;
  agree("kinds of device (train.device)", device.is_cuda() ? "cuda" : "cpu");
  if (!device.is_cuda() && transport_ != "auto") {
    all_leave();
    throw ConfigError(
        fmt::format("parallel.transport: {} is for GPUs, but the processes train on "
                    "the CPU; leave it auto",
                    transport_));
  }
  std::vector<int64_t> all(static_cast<size_t>(world_size()));
  std::iota(all.begin(), all.end(), 0);
  if (shard_size_ && *shard_size_ < world_size()) {
    const dist::HsdpGroups ranks = dist::hsdp_groups(rank(), world_size(), *shard_size_);
    data_ = group_->make_group(fmt::format("shard{}", ranks.shard.front()), ranks.shard,
                               device.is_cuda());
    replicas_ = group_->make_group(fmt::format("replicas{}", ranks.replicate.front()),
                                   ranks.replicate, device.is_cuda());
  } else {
    data_ = group_->make_group("data", all, device.is_cuda());
  }
  // A peer that dies closes its connections, which ends what waits on the host. What waits on a
  // device is not told.
  if (!device.is_cuda()) return;
  group_->start_heartbeat();
  start_watch();
}

void Parallel::check_peers() {
  const std::lock_guard lock(check_mutex_);
  group_->check_peers(kSilent);
}

// For a host that stands still in a launch, where watch() is not called.
void Parallel::start_watch() {
  PeerWatch::Hooks hooks;
  hooks.check = [this] { check_peers(); };
  hooks.abort = [this] {
    for (dist::Communicator* one : data_plane()) one->abort();
  };
  hooks.end = [this](const std::string& why) {
    group_->report_failure(why);
    if (last_resort_) last_resort_(fmt::format("{}; the device does not come back", why));
  };
  watch_ = std::make_unique<PeerWatch>(PeerWatch::Limits{.quiet_s = kSuspicious}, std::move(hooks));
}

std::vector<dist::Communicator*> Parallel::data_plane() const {
  std::vector<dist::Communicator*> out;
  for (dist::Communicator* one : {data_.get(), replicas_.get()}) {
    if (one != nullptr) out.push_back(one);
  }
  return out;
}

std::unique_ptr<dist::Communicator> Parallel::make_host_group(const std::string& name) {
  std::vector<int64_t> all(static_cast<size_t>(world_size()));
  std::iota(all.begin(), all.end(), 0);
  return group_->make_group(name, all, /*cuda=*/false);
}

std::vector<std::string> gather_texts(dist::Communicator& group, const std::string& text,
                                      const std::string& name) {
  const auto world = static_cast<size_t>(group.world_size());
  const at::Tensor lengths = at::empty({group.world_size()}, at::kLong);
  const at::Tensor own = at::empty({1}, at::kLong).fill_(static_cast<int64_t>(text.size()));
  group.all_gather(lengths, own, name, "lengths").wait();
  const int64_t* sizes = lengths.const_data_ptr<int64_t>();
  const int64_t longest = *std::max_element(sizes, sizes + world);
  std::vector<std::string> out(world);
  if (longest == 0) return out;
  const at::Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = at::empty({group.world_size() * longest}, at::kByte);
  group.all_gather(all, padded, name).wait();
  const char* bytes = static_cast<const char*>(all.const_data_ptr());
  for (size_t r = 0; r < world; ++r) {
    out[r].assign(bytes + r * static_cast<size_t>(longest), static_cast<size_t>(sizes[r]));
  }
  return out;
}

std::vector<std::string> Parallel::gather_texts(const std::string& text) {
  if (!distributed()) return {text};
  return train::gather_texts(control(), text, "texts");
}

std::string Parallel::from_first(const std::string& text) {
  return gather_texts(first() ? text : std::string()).front();
}

std::vector<std::vector<double>> Parallel::gather(const std::vector<double>& values) {
  if (!distributed()) return {values};
  const auto count = static_cast<int64_t>(values.size());
  const at::Tensor own = at::empty({count}, at::kDouble);
  std::copy(values.begin(), values.end(), own.mutable_data_ptr<double>());
  const at::Tensor all = at::empty({world_size() * count}, at::kDouble);
  control().all_gather(all, own, "reports").wait();
  const double* data = all.const_data_ptr<double>();
  std::vector<std::vector<double>> out;
  for (int64_t r = 0; r < world_size(); ++r) {
    out.emplace_back(data + r * count, data + (r + 1) * count);
  }
  return out;
}

bool Parallel::any(bool value) {
  if (!distributed()) return value;
  const auto rows = gather({value ? 1.0 : 0.0});
  return std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row[0] != 0; });
}

void Parallel::agree(const std::string& what, const std::string& value) {
  if (!distributed()) return;
  const std::vector<std::string> values = gather_texts(value);
  std::map<std::string, std::vector<int64_t>> ranks;
  for (size_t r = 0; r < values.size(); ++r) ranks[values[r]].push_back(static_cast<int64_t>(r));
  if (ranks.size() == 1) return;
  std::vector<std::string> parts;
  for (const auto& [text, who] : ranks) {
    parts.push_back(fmt::format("{}: '{}'", dist::describe_ranks(who), text));
  }
  all_leave();
  throw ConfigError(
      fmt::format("the ranks have different {}: {}; give all hosts the same files and settings",
                  what, join(parts, ", ")));
}

void keep_beating(dist::Communicator& group, const std::function<void()>& work) {
  std::atomic<bool> done = false;
  std::exception_ptr lost;
  std::thread beats([&] {
    try {
      const at::Tensor busy = at::empty({1}, at::kLong);
      int64_t* flag = busy.mutable_data_ptr<int64_t>();
      // Short work is not held up by a long pause.
      for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, kBeat)) {
        *flag = done ? 0 : 1;
        group.all_reduce(busy, dist::ReduceOp::kMax, "waiting").wait();
        if (*flag == 0) return;
        std::this_thread::sleep_for(pause);
      }
    } catch (const std::exception&) {
      lost = std::current_exception();
    }
  });
  work();
  done = true;
  beats.join();
  if (lost) std::rethrow_exception(lost);
}

void Parallel::together(const std::function<void()>& work) {
  if (!distributed()) return work();
  std::string outcome;
  std::exception_ptr own;
  const auto guarded = [&] {
    try {
      work();
    } catch (const Error& error) {
      outcome = fmt::format("{}:{}", static_cast<int>(error.code()), error.what());
      own = std::current_exception();
    } catch (const std::exception& error) {
      outcome = fmt::format("{}:{}", static_cast<int>(ExitCode::kOther), error.what());
      own = std::current_exception();
    }
  };
  try {
    keep_beating(control(), guarded);
  } catch (const std::exception&) {
    if (own) std::rethrow_exception(own);
    throw;
  }
  const std::vector<std::string> outcomes = gather_texts(outcome);
  const auto failed = std::find_if(outcomes.begin(), outcomes.end(),
                                   [](const std::string& text) { return !text.empty(); });
  if (failed == outcomes.end()) return;
  all_leave();
  if (own) std::rethrow_exception(own);
  const size_t colon = failed->find(':');
  const auto code = static_cast<ExitCode>(std::stoi(failed->substr(0, colon)));
  throw_error(code,
              fmt::format("rank {}: {}", failed - outcomes.begin(), failed->substr(colon + 1)));
}

void Parallel::set_step(int64_t step) {
  step_ = step;
  if (!distributed()) return;
  if (watch_) watch_->sign();
  control().set_step(step);
  for (dist::Communicator* one : data_plane()) one->set_step(step);
}

void Parallel::watch(double waited_s) {
  if (!distributed()) return;
  if (watch_) watch_->sign();
  if (waited_s < kSuspicious) {
    next_check_s_ = kSuspicious;
    return;
  }
  if (waited_s < next_check_s_) return;
  next_check_s_ = waited_s + kCheckEvery;
  check_peers();
  LS_CHECK(waited_s < timeout_s_, PeerError,
           "rank {}: the device has not ended step {} within {:g} s (parallel.timeout_s), although "
           "all processes live: one of them hangs, or the network between the GPUs does",
           rank(), step_, timeout_s_);
}

void Parallel::leave(const std::string& why) noexcept {
  if (watch_) watch_->stop();
  if (!distributed() || agreed_) return;
  group_->report_failure(why);
  try {
    for (dist::Communicator* one : data_plane()) one->abort();
  } catch (const std::exception&) {
    // The peers notice all the same when this process ends.
  }
}

void Parallel::close() {
  if (watch_) watch_->stop();
  if (distributed()) group_->close();
}

}  // namespace longship::train
