#include "train/checkpoint_saver.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <fstream>
#include <new>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace longship::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The pinned allocator rounds sizes up to powers of two, so memory comes in chunks of this size.
constexpr uint64_t kChunkBytes = uint64_t{1} << 30;
constexpr uint64_t kAlignment = 64;
// What has to stay free beside the copy.
constexpr uint64_t kReserveBytes = uint64_t{256} << 20;

uint64_t aligned(uint64_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

std::optional<uint64_t> number_in(const std::string& file, const std::string& key) {
  std::ifstream in(file);
  if (!in) return std::nullopt;
  if (key.empty()) {
    uint64_t value = 0;
    return in >> value ? std::optional(value) : std::nullopt;  // "max" is none
  }
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

// Bytes this process may still take: of the machine, and of the control group it is in. Memory that
// is promised but not there ends a process, or the machine.
uint64_t available_memory() {
  uint64_t available = UINT64_MAX;
  if (const auto kib = number_in("/proc/meminfo", "MemAvailable:")) available = *kib * 1024;
  const auto limit = number_in("/sys/fs/cgroup/memory.max", ""),
             used = number_in("/sys/fs/cgroup/memory.current", "");
  if (limit && used) {
    const uint64_t cache = number_in("/sys/fs/cgroup/memory.stat", "inactive_file").value_or(0);
    const uint64_t held = *used - std::min(*used, cache);
    available = std::min(available, *limit - std::min(*limit, held));
  }
  return available;
}

// A rank that has nothing to save takes part all the same, so that the others learn why instead of
// waiting for it. Throws the CheckpointError that all get, unless the step is there already.
void refuse(CheckpointStore& store, CheckpointGroup& group, int64_t step, const std::string& why) {
  SavePlan plan;
  plan.step = step;
  plan.write = [&why](const std::filesystem::path&) -> std::vector<WrittenFile> {
    throw CheckpointError(why);
  };
  store.save(group, plan);
}

}  // namespace

uint64_t HostCopy::bytes() const {
  uint64_t sum = 0;
  for (const at::Tensor& chunk : chunks_) sum += static_cast<uint64_t>(chunk.numel());
  return sum;
}

void HostCopy::reserve(uint64_t num_bytes, bool pinned) {
  if (bytes() >= num_bytes && pinned_ == pinned) return;
  // Given up before the new ones are taken, so that there is never more than one copy.
  chunks_.clear();
  pinned_ = pinned;
  const uint64_t available = available_memory();
  LS_CHECK(available >= num_bytes && available - num_bytes >= kReserveBytes, CheckpointError,
           "a copy of the state needs {} and {} of memory are free", human_bytes(num_bytes),
           human_bytes(available));
  const auto options = at::TensorOptions().dtype(at::kByte).pinned_memory(pinned);
  for (uint64_t left = num_bytes; left > 0;) {
    uint64_t size = std::min(left, kChunkBytes);
    if (pinned) size = std::bit_ceil(size);
    chunks_.push_back(at::empty({static_cast<int64_t>(size)}, options));
    left -= std::min(left, size);
  }
}

SaveParts HostCopy::take(const SaveParts& parts) {
  const at::NoGradGuard no_grad;
  SaveParts out = parts;
  const at::Device device =
      parts.state.empty() ? at::Device(at::kCPU) : parts.state.front().tensor.device();
  uint64_t needed = 0;
  for (const StateSlice& s : parts.state) {
    needed += aligned(static_cast<uint64_t>(s.tensor.numel()) * s.tensor.element_size());
  }
  reserve(needed, device.is_cuda());
  runtime::synchronize(device);
  const runtime::Stream stream = runtime::Stream::make(device);
  {
    const runtime::StreamScope scope(stream);
    out.state.clear();
    size_t chunk = 0;
    int64_t used = 0;
    for (const StateSlice& s : parts.state) {
      const auto width = static_cast<int64_t>(s.tensor.element_size());
      const at::Tensor flat = s.tensor.detach().view({-1});
      int64_t done = 0;
      // A slice that does not fit the rest of a chunk is cut there; writing joins the pieces.
      do {
        const int64_t room = chunk < chunks_.size() ? (chunks_[chunk].numel() - used) / width : 0;
        if (room == 0 && flat.numel() > 0) {
          ++chunk;
          used = 0;
          continue;
        }
        const int64_t count = std::min(room, flat.numel() - done);
        StateSlice piece{s.name, s.begin + done, s.begin + done + count, s.shape,
                         at::empty({0}, flat.options().device(at::kCPU))};
        if (count > 0) {
          piece.tensor = chunks_[chunk].narrow(0, used, count * width).view(flat.scalar_type());
          piece.tensor.copy_(flat.narrow(0, done, count), /*non_blocking=*/true);
        }
        out.state.push_back(std::move(piece));
        used += static_cast<int64_t>(aligned(static_cast<uint64_t>(count * width)));
        used = std::min(used, chunk < chunks_.size() ? chunks_[chunk].numel() : 0);
        done += count;
      } while (done < flat.numel());
    }
    for (auto& [name, tensor] : out.policy_state) tensor = tensor.detach().to(at::kCPU).clone();
    for (ExportTensor& t : out.model) {
      if (t.literal_moves) t.literal = t.literal.to(at::kCPU).clone();
    }
  }
  stream.synchronize();
  return out;
}

CheckpointSaver::CheckpointSaver(CheckpointStore& store, CheckpointGroup& group,
                                 SaverOptions options)
    : store_(store), group_(group), options_(options) {}

CheckpointSaver::~CheckpointSaver() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointSaver::assume_saved(int64_t step, const std::filesystem::path& folder) {
  keep_saved(step, folder);
}

void CheckpointSaver::keep_saved(int64_t step, const std::filesystem::path& folder) {
  saved_step_ = step;
  newest_ = folder;
}

void CheckpointSaver::wait() {
  if (!thread_.joinable()) return;
  const auto before = Clock::now();
  thread_.join();
  const double seconds = seconds_since(before);
  if (seconds > 1) {
    log::info("waited {} for the checkpoint before", human_duration(seconds));
  }
  if (lost_peer_) std::rethrow_exception(std::exchange(lost_peer_, nullptr));
}

void CheckpointSaver::write(const SaveParts& parts) {
  keep_saved(parts.step, save_parts(store_, group_, parts));
  std::exception_ptr fault;
  group_.working([&] {
    if (group_.rank() != 0) return;
    try {
      store_.prune(parts.step, options_.keep_last, options_.keep_every);
    } catch (const std::exception&) {
      fault = std::current_exception();
    }
  });
  if (fault) std::rethrow_exception(fault);
}

void CheckpointSaver::write_in_background(const SaveParts& parts) {
  const auto before = Clock::now();
  try {
    write(parts);
    log::info("checkpoint {} (written in {}, while training went on)", newest_.string(),
              human_duration(seconds_since(before)));
  } catch (const Error& error) {
    if (error.code() == ExitCode::kPeer) {
      lost_peer_ = std::current_exception();
    } else {
      log::warn("{}; training goes on, and the next checkpoint tries again", error.what());
    }
  } catch (const std::exception& error) {
    log::warn("could not save the checkpoint {}: {}; training goes on",
              store_.folder_of(parts.step).string(), error.what());
  }
}

// A failure here ends the run.
void CheckpointSaver::write_or_stop(const SaveParts& parts) {
  const auto before = Clock::now();
  try {
    write(parts);
  } catch (const CheckpointError& error) {
    throw CheckpointError(
        fmt::format("{}, then start the same command again to resume", error.what()));
  }
  log::info("checkpoint {} ({})", newest_.string(), human_duration(seconds_since(before)));
}

void CheckpointSaver::begin(int64_t step, const std::function<SaveParts()>& make) {
  wait();
  if (saved_step_ == step) return;
  SaveParts parts;
  std::string why;
  try {
    parts = make();
    if (options_.async) parts = copy_.take(parts);
  } catch (const CheckpointError& error) {
    why = error.what();
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
  } catch (const std::bad_alloc&) {
    why = "no memory for a copy of the state";
  }
  if (!options_.async) {
    if (why.empty()) return write_or_stop(parts);
    refuse(store_, group_, step, why);
    return keep_saved(step, store_.folder_of(step));
  }
  if (why.empty()) {
    thread_ = std::thread([this, kept = std::move(parts)] { write_in_background(kept); });
    return;
  }
  if (parts.step != step) {  // make() failed
    try {
      refuse(store_, group_, step, why);
      keep_saved(step, store_.folder_of(step));
    } catch (const CheckpointError& error) {
      log::warn("{}; training goes on, and the next checkpoint tries again", error.what());
    }
    return;
  }
  log::warn(
      "{}: this checkpoint is written while training waits; checkpoint.async=false says so without "
      "this line",
      why);
  write_in_background(parts);
}

void CheckpointSaver::finish(int64_t step, const std::function<SaveParts()>& make) {
  wait();
  if (saved_step_ == step) return;
  SaveParts parts;
  std::string why;
  try {
    parts = make();
  } catch (const std::exception& error) {
    why = error.what();
  }
  if (why.empty()) return write_or_stop(parts);
  refuse(store_, group_, step, why);
  keep_saved(step, store_.folder_of(step));
}

}  // namespace longship::train
