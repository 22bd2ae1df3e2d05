// A dataset of a million frames opens fast and small. The set is written by make_index_set.py.

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include "data/lerobot/lerobot_dataset.h"
#include "data/sampler.h"
#include "support/paths.h"
#include "support/process.h"

namespace longship::data {
namespace {

// AddressSanitizer takes several times the time and the memory.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

namespace fs = std::filesystem;

/// A line of /proc/self/status in MB.
double status_mb(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":"))
      return std::strtod(line.c_str() + key.size() + 1, nullptr) / 1024;
  }
  return 0;
}

fs::path make_set(const std::string& name, int64_t frames, int64_t episodes,
                  const std::vector<std::string>& more = {}) {
  const fs::path root = testing::scratch_dir("large") / name;
  std::vector<std::string> command = {".venv/bin/python", "tests/data/make_index_set.py",
                                      root.string(), std::to_string(frames),
                                      std::to_string(episodes)};
  command.insert(command.end(), more.begin(), more.end());
  const testing::ProcessResult result = testing::run(command);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return root;
}

TEST(LargeDataset, AMillionFramesOpenInTwoSecondsAnd300Megabytes) {
  const fs::path root = make_set("million", 1'000'000, 2500);
  ::malloc_trim(0);
  const double before = status_mb("VmRSS");
  // The peak of this process counts from here on.
  std::ofstream("/proc/self/clear_refs") << "5";
  timespec start{}, end{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
  const auto dataset = open_lerobot(root);
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  const double cpu_s = static_cast<double>(end.tv_sec - start.tv_sec) +
                       1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec);
  const double peak = status_mb("VmHWM");
  fmt::print("opened in {:.2f} s of CPU time; {:.0f} MB at the peak, {:.0f} MB before\n", cpu_s,
             peak, before);
  EXPECT_EQ(dataset->size(), 1'000'000);
  EXPECT_EQ(dataset->episodes().size(), 2500u);
  if (!kSanitized) {
    EXPECT_LT(cpu_s, 2) << "CPU time, so that other programs on the machine do not count";
    EXPECT_LT(peak, 300);
  }
  // An order over it needs a table of ids and nothing more.
  WindowSpec windows;
  windows.columns["action"] = {0, 1, 2};
  const IndexPermutation order(dataset->size(), 1, 0);
  for (int64_t i = 0; i < 1000; ++i) {
    const RawSample sample = dataset->get(order(i), windows);
    ASSERT_EQ(sample.episode, sample.sample_id / 400);
    ASSERT_EQ(sample.frame, sample.sample_id % 400);
  }
}

TEST(LargeDataset, LinksToOneClipShareItsTable) {
  const fs::path clip =
      testing::dataset_path("pusht_v30") / "videos/observation.image/chunk-000/file-001.mp4";
  const fs::path root = make_set("linked", 100'000, 200, {"--clip", clip.string(), "1000"});
  const auto dataset = open_lerobot(root);
  ASSERT_EQ(dataset->size(), 100'000);
  EXPECT_EQ(dataset->picture_statistics().indexed_frames, 1000);
  WindowSpec windows;
  windows.cameras["observation.images.top"] = {0};
  const RawSample a = dataset->get(499, windows), b = dataset->get(77'499, windows);
  const RawSample other = dataset->get(77'999, windows);
  const auto& picture = a.cameras.begin()->second.frames[0]->rgb;
  EXPECT_EQ(picture, b.cameras.begin()->second.frames[0]->rgb) << "the same frame of the clip";
  EXPECT_NE(picture, other.cameras.begin()->second.frames[0]->rgb);
  EXPECT_EQ(dataset->picture_statistics().decoders_opened, 1);
}

}  // namespace
}  // namespace longship::data
