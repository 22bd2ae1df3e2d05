#include "dist/process_group.h"

#include <fmt/core.h>

#include <algorithm>
#include <future>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/strings.h"
#include "dist/handshake.h"
#include "dist/peer_transport.h"

namespace longship::dist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kGrace = 5;
constexpr auto kPoll = std::chrono::milliseconds(20);

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string first_line(const char* text) {
  const std::string all = text;
  return all.substr(0, all.find('\n'));
}

// Opens the store on a thread of its own: a stranger that listens on the port and never answers
// would hold the library for ever. The thread is left behind in that case; the process is about to
// end.
std::unique_ptr<KeyStore> open_in_time(const StoreAddress& address, const LaunchInfo& launch) {
  auto promise = std::make_shared<std::promise<std::unique_ptr<KeyStore>>>();
  std::future<std::unique_ptr<KeyStore>> opened = promise->get_future();
  std::thread([promise, address] {
    try {
      promise->set_value(open_store(address));
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  const std::string place = fmt::format("{}:{}", address.host, address.port);
  const auto limit = std::chrono::duration<double>(address.timeout_s + kGrace);
  const auto not_reached = [&](const std::string& why) {
    return fmt::format(
        "rank {}: the store of {} at {} (MASTER_ADDR, MASTER_PORT) was not reached within {:g} s: "
        "{}{}{}",
        launch.rank, launch.agent_store ? "torchrun's agent" : "rank 0", place, address.timeout_s,
        why, launch.note.empty() ? "" : "; ", launch.note);
  };
  if (opened.wait_for(limit) != std::future_status::ready) {
    // Where connections are refused, the library tries again beyond its own limit.
    LS_CHECK(address.serve || accepts_connections(address.host, address.port), PeerError, "{}",
             not_reached("nothing listens there"));
    throw PeerError(fmt::format(
        "rank {}: something listens at {} (MASTER_ADDR, MASTER_PORT) but is no store of this run: "
        "no answer within {:g} s; choose another MASTER_PORT",
        launch.rank, place, address.timeout_s + kGrace));
  }
  try {
    return opened.get();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = first_line(error.what());
    if (address.serve) {
      const bool used = text.find("EADDRINUSE") != std::string::npos ||
                        text.find("already in use") != std::string::npos;
      LS_CHECK(!used, PeerError,
               "rank {}: port {} (MASTER_PORT) is in use on this host, by another run or a rank 0 "
               "that still runs; choose another MASTER_PORT",
               launch.rank, address.port);
      throw PeerError(fmt::format("rank {}: cannot listen on port {} (MASTER_PORT): {}",
                                  launch.rank, address.port, text));
    }
    throw PeerError(not_reached(text));
  }
}

// Begins the report of a rank whose collective failed; a rank that leaves by itself says anything.
constexpr std::string_view kVictim = "lost: ";

std::string alive_key(int64_t rank) {
  return fmt::format("alive/{}", rank);
}

std::string failure_key(int64_t rank) {
  return fmt::format("failed/{}", rank);
}

}  // namespace

std::string describe_ranks(const std::vector<int64_t>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  std::string out = "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    if (i > 0) out += ", ";
    out += j > i ? fmt::format("{}-{}", ranks[i], ranks[j]) : fmt::format("{}", ranks[i]);
    i = j + 1;
  }
  return out;
}

HsdpGroups hsdp_groups(int64_t rank, int64_t world_size, int64_t shard_size) {
  LS_CHECK(shard_size >= 1 && world_size % shard_size == 0, ConfigError,
           "parallel.shard: {} does not divide the {} ranks", shard_size, world_size);
  HsdpGroups groups;
  const int64_t first = rank / shard_size * shard_size;
  for (int64_t i = 0; i < shard_size; ++i) groups.shard.push_back(first + i);
  for (int64_t r = rank % shard_size; r < world_size; r += shard_size) {
    groups.replicate.push_back(r);
  }
  return groups;
}

// A rank that leaves with an error of its own closes its connections, by which the peers notice;
// then they ask the store why.
ProcessGroup::~ProcessGroup() {
  world_.reset();
  if (!store_ || !reported_) return;
  try {
    linger(world_size() - 1);
  } catch (const std::exception&) {
    // The store is gone already.
  }
}

std::unique_ptr<ProcessGroup> ProcessGroup::connect(const GroupOptions& options) {
  std::unique_ptr<ProcessGroup> group(new ProcessGroup(options));
  const LaunchInfo& launch = options.launch;
  std::vector<int64_t> all(static_cast<size_t>(launch.world_size));
  std::iota(all.begin(), all.end(), 0);
  if (!launch.distributed()) {
    group->world_ = std::make_unique<Communicator>(make_local_transport());
    return group;
  }
  StoreAddress address;
  address.host = launch.master_addr;
  address.port = launch.master_port;
  address.serve = launch.rank == 0 && !launch.agent_store;
  // Two runs that meet at one port by mistake must not read each other's keys, and a group that
  // torchrun starts again must not read those of the dead one.
  address.prefix = fmt::format("longship/{}/{}", launch.job_id, launch.restart_count);
  address.timeout_s = options.setup_timeout_s;
  group->store_ = open_in_time(address, launch);

  HandshakeOptions handshake;
  handshake.rank = launch.rank;
  handshake.world_size = launch.world_size;
  handshake.timeout_s = options.setup_timeout_s;
  handshake.note = launch.note;
  handshake.facts = options.facts;
  handshake.facts.emplace_back("number of ranks", fmt::format("{}", launch.world_size));
  handshake.facts.emplace_back("backend", options.cuda ? "nccl" : "gloo");
  try {
    shake_hands(*group->store_, handshake);
    group->world_ =
        group->make_communicator("world", launch.rank, all, options.cuda, options.transport);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError(fmt::format("rank {}: the set-up of {} ranks failed: {}", launch.rank,
                                launch.world_size, first_line(error.what())));
  }
  return group;
}

std::unique_ptr<Communicator> ProcessGroup::make_communicator(const std::string& name, int64_t rank,
                                                              const std::vector<int64_t>& ranks,
                                                              bool cuda, CudaTransport transport) {
  BackendOptions backend;
  backend.group = name;
  backend.rank = rank;
  backend.world_size = static_cast<int64_t>(ranks.size());
  backend.master_host = options_.launch.master_addr;
  backend.master_port = options_.launch.master_port;
  backend.device_index = options_.launch.local_rank;
  backend.transport = transport;
  backend.setup_timeout_s = options_.setup_timeout_s;
  backend.timeout_s = options_.collective_timeout_s;
  CommunicatorOptions communicator;
  communicator.group = name;
  communicator.global_ranks = ranks;
  communicator.flight_folder = options_.flight_folder;
  communicator.warn_after_s = options_.warn_after_s;
  communicator.explain = [this](const FlightEntry& failed) { return explain(failed); };
  return std::make_unique<Communicator>(
      cuda ? make_cuda_transport(*store_, backend) : make_gloo_transport(*store_, backend),
      std::move(communicator));
}

std::unique_ptr<Communicator> ProcessGroup::make_group(const std::string& name,
                                                       const std::vector<int64_t>& ranks, bool cuda,
                                                       CudaTransport transport) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  LS_CHECK(own != ranks.end(), InternalError, "group '{}': rank {} is not among {}", name, rank(),
           describe_ranks(ranks));
  if (ranks.size() == 1) {
    CommunicatorOptions options;
    options.group = name;
    options.global_ranks = ranks;
    return std::make_unique<Communicator>(make_local_transport(), std::move(options));
  }
  try {
    // The first member in the name: disjoint groups of one layout may share their name.
    return make_communicator(fmt::format("{}_{}", name, ranks.front()), own - ranks.begin(), ranks,
                             cuda, transport);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError(fmt::format("rank {}: group '{}' of {} could not be made: {}", rank(), name,
                                describe_ranks(ranks), first_line(error.what())));
  }
}

void ProcessGroup::report_failure(const std::string& why) noexcept {
  try {
    if (!store_) return;
    store_->set(failure_key(rank()), why);
    reported_ = true;
  } catch (const std::exception&) {
    // The store is gone with rank 0; there is nobody left to tell.
  }
}

// Who is to blame? Every rank whose collective failed says so; one that ran into an error of its
// own has said that before. The silent ones are dead, hang, or are still busy.
std::string ProcessGroup::explain(const FlightEntry& failed) {
  if (!store_) return "";
  std::vector<std::string> said(static_cast<size_t>(world_size()));
  said[static_cast<size_t>(rank())] = std::string(kVictim) + failed.name;
  const auto said_by = [&](int64_t r) -> std::string& { return said[static_cast<size_t>(r)]; };
  bool store_lost = false;
  try {
    if (!store_->has(failure_key(rank()))) store_->set(failure_key(rank()), said_by(rank()));
    const auto listen = [&] {
      bool all = true;
      for (int64_t r = 0; r < world_size(); ++r) {
        if (said_by(r).empty() && store_->has(failure_key(r))) {
          said_by(r) = store_->get(failure_key(r));
        }
        all = all && !said_by(r).empty();
      }
      return all;
    };
    const Clock::time_point begin = Clock::now();
    while (!listen() && seconds_since(begin) < options_.report_wait_s) {
      std::this_thread::sleep_for(kPoll);
    }
    store_->add("explained", 1);
    linger(std::count_if(said.begin(), said.end(),
                         [](const std::string& text) { return text.starts_with(kVictim); }));
  } catch (const std::exception&) {
    store_lost = true;
  }
  std::vector<int64_t> silent;
  std::string out;
  for (int64_t r = 0; r < world_size(); ++r) {
    if (said_by(r).empty()) silent.push_back(r);
    if (said_by(r).empty() || said_by(r).starts_with(kVictim)) continue;
    out += fmt::format("{}rank {} reported: {}", out.empty() ? "" : "; ", r, said_by(r));
  }
  const std::string_view separator = out.empty() ? "" : "; ";
  if (store_lost && !options_.launch.agent_store && said_by(0).empty()) {
    return fmt::format("{}{}rank 0, which holds the store, has ended or cannot be reached", out,
                       separator);
  }
  if (silent.empty()) return out;
  return fmt::format("{}{}no word within {:g} s from {}: dead, hanging or still busy", out,
                     separator, options_.report_wait_s, describe_ranks(silent));
}

// Rank 0 takes the store with it: it stays until so many ranks have read the reports.
void ProcessGroup::linger(int64_t readers) {
  if (rank() != 0 || options_.launch.agent_store) return;
  const Clock::time_point begin = Clock::now();
  while (store_->add("explained", 0) < readers &&
         seconds_since(begin) < options_.report_wait_s + 1) {
    std::this_thread::sleep_for(kPoll);
  }
}

void ProcessGroup::start_heartbeat() {
  if (!store_ || heartbeat_.joinable()) return;
  heartbeat_ = std::jthread([this](const std::stop_token& stop) { beat(stop); });
}

void ProcessGroup::beat(const std::stop_token& stop) {
  std::unique_lock lock(beat_mutex_);
  try {
    while (!stop.stop_requested()) {
      store_->add(alive_key(rank()), 1);
      beat_wake_.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
    }
  } catch (const std::exception&) {
    // The store is gone, which whoever waits for a peer finds out by itself.
  }
}

void ProcessGroup::check_peers(double silent_s) {
  if (!store_) return;
  const Clock::time_point now = Clock::now();
  const bool fresh = heard_.empty();
  heard_.resize(static_cast<size_t>(world_size()), {-1, now});
  std::vector<int64_t> silent;
  std::string reports;
  try {
    for (int64_t r = 0; r < world_size(); ++r) {
      if (r == rank()) continue;
      if (store_->has(failure_key(r))) {
        const std::string said = store_->get(failure_key(r));
        reports += fmt::format("{}rank {} reported: {}", reports.empty() ? "" : "; ", r, said);
      }
      Heard& heard = heard_[static_cast<size_t>(r)];
      const int64_t beats = store_->add(alive_key(r), 0);
      if (beats != heard.beats) heard = {beats, now};
      if (!fresh && seconds_since(heard.at) > silent_s) silent.push_back(r);
    }
  } catch (const std::exception& error) {
    throw PeerError(
        fmt::format("rank {}: the store of {} does not answer any more, so it has ended "
                    "({})",
                    rank(), options_.launch.agent_store ? "torchrun's agent" : "rank 0",
                    first_line(error.what())));
  }
  LS_CHECK(reports.empty(), PeerError, "rank {} waits for its peers in vain: {}", rank(), reports);
  LS_CHECK(silent.empty(), PeerError,
           "rank {} waits for its peers in vain: no sign of life from {} for {:g} s", rank(),
           describe_ranks(silent), silent_s);
}

void ProcessGroup::close() {
  if (!store_) return;
  world_->barrier("end of the run");
  try {
    store_->add("closed", 1);
    const Clock::time_point begin = Clock::now();
    while (rank() == 0 && store_->add("closed", 0) < world_size() &&
           seconds_since(begin) < kGrace) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  } catch (const std::exception&) {
    // All ranks have passed the barrier: rank 0 may have left with the store already.
  }
}

}  // namespace longship::dist
