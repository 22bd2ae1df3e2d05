// Metadata and tables of a LeRobot dataset: the first byte chooses a file of a small sound dataset,
// the other bytes replace it. Whatever they are, reading ends with findings: no crash, no hang, no
// unbounded memory. Videos have a target of their own.
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "base/error.h"
#include "data/checks.h"
#include "data/lerobot/layout.h"
#include "data/lerobot/stored_stats.h"
#include "data/lerobot/table.h"
#include "data/lerobot/write/plan.h"

namespace {

namespace fs = std::filesystem;
using namespace longship;

struct Target {
  const char* base;
  const char* file;
};

constexpr std::array<Target, 9> kTargets = {
    {{"base_v21", "meta/info.json"},
     {"base_v21", "meta/tasks.jsonl"},
     {"base_v21", "meta/episodes.jsonl"},
     {"base_v21", "meta/episodes_stats.jsonl"},
     {"base_v21", "data/chunk-000/episode_000001.parquet"},
     {"base_v30", "meta/tasks.parquet"},
     {"base_v30", "meta/episodes/chunk-000/file-000.parquet"},
     {"base_v30", "meta/stats.json"},
     {"base_v30", "data/chunk-000/file-000.parquet"}}};

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Copies of the bases in memory; one file of one of them differs during a run.
class Sandbox {
 public:
  Sandbox() : root_("/dev/shm/longship_dataset_fuzz_" + std::to_string(::getpid())) {
    const fs::path bases = fs::path(LS_SOURCE_ROOT) / "tests/data_sets/broken";
    for (const char* base : {"base_v21", "base_v30"}) {
      fs::create_directories(root_ / base);
      fs::copy(bases / base, root_ / base,
               fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    }
    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
      fs::permissions(entry.path(), fs::perms::owner_all, fs::perm_options::add);
    }
    for (size_t i = 0; i < kTargets.size(); ++i) sound_[i] = bytes_of(path(i));
  }
  ~Sandbox() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  fs::path root(size_t target) const { return root_ / kTargets[target].base; }
  void write(size_t target, const char* data, size_t size) const {
    std::ofstream(path(target), std::ios::binary).write(data, static_cast<std::streamsize>(size));
  }
  void restore(size_t target) const { write(target, sound_[target].data(), sound_[target].size()); }

 private:
  fs::path path(size_t target) const { return root(target) / kTargets[target].file; }

  fs::path root_;
  std::array<std::string, kTargets.size()> sound_;
};

void read(const fs::path& root) {
  data::Findings findings;
  std::optional<data::lerobot::Layout> layout = data::lerobot::read_layout(root, findings);
  if (layout) {
    data::lerobot::Table table = data::lerobot::read_table(*layout, findings);
    data::lerobot::check_rows(*layout, table, {}, findings);
    data::lerobot::check_images(*layout, table, findings);
    const auto stats = data::lerobot::read_stored_stats(*layout, findings);
    data::lerobot::check_stats(*layout, table, stats, {}, findings);
    data::lerobot::read_camera_stats(*layout);
  }
  for (const data::Finding& finding : findings.list()) {
    if (data::format_finding(finding).empty()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Sandbox sandbox;
  if (size == 0) return 0;
  const size_t target = data[0] % kTargets.size();
  sandbox.write(target, reinterpret_cast<const char*>(data + 1), size - 1);
  read(sandbox.root(target));
  sandbox.restore(target);
  return 0;
}
