#include "dist/communicator.h"

#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"

namespace longship::dist {
namespace {

class Finished : public Pending {
 public:
  bool done() override { return true; }
  void wait() override {}
};

// As ring_bytes(), of the collective's whole tensor.
int64_t sent_bytes(CollectiveKind kind, int64_t world_size, const at::Tensor& whole) {
  return ring_bytes(kind, world_size, static_cast<int64_t>(whole.nbytes()));
}

// The group of one rank.
class LocalTransport : public Transport {
 public:
  std::string name() const override { return "local"; }
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  std::unique_ptr<Pending> all_reduce(at::Tensor, ReduceOp) override { return finished(); }
  std::unique_ptr<Pending> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp) override {
    return copy(output, input);
  }
  std::unique_ptr<Pending> all_gather(at::Tensor output, at::Tensor input) override {
    return copy(output, input);
  }
  std::unique_ptr<Pending> broadcast(at::Tensor, int64_t) override { return finished(); }
  std::unique_ptr<Pending> barrier() override { return finished(); }
  void abort() override {}

 private:
  static std::unique_ptr<Pending> finished() { return std::make_unique<Finished>(); }
  static std::unique_ptr<Pending> copy(at::Tensor& output, const at::Tensor& input) {
    if (output.data_ptr() != input.data_ptr()) output.copy_(input);
    return finished();
  }
};

void check_tensor(const at::Tensor& t, std::string_view what, std::string_view name) {
  LS_CHECK(t.defined() && t.is_contiguous(), ShapeError, "collective '{}': {} must be contiguous",
           name, what);
  const at::ScalarType type = t.scalar_type();
  LS_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kDouble ||
               type == at::kLong || type == at::kByte,
           ShapeError, "collective '{}': dtype {} of {} is none of fp32, bf16, fp64, int64, uint8",
           name, c10::toString(type), what);
}

// bf16 that is added up into fp32.
bool widened(const at::Tensor& output, const at::Tensor& input) {
  return output.scalar_type() == at::kFloat && input.scalar_type() == at::kBFloat16;
}

void check_parts(const at::Tensor& whole, const at::Tensor& part, int64_t world_size,
                 std::string_view name, bool may_widen = false) {
  check_tensor(whole, "the whole tensor", name);
  check_tensor(part, "the rank's part", name);
  const bool types =
      whole.scalar_type() == part.scalar_type() || (may_widen && widened(part, whole));
  LS_CHECK(types && whole.numel() == part.numel() * world_size, ShapeError,
           "collective '{}': {} x {} elements ({}) do not make {} elements ({})", name, world_size,
           part.numel(), c10::toString(part.scalar_type()), whole.numel(),
           c10::toString(whole.scalar_type()));
}

}  // namespace

std::unique_ptr<Pending> Transport::all_reduce_into(at::Tensor, at::Tensor, ReduceOp) {
  throw InternalError(fmt::format("transport {} does not widen", name()));
}

std::unique_ptr<Transport> make_local_transport() {
  return std::make_unique<LocalTransport>();
}

std::string_view collective_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kBarrier:
      break;
  }
  return "barrier";
}

int64_t ring_bytes(CollectiveKind kind, int64_t world_size, int64_t num_bytes) {
  if (kind == CollectiveKind::kBarrier) return 0;
  const int64_t rounds = kind == CollectiveKind::kAllReduce ? 2 : 1;
  return rounds * (world_size - 1) * num_bytes / world_size;
}

CollectiveCounter& CollectiveCounter::operator+=(const CollectiveCounter& other) {
  count += other.count;
  tensor_bytes += other.tensor_bytes;
  wire_bytes += other.wire_bytes;
  elapsed_ms += other.elapsed_ms;
  exposed_ms += other.exposed_ms;
  return *this;
}

int64_t widened_all_reduce_bytes(int64_t world_size, int64_t input_bytes, int64_t output_bytes) {
  return (world_size - 1) * (input_bytes + output_bytes) / world_size;
}

std::map<std::string, CollectiveCounter> difference(
    const std::map<std::string, CollectiveCounter>& after,
    const std::map<std::string, CollectiveCounter>& before) {
  std::map<std::string, CollectiveCounter> out;
  for (const auto& [name, counter] : after) {
    CollectiveCounter moved = counter;
    const auto found = before.find(name);
    if (found != before.end()) {
      moved.count -= found->second.count;
      moved.tensor_bytes -= found->second.tensor_bytes;
      moved.wire_bytes -= found->second.wire_bytes;
      moved.elapsed_ms -= found->second.elapsed_ms;
      moved.exposed_ms -= found->second.exposed_ms;
    }
    if (moved.count > 0) out.emplace(name, moved);
  }
  return out;
}

struct Handle::State {
  Communicator* owner = nullptr;
  FlightEntry entry;  // as launched
  std::string counter;
  std::unique_ptr<Pending> pending;
  std::vector<at::Tensor> kept;  // alive until the end
  bool finished = false;
};

bool Handle::done() const {
  return !state_ || state_->finished || state_->pending->done();
}

void Handle::wait() {
  if (!state_ || state_->finished) return;
  state_->owner->await(*state_);
}

Communicator::Communicator(std::unique_ptr<Transport> transport, CommunicatorOptions options)
    : transport_(std::move(transport)),
      options_(std::move(options)),
      rank_(transport_->rank()),
      world_size_(transport_->world_size()),
      begin_(std::chrono::steady_clock::now()) {
  const bool watched = options_.warn_after_s > 0 || options_.lost_after_s > 0;
  if (watched && world_size_ > 1) watchdog_ = std::thread([this] { watch(); });
}

Communicator::~Communicator() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_signal_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
}

std::string Communicator::backend() const {
  return transport_->name();
}

double Communicator::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

int64_t Communicator::global_rank(int64_t rank) const {
  return options_.global_ranks.empty() ? rank : options_.global_ranks[static_cast<size_t>(rank)];
}

std::string Communicator::describe(const FlightEntry& entry) const {
  return fmt::format("{} '{}' of step {} (number {} of group '{}')", collective_name(entry.kind),
                     entry.name, entry.step, entry.sequence, options_.group);
}

FlightEntry* Communicator::find(int64_t sequence) {
  if (flight_.empty() || sequence < flight_.front().sequence) return nullptr;
  return &flight_[static_cast<size_t>(sequence - flight_.front().sequence)];
}

void Communicator::time_on(at::Device device) {
  clock_ = std::make_unique<DeviceClock>(device);
}

void Communicator::add_times(const StepTimes& times) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, ms] : times.collectives) counters_[name].elapsed_ms += ms;
}

Handle Communicator::launch(CollectiveKind kind, const at::Tensor& whole, int64_t wire_bytes,
                            const std::string& name, const std::string& detail,
                            const std::function<std::unique_ptr<Pending>(Transport&)>& start) {
  auto state = std::make_shared<Handle::State>();
  state->owner = this;
  state->counter = name;
  FlightEntry& entry = state->entry;
  entry.kind = kind;
  entry.name = detail.empty() ? name : name + " " + detail;
  entry.dtype = whole.defined() ? c10::toString(whole.scalar_type()) : "";
  entry.numel = whole.defined() ? whole.numel() : 0;
  CollectiveCounter counted;
  counted.count = 1;
  counted.tensor_bytes = whole.defined() ? static_cast<int64_t>(whole.nbytes()) : 0;
  counted.wire_bytes = wire_bytes;
  {
    const std::lock_guard lock(mutex_);
    entry.sequence = next_sequence_++;
    entry.step = step_;
    entry.launched_s = now();
    flight_.push_back(entry);
    if (static_cast<int64_t>(flight_.size()) > options_.flight_capacity) flight_.pop_front();
    counters_[name] += counted;
  }
  try {
    if (clock_) clock_->collective_begins();
    state->pending = start(*transport_);
    if (clock_) clock_->collective_launched(*state->pending, name);
  } catch (const std::exception& error) {
    fail(entry, error.what());
  }
  Handle handle;
  handle.state_ = std::move(state);
  return handle;
}

void Communicator::await(Handle::State& state) {
  const double from = now();
  {
    const std::lock_guard lock(mutex_);
    waiting_ = state.entry.sequence;
    if (FlightEntry* entry = find(state.entry.sequence)) entry->waited_s = from;
  }
  state.entry.waited_s = from;
  std::string reason;
  bool failed = false;
  try {
    const WaitTime timed(*this);
    state.pending->wait();
  } catch (const std::exception& error) {
    failed = true;
    reason = error.what();
  }
  const double until = now();
  state.finished = true;
  {
    const std::lock_guard lock(mutex_);
    waiting_.reset();
    FlightEntry* entry = find(state.entry.sequence);
    if (entry != nullptr && !failed) entry->finished_s = until;
    if (!clock_) {  // on a device the host does not wait
      CollectiveCounter spent;
      spent.elapsed_ms = 1e3 * (until - state.entry.launched_s);
      spent.exposed_ms = 1e3 * (until - from);
      counters_[state.counter] += spent;
    }
  }
  if (failed) fail(state.entry, reason);
  state.kept.clear();
}

void Communicator::fail(const FlightEntry& entry, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (FlightEntry* kept = find(entry.sequence)) kept->failed = true;
  }
  // The backend's text is one line of a person's language followed by frames of the library.
  std::string text = reason.substr(0, reason.find('\n'));
  std::string message = fmt::format("rank {}: {} failed after {:.1f} s: {}", global_rank(rank_),
                                    describe(entry), now() - entry.launched_s, text);
  if (options_.explain) {
    const std::string more = options_.explain(entry);
    if (!more.empty()) message += "; " + more;
  }
  const std::string file = save_flight_record();
  if (!file.empty()) message += fmt::format("; flight record: {}", file);
  throw PeerError(message);
}

Handle Communicator::all_reduce(const at::Tensor& tensor, ReduceOp op, const std::string& name,
                                const std::string& detail) {
  check_tensor(tensor, "the tensor", name);
  constexpr auto kKind = CollectiveKind::kAllReduce;
  Handle handle = launch(kKind, tensor, sent_bytes(kKind, world_size_, tensor), name, detail,
                         [&](Transport& t) { return t.all_reduce(tensor.flatten(), op); });
  handle.state_->kept = {tensor};
  return handle;
}

Handle Communicator::all_reduce_into(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                     const std::string& name, const std::string& detail) {
  check_tensor(output, "the result", name);
  check_tensor(input, "the input", name);
  LS_CHECK(widens(), InternalError, "collective '{}': transport {} does not widen", name,
           backend());
  LS_CHECK(widened(output, input) && output.numel() == input.numel() && op != ReduceOp::kMax,
           ShapeError,
           "collective '{}': {} elements ({}) into {} elements ({}); sums or means of bf16 into as "
           "many of fp32",
           name, input.numel(), c10::toString(input.scalar_type()), output.numel(),
           c10::toString(output.scalar_type()));
  constexpr auto kKind = CollectiveKind::kAllReduce;
  const int64_t sent =
      transport_->moves_narrow(input)
          ? widened_all_reduce_bytes(world_size_, static_cast<int64_t>(input.nbytes()),
                                     static_cast<int64_t>(output.nbytes()))
          : sent_bytes(kKind, world_size_, output);
  Handle handle = launch(kKind, input, sent, name, detail, [&](Transport& t) {
    return t.all_reduce_into(output.flatten(), input.flatten(), op);
  });
  handle.state_->kept = {output, input};
  return handle;
}

Handle Communicator::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                    const std::string& name, const std::string& detail) {
  check_parts(input, output, world_size_, name, widens());
  constexpr auto kKind = CollectiveKind::kReduceScatter;
  const bool wide = widened(output, input) && !transport_->moves_narrow(input);
  const int64_t sent = (wide ? 2 : 1) * sent_bytes(kKind, world_size_, input);
  Handle handle = launch(kKind, input, sent, name, detail,
                         [&](Transport& t) { return t.reduce_scatter(output, input, op); });
  handle.state_->kept = {output, input};
  return handle;
}

Handle Communicator::all_gather(const at::Tensor& output, const at::Tensor& input,
                                const std::string& name, const std::string& detail) {
  check_parts(output, input, world_size_, name);
  constexpr auto kKind = CollectiveKind::kAllGather;
  Handle handle = launch(kKind, output, sent_bytes(kKind, world_size_, output), name, detail,
                         [&](Transport& t) { return t.all_gather(output, input); });
  handle.state_->kept = {output, input};
  return handle;
}

Handle Communicator::broadcast(const at::Tensor& tensor, int64_t root, const std::string& name,
                               const std::string& detail) {
  check_tensor(tensor, "the tensor", name);
  LS_CHECK(root >= 0 && root < world_size_, ShapeError,
           "collective '{}': root {} is no rank of a group of {}", name, root, world_size_);
  constexpr auto kKind = CollectiveKind::kBroadcast;
  Handle handle = launch(kKind, tensor, sent_bytes(kKind, world_size_, tensor), name, detail,
                         [&](Transport& t) { return t.broadcast(tensor.flatten(), root); });
  handle.state_->kept = {tensor};
  return handle;
}

void Communicator::share(const std::vector<at::Tensor>& tensors) {
  try {
    transport_->share(tensors);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError(fmt::format("rank {}: {} tensors could not be shared in group '{}': {}",
                                global_rank(rank_), tensors.size(), options_.group, error.what()));
  }
}

void Communicator::barrier(const std::string& name) {
  launch(CollectiveKind::kBarrier, {}, 0, name, "", [](Transport& t) {
    return t.barrier();
  }).wait();
}

std::vector<double> Communicator::sum(const std::vector<double>& values, const std::string& name) {
  at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<double>());
  at::Tensor moved = host;
  if (backend() == "nccl" || backend() == "peer") moved = host.to(at::kCUDA);
  all_reduce(moved, ReduceOp::kSum, name).wait();
  host = moved.cpu();
  const double* data = host.const_data_ptr<double>();
  return {data, data + values.size()};
}

void Communicator::set_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
}

int64_t Communicator::step() const {
  const std::lock_guard lock(mutex_);
  return step_;
}

std::map<std::string, CollectiveCounter> Communicator::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void Communicator::reset_counters() {
  const std::lock_guard lock(mutex_);
  counters_.clear();
}

void Communicator::count_again(const std::map<std::string, CollectiveCounter>& captured) {
  const std::lock_guard lock(mutex_);
  for (auto [name, counter] : captured) {
    counter.elapsed_ms = counter.exposed_ms = 0;
    counters_[name] += counter;
  }
}

std::optional<Communicator::Waiting> Communicator::waiting() const {
  const std::lock_guard lock(mutex_);
  if (!waiting_ || flight_.empty() || *waiting_ < flight_.front().sequence) return std::nullopt;
  const FlightEntry& entry = flight_[static_cast<size_t>(*waiting_ - flight_.front().sequence)];
  return Waiting{entry, now() - entry.waited_s};
}

std::vector<FlightEntry> Communicator::flight_record() const {
  const std::lock_guard lock(mutex_);
  return {flight_.begin(), flight_.end()};
}

std::string Communicator::flight_record_json() const {
  nlohmann::ordered_json out;
  out["group"] = options_.group;
  out["rank"] = global_rank(rank_);
  out["world_size"] = world_size_;
  out["backend"] = backend();
  out["step"] = step();
  out["written_s"] = now();
  out["entries"] = nlohmann::ordered_json::array();
  for (const FlightEntry& entry : flight_record()) {
    const char* state = entry.failed            ? "failed"
                        : entry.finished_s >= 0 ? "finished"
                        : entry.waited_s >= 0   ? "awaited"
                                                : "launched";
    out["entries"].push_back({{"sequence", entry.sequence},
                              {"collective", collective_name(entry.kind)},
                              {"name", entry.name},
                              {"step", entry.step},
                              {"dtype", entry.dtype},
                              {"numel", entry.numel},
                              {"state", state},
                              {"launched_s", entry.launched_s},
                              {"waited_s", entry.waited_s},
                              {"finished_s", entry.finished_s}});
  }
  return out.dump(1);
}

void Communicator::write_flight_record(const std::filesystem::path& path) const {
  write_file_atomic(path, flight_record_json() + "\n");
}

// The failure itself must reach the user: a record that cannot be written is a warning.
std::string Communicator::save_flight_record() const {
  if (options_.flight_folder.empty()) return "";
  const std::filesystem::path path =
      options_.flight_folder /
      fmt::format("flight_{}_rank{}.json", options_.group, global_rank(rank_));
  try {
    write_flight_record(path);
  } catch (const std::exception& error) {
    log::warn("flight record: {}", error.what());
    return "";
  }
  return path.string();
}

void Communicator::abort() {
  transport_->abort();
}

void Communicator::watch() {
  double warn_at = options_.warn_after_s;
  double aborted_at = -1;  // seconds of waiting
  int64_t last = -1;
  std::unique_lock lock(mutex_);
  while (!stop_signal_.wait_for(lock, std::chrono::milliseconds(200), [this] { return stop_; })) {
    const FlightEntry* entry = waiting_ ? find(*waiting_) : nullptr;
    if (entry == nullptr) continue;
    if (entry->sequence != last) {
      last = entry->sequence;
      warn_at = options_.warn_after_s;
      aborted_at = -1;
    }
    const FlightEntry copy = *entry;
    const double seconds = now() - copy.waited_s;
    const std::string text = fmt::format("rank {} has waited {:.1f} s for {}", global_rank(rank_),
                                         seconds, describe(copy));
    if (options_.lost_after_s > 0 && seconds > options_.lost_after_s) {
      if (aborted_at < 0) {
        aborted_at = seconds;
        lock.unlock();
        save_flight_record();
        log::error("{}; giving up", text);
        transport_->abort();
        lock.lock();
      } else if (seconds > aborted_at + 5 && options_.on_lost) {
        lock.unlock();
        options_.on_lost(text);
        lock.lock();
      }
    } else if (options_.warn_after_s > 0 && seconds > warn_at) {
      warn_at *= 2;
      lock.unlock();
      log::warn("{}", text);
      lock.lock();
    }
  }
}

}  // namespace longship::dist
