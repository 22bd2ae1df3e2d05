#pragma once
// What a dataset gives for one sample, before any model-specific transform. Torch-free.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace longship::data {

/// An 8-bit RGB picture, [height, width, 3] row-major. Shared, because one decoded frame may serve
/// several samples.
struct Image {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> rgb;
};
using ImagePtr = std::shared_ptr<const Image>;

/// Frame offsets (relative to the sample's frame, in frames, any order, both signs) per column and
/// per camera.
struct WindowSpec {
  std::map<std::string, std::vector<int64_t>>
      columns;  // numeric columns, e.g. {"action": [0..49], "observation.state": [0]}
  std::map<std::string, std::vector<int64_t>> cameras;  // e.g. {"observation.image": [0]}
};

/// A numeric column over its window. Offsets outside the episode hold the nearest frame inside,
/// with is_pad 1.
struct WindowValues {
  int64_t num_offsets = 0;
  int64_t width = 0;            // numbers per frame (product of the feature's shape)
  std::vector<float> values;    // [num_offsets, width]
  std::vector<uint8_t> is_pad;  // [num_offsets]
};

struct CameraWindow {
  std::vector<ImagePtr> frames;  // [num_offsets]
  std::vector<uint8_t> is_pad;   // [num_offsets]
};

/// Key of a sample's random changes while it is trained on: they depend on it and on the sample id,
/// never on workers, threads or ranks.
struct TrainDraw {
  uint64_t seed = 0;
  uint64_t step = 0;  // optimizer step
};

struct RawSample {
  int64_t sample_id = 0;  // index into the dataset, 0 .. size()-1, counted over all its episodes
  int64_t episode = 0;
  int64_t frame = 0;       // within the episode
  int64_t dataset = 0;     // which one of a mixture, in the order of the recipe
  int64_t embodiment = 0;  // as the recipe says of its dataset
  double timestamp_s = 0;
  std::string task;  // UTF-8, as stored
  std::map<std::string, WindowValues> columns;
  std::map<std::string, CameraWindow> cameras;
  /// Set by the trainer only. Without it nothing is changed at random: evaluation sees the data as
  /// they are.
  std::optional<TrainDraw> draw = std::nullopt;
};

}  // namespace longship::data
