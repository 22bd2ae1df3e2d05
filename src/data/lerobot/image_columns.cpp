#include "data/lerobot/image_columns.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/fs.h"
#include "base/strings.h"
#include "data/lerobot/check_videos.h"
#include "io/video_still.h"

namespace longship::data::lerobot {

namespace {

constexpr uint64_t kMaxPictureBytes = uint64_t{1} << 29;

// Paths in tables are relative to the dataset and stay inside it.
std::string picture_bytes(const std::filesystem::path& root, const io::StoredPicture& picture) {
  if (!picture.bytes.empty()) return picture.bytes;
  const std::filesystem::path path(picture.path);
  for (const auto& part : path) {
    LS_CHECK(part != ".." && part != "/", DataError, "path \"{}\" leaves the dataset's folder",
             printable(picture.path));
  }
  return read_file(root / path, kMaxPictureBytes, ExitCode::kData);
}

Image raw_picture(const CameraInfo& camera, const std::string& bytes, const std::string& name) {
  LS_CHECK(static_cast<int64_t>(bytes.size()) == camera.height * camera.width * 3, DataError,
           "{}: {} numbers in a row, a picture of {}x{} has {}", name, bytes.size(), camera.width,
           camera.height, camera.height * camera.width * 3);
  Image image;
  image.height = camera.height;
  image.width = camera.width;
  image.rgb.assign(bytes.begin(), bytes.end());
  return image;
}

int64_t file_of(const std::vector<int64_t>& begin, int64_t row) {
  return std::upper_bound(begin.begin(), begin.end() - 1, row) - begin.begin() - 1;
}

}  // namespace

ImageColumns::ImageColumns(const Layout& layout, const Table& table)
    : root_(layout.root), file_begin_(table.file_begin), cameras_(layout.info.cameras) {
  for (const DataFile& file : layout.data_files) paths_.push_back(file.path);
}

std::shared_ptr<const std::vector<io::StoredPicture>> ImageColumns::group(const Key& key) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = group_of_.find(key); found != group_of_.end()) {
      groups_.splice(groups_.begin(), groups_, found->second);
      return found->second->pictures;
    }
  }
  const auto [camera, file, number] = key;
  const io::ParquetTable table = io::ParquetTable::open(root_ / paths_[static_cast<size_t>(file)]);
  Group made{key,
             std::make_shared<const std::vector<io::StoredPicture>>(
                 table.pictures(cameras_[camera].name, number)),
             0};
  for (const io::StoredPicture& picture : *made.pictures) {
    made.bytes += static_cast<int64_t>(picture.bytes.size() + picture.path.size() + sizeof picture);
  }
  const std::lock_guard lock(mutex_);
  if (group_of_.contains(key)) return made.pictures;  // another thread was faster
  auto pictures = made.pictures;
  bytes_ += made.bytes;
  groups_.push_front(std::move(made));
  group_of_[key] = groups_.begin();
  while (bytes_ > kCacheBytes && groups_.size() > 1) {
    bytes_ -= groups_.back().bytes;
    group_of_.erase(groups_.back().key);
    groups_.pop_back();
  }
  return pictures;
}

io::StoredPicture ImageColumns::stored(size_t camera, int64_t row) {
  const int64_t file = file_of(file_begin_, row);
  const int64_t local = row - file_begin_[static_cast<size_t>(file)];
  std::vector<int64_t> begin;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = group_begin_.find(file); found != group_begin_.end()) {
      begin = found->second;
    }
  }
  if (begin.empty()) {
    begin = io::ParquetTable::open(root_ / paths_[static_cast<size_t>(file)]).row_group_begin();
    const std::lock_guard lock(mutex_);
    group_begin_[file] = begin;
  }
  const int64_t number = file_of(begin, local);
  const auto pictures = group({camera, file, number});
  return (*pictures)[static_cast<size_t>(local - begin[static_cast<size_t>(number)])];
}

ImagePtr ImageColumns::read(size_t camera, int64_t row) {
  const io::StoredPicture picture = stored(camera, row);
  const std::string& name = cameras_[camera].name;
  if (picture.is_raw) {
    return std::make_shared<const Image>(raw_picture(cameras_[camera], picture.bytes, name));
  }
  io::Still still =
      io::decode_still(picture_bytes(root_, picture), picture.bytes.empty() ? picture.path : name);
  auto image = std::make_shared<Image>();
  image->height = still.height;
  image->width = still.width;
  image->rgb = std::move(still.rgb);
  return image;
}

namespace {

/// What the heads of a camera's pictures in one table say.
struct HeadCheck {
  Findings findings;
  std::map<std::pair<int64_t, int64_t>, std::pair<int64_t, std::string>> sizes;  // count, place
  std::string alpha;  // place of the first picture with alpha
  int64_t num_alpha = 0;
};

void check_head(const Layout& layout, const CameraInfo& camera, const io::StoredPicture& picture,
                const std::string& place, HeadCheck& check) {
  if (picture.is_raw) {
    raw_picture(camera, picture.bytes, camera.name);
    ++check.sizes.emplace(std::pair(camera.height, camera.width), std::pair(0, place))
          .first->second.first;
    return;
  }
  const io::StillFacts facts = io::still_facts(picture_bytes(layout.root, picture), camera.name);
  if (facts.bits != 8 && !camera.is_depth) {
    check.findings.error("picture-depth", place,
                         fmt::format("the {} has {} bits per channel ({})", facts.kind, facts.bits,
                                     facts.channels == 1 ? "gray" : "colour"),
                         "8 bits; more only for a feature marked as depth",
                         "convert the picture, or set video.is_depth_map in info.json");
    return;
  }
  ++check.sizes.emplace(std::pair(facts.height, facts.width), std::pair(0, place))
        .first->second.first;
  if (!facts.has_alpha) return;
  if (check.num_alpha++ == 0) check.alpha = place;
}

void check_heads(const Layout& layout, const Table& table, size_t camera, int64_t file,
                 HeadCheck& check) {
  const CameraInfo& the = layout.info.cameras[camera];
  const std::string& path = layout.data_files[static_cast<size_t>(file)].path;
  try {
    const io::ParquetTable open = io::ParquetTable::open(layout.root / path);
    const std::vector<int64_t> groups = open.row_group_begin();
    std::vector<const EpisodeRecord*> episodes;
    for (const EpisodeRecord& episode : layout.episodes) {
      if (episode.length > 0 && episode.data_file == file) episodes.push_back(&episode);
    }
    for (size_t group = 0; group + 1 < groups.size(); ++group) {
      const auto pictures = open.pictures(the.name, static_cast<int64_t>(group));
      const int64_t first = table.file_begin[static_cast<size_t>(file)] + groups[group];
      for (const EpisodeRecord* episode : episodes) {
        const int64_t begin = std::max(first, episode->row_begin),
                      end =
                          std::min(first + static_cast<int64_t>(pictures.size()), episode->row_end);
        for (int64_t row = begin; row < end; ++row) {
          const std::string place = fmt::format("{}, episode {}, frame {}", the.name,
                                                episode->index, row - episode->row_begin);
          try {
            check_head(layout, the, pictures[static_cast<size_t>(row - first)], place, check);
          } catch (const Error& error) {
            check.findings.error("picture-unreadable", place, error.what(), "a PNG or JPEG",
                                 "restore the picture, or leave the episode out: longship dataset "
                                 "repair --drop-episodes");
          }
        }
      }
    }
  } catch (const std::exception& error) {  // none may leave the thread
    check.findings.error("column", fmt::format("{} column {}", path, the.name), error.what(),
                         "encoded pictures");
  }
}

void judge_camera(const CameraInfo& camera, const std::vector<const HeadCheck*>& parts,
                  Findings& findings) {
  std::map<std::pair<int64_t, int64_t>, std::pair<int64_t, std::string>> sizes;
  int64_t num_alpha = 0;
  std::string alpha;
  for (const HeadCheck* part : parts) {
    findings.append(part->findings);
    for (const auto& [size, seen] : part->sizes) {
      sizes.emplace(size, std::pair(0, seen.second)).first->second.first += seen.first;
    }
    if (part->num_alpha > 0 && num_alpha == 0) alpha = part->alpha;
    num_alpha += part->num_alpha;
  }
  if (num_alpha > 0) {
    findings.info("picture-alpha", alpha,
                  fmt::format("{} pictures of {} have an alpha channel", num_alpha, camera.name),
                  "", "alpha is dropped without blending");
  }
  if (sizes.empty()) return;
  const auto usual = std::max_element(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) {
    return a.second.first < b.second.first;
  });
  const auto [height, width] = usual->first;
  for (const auto& [size, seen] : sizes) {
    if (size == usual->first) continue;
    findings.error("picture-size", seen.second,
                   fmt::format("its picture is {} wide and {} high, most of {} are {}x{}",
                               size.second, size.first, camera.name, width, height),
                   "one size per camera", "convert the pictures to one size");
  }
  check_declared_shape(camera, {height, width}, "the pictures are", "the pictures win", findings);
}

}  // namespace

void check_images(const Layout& layout, const Table& table, Findings& findings) {
  struct Task {
    size_t camera;
    int64_t file;
    HeadCheck check;
  };
  std::vector<Task> tasks;
  for (size_t camera = 0; camera < layout.info.cameras.size(); ++camera) {
    if (layout.info.cameras[camera].is_video) continue;
    for (size_t file = 0; file < layout.data_files.size(); ++file) {
      if (table.file_sound[file]) tasks.push_back({camera, static_cast<int64_t>(file), {}});
    }
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < tasks.size(); i = next++) {
      check_heads(layout, table, tasks[i].camera, tasks[i].file, tasks[i].check);
    }
  };
  std::vector<std::thread> threads;
  const size_t num_threads =
      std::min<size_t>({tasks.size() / 4, 8, std::thread::hardware_concurrency()});
  for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  for (size_t camera = 0; camera < layout.info.cameras.size(); ++camera) {
    std::vector<const HeadCheck*> parts;
    for (const Task& task : tasks) {
      if (task.camera == camera) parts.push_back(&task.check);
    }
    if (!parts.empty()) judge_camera(layout.info.cameras[camera], parts, findings);
  }
}

}  // namespace longship::data::lerobot
