// Loading from several threads gives what one thread gives.

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/ordered_prefetch.h"
#include "data/lerobot/lerobot_dataset.h"
#include "data/sampler.h"
#include "data/split.h"
#include "support/paths.h"

namespace longship::data {
namespace {

WindowSpec windows_of(const Dataset& dataset) {
  WindowSpec windows;
  for (int64_t k = 0; k < 16; ++k) windows.columns["action"].push_back(k);
  windows.columns["observation.state"] = {-1, 0};
  for (const std::string& camera : dataset.cameras()) windows.cameras[camera] = {-1, 0};
  return windows;
}

// Everything in a sample, as bytes.
std::string content(const RawSample& sample) {
  std::string out = std::to_string(sample.sample_id) + sample.task;
  const auto append = [&out](const auto& values) {
    out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  };
  for (const auto& [name, window] : sample.columns) {
    append(window.values);
    append(window.is_pad);
  }
  for (const auto& [name, window] : sample.cameras) {
    for (const ImagePtr& image : window.frames) append(image->rgb);
    append(window.is_pad);
  }
  return out;
}

class WorkersTest : public ::testing::TestWithParam<std::string> {};

TEST_P(WorkersTest, NumberOfWorkersDoesNotChangeBatches) {
  const auto dataset = open_lerobot(testing::dataset_path(GetParam()));
  const WindowSpec windows = windows_of(*dataset);
  const Split split = split_by_episode(*dataset, {2, {}, false});
  const ShuffledStream stream(split.train_ids, 42, 4);
  std::vector<std::vector<std::string>> runs;
  for (const int64_t num_workers : {0, 1, 3}) {
    OrderedPrefetcher<std::vector<std::string>> prefetcher(
        num_workers, 4,
        [&](int64_t step) {
          std::vector<std::string> batch;
          for (const int64_t id : stream.batch(step)) {
            batch.push_back(content(dataset->get(id, windows)));
          }
          return batch;
        },
        3, 11);
    std::vector<std::string>& run = runs.emplace_back();
    while (!prefetcher.done()) {
      for (std::string& sample : prefetcher.next()) run.push_back(std::move(sample));
    }
  }
  ASSERT_EQ(runs[0].size(), 32u);
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
}

INSTANTIATE_TEST_SUITE_P(Datasets, WorkersTest,
                         ::testing::Values("pusht_v30", "pusht_v21", "two_cam_v30"));

TEST(Threads, SameFileFromFourThreadsAtOnce) {
  const auto dataset = open_lerobot(testing::dataset_path("pusht_v30"));
  const WindowSpec windows = windows_of(*dataset);
  std::vector<std::string> want;
  for (int64_t i = 0; i < 40; ++i) want.push_back(content(dataset->get(i * 61, windows)));
  std::vector<std::thread> threads;
  std::vector<int> num_equal(4);
  for (size_t t = 0; t < num_equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t k = 0; k < want.size(); ++k) {
        const size_t i = (k * (2 * t + 1)) % want.size();
        num_equal[t] +=
            content(dataset->get(static_cast<int64_t>(i) * 61, windows)) == want[i] ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int n : num_equal) EXPECT_EQ(n, 40);
}

}  // namespace
}  // namespace longship::data
