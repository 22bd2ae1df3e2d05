#include "data/lerobot/lerobot_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "data/lerobot/opened.h"

namespace longship::data {

namespace lerobot {

namespace {

/// A picture of a batch: where it is, and where it goes.
struct WantedPicture {
  int64_t file = 0;
  int64_t video_frame = 0;
  int64_t episode = 0;  // position in Layout::episodes
  int64_t frame = 0;    // of the episode
  size_t camera = 0;
  ImagePtr* slot = nullptr;
};

class LerobotDataset final : public Dataset {
 public:
  explicit LerobotDataset(Opened opened)
      : layout_(std::move(opened.layout)),
        table_(std::move(opened.table)),
        pool_(std::move(opened.pool)),
        images_(std::move(opened.images)),
        sizes_(std::move(opened.sizes)),
        stats_(std::move(opened.stats)),
        format_("LeRobot " + layout_.info.version_text) {
    // Only the checks needed these.
    table_.frame_index = {};
    table_.episode_index = {};
    table_.index = {};
    for (const EpisodeRecord& record : layout_.episodes) {
      episodes_.push_back({record.index, record.length, num_samples_, record.tasks});
      num_samples_ += record.length;
    }
    if (!layout_.tasks.empty()) {
      tasks_.resize(static_cast<size_t>(layout_.tasks.rbegin()->first) + 1);
      for (const auto& [index, text] : layout_.tasks) tasks_[static_cast<size_t>(index)] = text;
    }
  }

  using Dataset::column_values;
  const std::filesystem::path& root() const override { return layout_.root; }
  std::string format() const override { return format_; }
  double fps() const override { return layout_.info.fps; }
  const std::vector<Feature>& features() const override { return layout_.info.features; }
  const std::vector<Episode>& episodes() const override { return episodes_; }
  const std::vector<std::string>& tasks() const override { return tasks_; }
  const std::map<std::string, FeatureStats>& stats() const override { return stats_; }
  int64_t size() const override { return num_samples_; }

  RawSample get(int64_t sample_id, const WindowSpec& windows) const override;
  std::vector<RawSample> get_batch(std::span<const int64_t> sample_ids,
                                   const WindowSpec& windows) const override;
  PictureStatistics picture_statistics() const override { return pool_->statistics(); }
  RawSample get_columns(int64_t sample_id, const WindowSpec& windows) const override;
  std::string_view task_of(int64_t sample_id) const override;
  std::vector<float> column_values(std::string_view name,
                                   std::span<const int64_t> positions) const override;

 private:
  int64_t row_of(const std::pair<int64_t, int64_t>& place) const {
    return layout_.episodes[static_cast<size_t>(place.first)].row_begin + place.second;
  }
  const ColumnData& column(std::string_view name) const;
  ImagePtr stored_picture(const EpisodeRecord& episode, int64_t frame, size_t camera) const;
  size_t camera(std::string_view name) const;
  void want_pictures(std::vector<RawSample>& samples, const WindowSpec& windows,
                     std::vector<WantedPicture>& wanted) const;
  void read_file(std::span<const WantedPicture> wanted) const;
  ImagePtr read_alone(const WantedPicture& wanted) const;
  std::shared_ptr<Image> blank_picture(int64_t file) const;

  Layout layout_;
  Table table_;
  std::unique_ptr<ReaderPool> pool_;      // guards itself
  std::unique_ptr<ImageColumns> images_;  // likewise
  std::vector<PictureSize> sizes_;
  std::map<std::string, FeatureStats> stats_;
  std::string format_;
  std::vector<Episode> episodes_;
  std::vector<std::string> tasks_;
  int64_t num_samples_ = 0;
};

const ColumnData& LerobotDataset::column(std::string_view name) const {
  const auto found = table_.columns.find(name);
  if (found != table_.columns.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, data] : table_.columns) names.push_back(known);
  throw DataError(fmt::format("dataset {} has no numeric column '{}'; it has {}", root().string(),
                              name, join(names, ", ")));
}

size_t LerobotDataset::camera(std::string_view name) const {
  for (size_t i = 0; i < layout_.info.cameras.size(); ++i) {
    if (layout_.info.cameras[i].name == name) return i;
  }
  throw DataError(fmt::format("dataset {} has no camera '{}'; it has {}", root().string(), name,
                              join(cameras(), ", ")));
}

/// The frame a window offset means: the nearest one inside the episode, and whether it was moved.
std::pair<int64_t, bool> clamp_frame(int64_t frame, int64_t offset, int64_t length) {
  const int64_t limit = int64_t{1} << 40;  // far outside any episode, and no sum overflows
  const int64_t wanted = frame + std::clamp(offset, -limit, limit);
  const int64_t inside = std::clamp<int64_t>(wanted, 0, length - 1);
  return {inside, inside != wanted};
}

RawSample LerobotDataset::get_columns(int64_t sample_id, const WindowSpec& windows) const {
  const auto place = locate(sample_id);
  const EpisodeRecord& episode = layout_.episodes[static_cast<size_t>(place.first)];
  const auto row = static_cast<size_t>(row_of(place));
  RawSample sample;
  sample.sample_id = sample_id;
  sample.episode = episode.index;
  sample.frame = place.second;
  sample.timestamp_s = table_.timestamp.empty()
                           ? static_cast<double>(place.second) / layout_.info.fps
                           : table_.timestamp[row];
  sample.task = layout_.tasks.at(table_.task_index[row]);
  for (const auto& [name, offsets] : windows.columns) {
    const ColumnData& data = column(name);
    WindowValues window;
    window.num_offsets = static_cast<int64_t>(offsets.size());
    window.width = data.width;
    window.values.reserve(offsets.size() * static_cast<size_t>(data.width));
    window.is_pad.reserve(offsets.size());
    for (const int64_t offset : offsets) {
      const auto [frame, is_pad] = clamp_frame(place.second, offset, episode.length);
      const float* begin = data.values.data() + (episode.row_begin + frame) * data.width;
      window.values.insert(window.values.end(), begin, begin + data.width);
      window.is_pad.push_back(is_pad ? 1 : 0);
    }
    sample.columns.emplace(name, std::move(window));
  }
  return sample;
}

RawSample LerobotDataset::get(int64_t sample_id, const WindowSpec& windows) const {
  return std::move(get_batch({&sample_id, 1}, windows).front());
}

/// A picture that lies in the tables.
ImagePtr LerobotDataset::stored_picture(const EpisodeRecord& episode, int64_t frame,
                                        size_t camera) const {
  try {
    return images_->read(camera, episode.row_begin + frame);
  } catch (const Error& error) {
    throw DataError(fmt::format("dataset {}: episode {}, frame {}, camera {}: {}", root().string(),
                                episode.index, frame, layout_.info.cameras[camera].name,
                                error.what()));
  }
}

std::vector<RawSample> LerobotDataset::get_batch(std::span<const int64_t> sample_ids,
                                                 const WindowSpec& windows) const {
  std::vector<RawSample> samples;
  samples.reserve(sample_ids.size());
  for (const int64_t id : sample_ids) samples.push_back(get_columns(id, windows));
  std::vector<WantedPicture> wanted;
  want_pictures(samples, windows, wanted);
  // By file and in presentation order: a decoder never goes back and decodes no packet twice.
  std::stable_sort(wanted.begin(), wanted.end(),
                   [](const WantedPicture& a, const WantedPicture& b) {
                     return std::pair(a.file, a.video_frame) < std::pair(b.file, b.video_frame);
                   });
  for (size_t begin = 0; begin < wanted.size();) {
    size_t end = begin;
    while (end < wanted.size() && wanted[end].file == wanted[begin].file) ++end;
    read_file(std::span(wanted).subspan(begin, end - begin));
    begin = end;
  }
  return samples;
}

void LerobotDataset::want_pictures(std::vector<RawSample>& samples, const WindowSpec& windows,
                                   std::vector<WantedPicture>& wanted) const {
  std::map<std::pair<size_t, int64_t>, ImagePtr> stored;  // by camera and row
  for (const auto& [name, offsets] : windows.cameras) {
    const size_t number = camera(name);
    const bool is_video = layout_.info.cameras[number].is_video;
    for (RawSample& sample : samples) {
      const int64_t position = locate(sample.sample_id).first;
      const EpisodeRecord& episode = layout_.episodes[static_cast<size_t>(position)];
      CameraWindow& window = sample.cameras[name];
      window.frames.resize(offsets.size());
      for (size_t i = 0; i < offsets.size(); ++i) {
        const auto [frame, is_pad] = clamp_frame(sample.frame, offsets[i], episode.length);
        window.is_pad.push_back(is_pad ? 1 : 0);
        if (!is_video) {
          ImagePtr& picture = stored[{number, episode.row_begin + frame}];
          if (!picture) picture = stored_picture(episode, frame, number);
          window.frames[i] = picture;
          continue;
        }
        const VideoSpan& span = episode.spans[number];
        wanted.push_back(
            {span.file, span.first_frame + frame, position, frame, number, &window.frames[i]});
      }
    }
  }
}

std::shared_ptr<Image> LerobotDataset::blank_picture(int64_t file) const {
  const PictureSize& size = sizes_[static_cast<size_t>(file)];
  auto image = std::make_shared<Image>();
  image->height = size.height;
  image->width = size.width;
  image->rgb.resize(static_cast<size_t>(size.height * size.width * 3));
  return image;
}

/// `wanted`: pictures of one file in rising order; equal neighbours share one picture.
void LerobotDataset::read_file(std::span<const WantedPicture> wanted) const {
  const int64_t file = wanted.front().file;
  std::vector<int64_t> frames;
  std::vector<std::shared_ptr<Image>> images;
  std::vector<uint8_t*> buffers;
  for (const WantedPicture& one : wanted) {
    if (frames.empty() || frames.back() != one.video_frame) {
      frames.push_back(one.video_frame);
      images.push_back(blank_picture(file));
      buffers.push_back(images.back()->rgb.data());
    }
    *one.slot = images.back();
  }
  try {
    ReaderPool::Lease lease = pool_->acquire(file);
    try {
      lease.reader().read_rgb_each(frames, buffers);
    } catch (...) {
      lease.discard();
      throw;
    }
  } catch (const Error&) {
    // Which one it was is found by asking for each alone.
    for (const WantedPicture& one : wanted) *one.slot = read_alone(one);
  }
}

ImagePtr LerobotDataset::read_alone(const WantedPicture& wanted) const {
  try {
    std::shared_ptr<Image> image = blank_picture(wanted.file);
    ReaderPool::Lease lease = pool_->acquire(wanted.file);
    try {
      lease.reader().read_rgb(wanted.video_frame, image->rgb.data());
    } catch (...) {
      lease.discard();
      throw;
    }
    return image;
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    throw DataError(fmt::format("dataset {}: episode {}, frame {}, camera {}: {}", root().string(),
                                layout_.episodes[static_cast<size_t>(wanted.episode)].index,
                                wanted.frame, layout_.info.cameras[wanted.camera].name,
                                error.what()));
  }
}

std::string_view LerobotDataset::task_of(int64_t sample_id) const {
  const auto row = static_cast<size_t>(row_of(locate(sample_id)));
  return layout_.tasks.at(table_.task_index[row]);
}

std::vector<float> LerobotDataset::column_values(std::string_view name,
                                                 std::span<const int64_t> positions) const {
  const ColumnData& data = column(name);
  std::vector<float> out;
  for (const int64_t position : positions) {
    LS_CHECK(position >= 0 && position < static_cast<int64_t>(episodes_.size()), DataError,
             "episode position {} does not exist: dataset {} has {} episodes", position,
             root().string(), episodes_.size());
    const EpisodeRecord& episode = layout_.episodes[static_cast<size_t>(position)];
    const auto begin = data.values.begin() + episode.row_begin * data.width;
    out.insert(out.end(), begin, begin + episode.length * data.width);
  }
  return out;
}

}  // namespace

}  // namespace lerobot

std::unique_ptr<Dataset> open_lerobot(const std::filesystem::path& root,
                                      const OpenOptions& options) {
  if (options.decoder == io::VideoDecoder::kNvdec) io::require_nvdec();
  Findings findings;
  std::optional<lerobot::Opened> opened = lerobot::inspect(root, options, findings);
  findings.throw_if_errors(root);
  LS_CHECK(opened.has_value(), InternalError, "dataset {} was not read, without a reason",
           root.string());
  findings.log_rest();
  return std::make_unique<lerobot::LerobotDataset>(std::move(*opened));
}

std::vector<Finding> check_dataset(const std::filesystem::path& root, const OpenOptions& options) {
  Findings findings;
  lerobot::inspect(root, options, findings);
  return findings.list();
}

}  // namespace longship::data
