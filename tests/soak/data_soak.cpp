// Reads shuffled batches of several datasets for a given time and writes down every sample id with
// a checksum of all its values and pixels. Killed at any moment and started again, with any number
// of workers, it goes on where its log ends. `data_soak verify` compares the log with the order
// that a run without interruption would have had. tools/soak.py drives it.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "base/ordered_prefetch.h"
#include "data/lerobot/lerobot_dataset.h"
#include "data/mixture.h"
#include "data/sampler.h"
#include "io/tfevents.h"

namespace longship {
namespace {

constexpr int64_t kBatch = 16;
constexpr uint64_t kSeed = 7;
constexpr int64_t kHorizon = 50;

struct Read {
  int64_t id = 0;
  uint32_t checksum = 0;
};
using Batch = std::vector<Read>;

std::shared_ptr<data::MixtureDataset> open(const std::vector<std::string>& paths) {
  std::vector<data::MixturePart> parts;
  for (const std::string& path : paths) {
    data::MixturePart part;
    part.dataset = data::open_lerobot(path, {});
    part.name = fmt::format("part{}", parts.size());
    parts.push_back(std::move(part));
  }
  return std::make_shared<data::MixtureDataset>(std::move(parts), "observation.state", "action");
}

/// Every second dataset by blocks of episodes, the others fully shuffled.
data::ShuffledStream stream_of(const data::MixtureDataset& mixture) {
  std::vector<std::shared_ptr<const data::SampleOrder>> orders;
  std::vector<double> weights;
  for (size_t p = 0; p < mixture.parts().size(); ++p) {
    const data::MixturePart& part = mixture.parts()[p];
    std::vector<data::IdRange> episodes;
    for (const data::Episode& episode : part.dataset->episodes()) {
      const int64_t first = part.first_sample + episode.first_sample;
      if (episode.length > 0) episodes.push_back({first, first + episode.length});
    }
    if (p % 2 == 0) {
      data::IdRanges ids;
      for (const data::IdRange& episode : episodes) ids.append(episode);
      orders.push_back(std::make_shared<data::FullShuffle>(std::move(ids), kSeed, p));
    } else {
      orders.push_back(std::make_shared<data::BlockShuffle>(episodes, 3, kSeed, p));
    }
    weights.push_back(static_cast<double>(part.dataset->size()));
  }
  return {std::make_shared<data::WeightedMix>(orders, weights, kSeed), kBatch};
}

data::WindowSpec windows_of(const data::MixtureDataset& mixture) {
  data::WindowSpec out;
  for (int64_t i = 0; i < kHorizon; ++i) out.columns["action"].push_back(i);
  out.columns["observation.state"] = {-1, 0};
  for (const std::string& camera : mixture.cameras()) {
    const data::Feature* feature = mixture.find_feature(camera);
    if (feature != nullptr && feature->dtype != "depth") out.cameras[camera] = {0};
  }
  return out;
}

uint32_t checksum_of(const data::RawSample& sample) {
  std::string bytes = sample.task;
  const auto add = [&bytes](const auto& values) {
    bytes.append(reinterpret_cast<const char*>(values.data()),
                 values.size() * sizeof(*values.data()));
  };
  for (const auto& [name, window] : sample.columns) {
    add(window.values);
    add(window.is_pad);
  }
  for (const auto& [name, window] : sample.cameras) {
    for (const data::ImagePtr& frame : window.frames) add(frame->rgb);
  }
  return io::crc32c(std::as_bytes(std::span(bytes)));
}

/// Whole lines of the log. A last line without an end is of a step that was killed; it is cut off.
std::vector<Batch> read_log(const std::string& path) {
  std::vector<Batch> out;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  if (whole < text.size()) {
    text.resize(whole);
    write_file_atomic(path, text);
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Batch batch;
    char colon = 0;
    for (Read r; words >> r.id >> colon >> r.checksum;) batch.push_back(r);
    out.push_back(std::move(batch));
  }
  return out;
}

int64_t resident_kb() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE) / 1024;
}

int run(const std::string& log, double seconds, int64_t workers,
        const std::vector<std::string>& paths) {
  const auto mixture = open(paths);
  const data::ShuffledStream stream = stream_of(*mixture);
  const data::WindowSpec windows = windows_of(*mixture);
  const auto first = static_cast<int64_t>(read_log(log).size());
  OrderedPrefetcher<Batch> prefetcher(
      workers, 4,
      [&](int64_t step) {
        Batch out;
        for (const data::RawSample& sample : mixture->get_batch(stream.batch(step), windows)) {
          out.push_back({sample.sample_id, checksum_of(sample)});
        }
        return out;
      },
      first);
  std::FILE* file = std::fopen(log.c_str(), "ab");
  LS_CHECK(file != nullptr, DataError, "{} cannot be written", log);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double next_report = 0;
  for (int64_t step = first; elapsed() < seconds; ++step) {
    std::string line;
    for (const Read& r : prefetcher.next()) line += fmt::format("{}:{} ", r.id, r.checksum);
    line += "\n";
    std::fwrite(line.data(), 1, line.size(), file);
    std::fflush(file);
    if (elapsed() < next_report) continue;
    next_report = elapsed() + 5;
    fmt::print("step {} resident_kb {}\n", step, resident_kb());
    std::fflush(stdout);
  }
  std::fclose(file);
  return 0;
}

int verify(const std::string& log, const std::vector<std::string>& paths) {
  const auto mixture = open(paths);
  const data::ShuffledStream stream = stream_of(*mixture);
  const std::vector<Batch> batches = read_log(log);
  std::map<int64_t, uint32_t> checksums;
  int64_t again = 0;
  for (size_t step = 0; step < batches.size(); ++step) {
    const std::vector<int64_t> expected = stream.batch(static_cast<int64_t>(step));
    LS_CHECK(batches[step].size() == expected.size(), DataError, "step {}: {} samples, not {}",
             step, batches[step].size(), expected.size());
    for (size_t k = 0; k < expected.size(); ++k) {
      const Read& r = batches[step][k];
      LS_CHECK(r.id == expected[k], DataError, "step {} place {}: sample {}, expected {}", step, k,
               r.id, expected[k]);
      const auto [found, is_new] = checksums.emplace(r.id, r.checksum);
      again += is_new ? 0 : 1;
      LS_CHECK(found->second == r.checksum, DataError,
               "step {}: sample {} has other values than before", step, r.id);
    }
  }
  fmt::print("{} steps, {} samples, {} of {} ids, {} read again with equal bits\n", batches.size(),
             batches.size() * kBatch, checksums.size(), mixture->size(), again);
  return 0;
}

}  // namespace
}  // namespace longship

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    if (args.size() >= 5 && args[0] == "run") {
      return longship::run(args[1], std::stod(args[2]), std::stoll(args[3]),
                           {args.begin() + 4, args.end()});
    }
    if (args.size() >= 3 && args[0] == "verify") {
      return longship::verify(args[1], {args.begin() + 2, args.end()});
    }
    std::fputs("usage: data_soak run LOG SECONDS WORKERS DATASET... | verify LOG DATASET...\n",
               stderr);
    return 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "data_soak: {}\n", e.what());
    return 3;
  }
}
