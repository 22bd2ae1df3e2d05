// Faults that users reported, made from the small bases: those that the catalogue of damaged
// datasets does not hold.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/checks.h"
#include "data/lerobot/lerobot_dataset.h"
#include "data/lerobot/write/repair.h"
#include "io/parquet.h"
#include "io/parquet_write.h"
#include "support/paths.h"

namespace longship::data {
namespace {

namespace fs = std::filesystem;
using testing::dataset_path;
using ::testing::HasSubstr;
using testing::scratch_dir;

fs::path copy_of(const char* base, const std::string& name) {
  const fs::path root = scratch_dir(name) / "set";
  fs::copy(dataset_path(base), root, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    fs::permissions(entry.path(), fs::perms::owner_all, fs::perm_options::add);
  }
  return root;
}

std::string lines(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& finding : findings) {
    // Right in every v3.0 set that lerobot 0.4.4 wrote.
    if (finding.code != "image-std") out += format_finding(finding) + "\n";
  }
  return out;
}

struct EpisodeRow {
  int64_t index, from, to;
  double from_s;
  int64_t video_file = 0;
};

void write_episodes(const fs::path& root, const std::vector<EpisodeRow>& rows,
                    const std::vector<std::string>& cameras, double fps) {
  std::vector<int64_t> index, length, from, to, zero, file;
  std::vector<double> from_s, to_s;
  for (const EpisodeRow& row : rows) {
    index.push_back(row.index);
    length.push_back(row.to - row.from);
    from.push_back(row.from);
    to.push_back(row.to);
    zero.push_back(0);
    file.push_back(row.video_file);
    from_s.push_back(row.from_s);
    to_s.push_back(row.from_s + static_cast<double>(row.to - row.from) / fps);
  }
  std::vector<io::WriteColumn> columns = {{"episode_index", index},     {"length", length},
                                          {"dataset_from_index", from}, {"dataset_to_index", to},
                                          {"data/chunk_index", zero},   {"data/file_index", zero}};
  for (const std::string& camera : cameras) {
    const std::string prefix = "videos/" + camera + "/";
    columns.push_back({prefix + "chunk_index", zero});
    columns.push_back({prefix + "file_index", file});
    columns.push_back({prefix + "from_timestamp", from_s});
    columns.push_back({prefix + "to_timestamp", to_s});
  }
  io::write_parquet(root / "meta/episodes/chunk-000/file-000.parquet", columns);
}

const std::vector<std::string> kCameras = {"observation.images.top", "observation.images.wrist"};

// FR-08: an episode of no frame and one of one frame in one set.
TEST(FieldCases, EmptyAndOneFrameEpisodesShiftNothing) {
  const fs::path root = copy_of("broken/base_v30", "fr08");
  write_episodes(
      root, {{0, 0, 12, 0}, {1, 12, 19, 1.2}, {2, 19, 27, 1.9}, {3, 27, 27, 2.7}, {4, 27, 28, 2.7}},
      kCameras, 10);
  // Row 27 becomes the one frame of episode 4.
  const fs::path table = root / "data/chunk-000/file-000.parquet";
  const io::ParquetTable old = io::ParquetTable::open(table);
  std::vector<int64_t> all, episode = old.int64("episode_index"), frame = old.int64("frame_index");
  for (int64_t row = 0; row < old.num_rows(); ++row) all.push_back(row);
  episode.back() = 4;
  frame.back() = 0;
  std::vector<float> time = old.numeric("timestamp").values;
  time.back() = 0;
  io::ParquetRowCopier copier(root / "new.parquet", old.column_names());
  copier.append(table, all,
                std::vector<io::ParquetRowCopier::Replacement>{
                    {"episode_index", episode}, {"frame_index", frame}, {"timestamp", time}});
  copier.close();
  fs::rename(root / "new.parquet", table);
  const std::string text = lines(check_dataset(root));
  EXPECT_THAT(text, HasSubstr("WARN empty-episode episode 3"));
  EXPECT_THAT(text, HasSubstr("WARN counters meta/info.json: total_episodes is 3, the data has 5"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
  const auto dataset = open_lerobot(root);
  ASSERT_EQ(dataset->size(), 28);
  WindowSpec windows;
  windows.columns["action"] = {0, 1, 2};
  windows.cameras["observation.images.wrist"] = {0, 1};
  const RawSample last = dataset->get(27, windows);
  EXPECT_EQ(last.episode, 4);
  EXPECT_EQ(last.frame, 0);
  const WindowValues& action = last.columns.at("action");
  EXPECT_EQ(action.is_pad, (std::vector<uint8_t>{0, 1, 1}));
  for (size_t d = 0; d < 6; ++d) {
    EXPECT_EQ(action.values[d], action.values[6 + d]);
    EXPECT_EQ(action.values[d], action.values[12 + d]);
  }
  const CameraWindow& wrist = last.cameras.begin()->second;
  EXPECT_EQ(wrist.frames[0]->rgb, wrist.frames[1]->rgb);
}

// FR-12: from_timestamp of the first episode in file-001 is where file-000 ended.
TEST(FieldCases, UnresetOffsetIsNamedAndMended) {
  const fs::path root = scratch_dir("fr12") / "set";
  lerobot::WriteOptions options;
  options.video_file_bytes = 1;  // a file per episode
  lerobot::convert_dataset(dataset_path("broken/base_v21"), root, options);
  write_episodes(root, {{0, 0, 12, 0, 0}, {1, 12, 19, 1.2, 1}, {2, 19, 28, 0, 2}}, kCameras, 10);
  const std::string text = lines(check_dataset(root));
  EXPECT_THAT(text, HasSubstr("ERROR video-span videos/observation.images.top/chunk-000/"
                              "file-001.mp4"));
  EXPECT_THAT(text, HasSubstr("late by 1.2 s, as if the offset was not reset"));
  EXPECT_THAT(text, HasSubstr("longship dataset repair"));
  const fs::path mended = scratch_dir("fr12_mended") / "set";
  const auto summary = lerobot::repair_dataset(root, mended, {});
  EXPECT_EQ(summary.mended.size(), 2u);
  const auto sound = open_lerobot(dataset_path("broken/base_v21")), made = open_lerobot(mended);
  WindowSpec windows;
  for (const std::string& camera : kCameras) windows.cameras[camera] = {0};
  for (int64_t id = 0; id < 28; ++id) {
    for (const auto& [name, camera] : sound->get(id, windows).cameras) {
      EXPECT_EQ(camera.frames[0]->rgb, made->get(id, windows).cameras.at(name).frames[0]->rgb);
    }
  }
}

// FR-16: doubles are converted with a range check.
TEST(FieldCases, DoublesBeyondFloatAreAnErrorWithTheirRow) {
  const fs::path root = copy_of("broken/base_v21", "fr16");
  const fs::path table = root / "data/chunk-000/episode_000001.parquet";
  const io::ParquetTable old = io::ParquetTable::open(table);
  const auto write = [&](double value) {
    const auto rows = [&](const char* name) {
      const io::NumericColumn read = old.numeric(name);
      io::DoubleLists lists;
      for (int64_t row = 0; row < read.num_rows; ++row) {
        const auto begin = read.values.begin() + row * read.width;
        lists.rows.emplace_back(begin, begin + read.width);
      }
      return lists;
    };
    io::DoubleLists state = rows("observation.state");
    state.rows[4][2] = value;
    const std::vector<io::WriteColumn> columns = {{"observation.state", state},
                                                  {"action", rows("action")},
                                                  {"timestamp", old.float64("timestamp")},
                                                  {"frame_index", old.int64("frame_index")},
                                                  {"episode_index", old.int64("episode_index")},
                                                  {"index", old.int64("index")},
                                                  {"task_index", old.int64("task_index")}};
    io::write_parquet(root / "new.parquet", columns);
    fs::rename(root / "new.parquet", table);
  };
  const io::NumericColumn state = old.numeric("observation.state");
  write(static_cast<double>(state.values[static_cast<size_t>(4 * state.width + 2)]));
  EXPECT_EQ(lines(check_dataset(root)), "");
  write(1e300);
  const std::string text = lines(check_dataset(root));
  EXPECT_THAT(text, HasSubstr("ERROR column data/chunk-000/episode_000001.parquet column "
                              "observation.state"));
  EXPECT_THAT(text, HasSubstr("row 4"));
  EXPECT_THAT(text, HasSubstr("1e+300 is beyond the range of a 32-bit float"));
}

}  // namespace
}  // namespace longship::data
