#pragma once
// The interface every dataset format implements, and the facts about features that models need.
// Torch-free.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/stopwatch.h"
#include "data/sample.h"

namespace longship::data {

/// Per-dimension statistics of one feature, in float64. A vector is empty when that statistic is
/// not known.
struct FeatureStats {
  std::vector<double> min, max, mean, std, q01, q99;
  int64_t count = 0;
  std::string source;  // where they come from: a file, or "computed from rows"
};

enum class FeatureKind { kVideo, kImage, kNumeric, kString };

struct Feature {
  std::string name;
  FeatureKind kind = FeatureKind::kNumeric;
  std::string dtype;  // as info.json says: float32, int64, video, ...
  std::vector<int64_t> shape;
  std::vector<std::string> dim_names;  // names per dimension when info.json lists them, else empty
  int64_t width() const;               // product of shape, 1 for a scalar
};

struct Episode {
  int64_t index = 0;         // episode_index as stored
  int64_t length = 0;        // frames
  int64_t first_sample = 0;  // sample id of its frame 0
  std::vector<std::string> tasks;
};

/// What reading pictures has cost since a dataset was opened.
struct PictureStatistics {
  int64_t pictures_read = 0;     // delivered; one that several samples of a batch share counts once
  int64_t pictures_decoded = 0;  // that came out of a decoder, those on the way to a wanted one too
  int64_t packets_decoded = 0;
  int64_t seeks = 0;  // starts at a key frame
  int64_t decoders_opened = 0;
  int64_t decoders_reused = 0;  // requests that found an open decoder of their file
  int64_t decoders_idle = 0;    // open now, and in nobody's use
  int64_t indexed_frames = 0;   // frames in the packet tables that are kept
  int64_t index_bytes = 0;      // memory of these tables
  Elapsed decoding;             // reading packets, decoding, conversion to RGB; over all threads
};

/// Read-only after construction; every method is const and thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual const std::filesystem::path& root() const = 0;
  virtual std::string format() const = 0;  // e.g. "LeRobot v3.0"
  virtual double fps() const = 0;
  virtual const std::vector<Feature>& features() const = 0;
  virtual const std::vector<Episode>& episodes() const = 0;
  virtual const std::vector<std::string>& tasks() const = 0;  // by task_index
  virtual const std::map<std::string, FeatureStats>& stats() const = 0;
  /// Number of samples = frames over all episodes.
  virtual int64_t size() const = 0;
  /// Throws DataError naming file, episode, frame and camera or column.
  virtual RawSample get(int64_t sample_id, const WindowSpec& windows) const = 0;
  /// The samples of a batch, in the order of `sample_ids`: equal to get() of each. A picture that
  /// several of them show is decoded once and shared; pictures of one file are decoded in one pass.
  /// Throws DataError as get() does. The default asks get() one by one.
  virtual std::vector<RawSample> get_batch(std::span<const int64_t> sample_ids,
                                           const WindowSpec& windows) const;
  /// Zeros where pictures cost nothing to speak of.
  virtual PictureStatistics picture_statistics() const { return {}; }
  /// As get(), without touching any video (cheap): cameras stay empty, columns are filled.
  virtual RawSample get_columns(int64_t sample_id, const WindowSpec& windows) const = 0;
  /// Task text of a frame without reading anything else.
  virtual std::string_view task_of(int64_t sample_id) const = 0;
  /// One numeric column over all frames of the given positions in episodes(), [frames, width], in
  /// that order. Touches no video. Throws DataError for an unknown column or episode. The default
  /// asks get_columns() frame by frame.
  virtual std::vector<float> column_values(std::string_view name,
                                           std::span<const int64_t> episode_positions) const;

  std::vector<float> column_values(std::string_view name) const;  // over all episodes
  const Feature* find_feature(std::string_view name) const;       // nullptr when absent
  std::vector<std::string> cameras()
      const;  // names of video and image features, in info.json order
  /// (episode position in episodes(), frame) of a sample. Throws DataError when out of range.
  std::pair<int64_t, int64_t> locate(int64_t sample_id) const;
};

}  // namespace longship::data
