#pragma once
// Frames of videos put behind each other in a new file, packet by packet: nothing is decoded or
// encoded, so every picture stays the same bit for bit.

#include <cstdint>
#include <filesystem>
#include <memory>

#include "io/video.h"

namespace longship::io {

/// The rate nearest to `fps` as a fraction of whole numbers: 10 -> 10/1, 29.97 -> 2997/100.
Rational rational_rate(double fps);

/// One new video file with frame k shown at exactly k / rate. Not thread-safe.
class VideoConcat {
 public:
  /// The container follows from the name's extension (.mp4, .mkv). Nothing is written before the
  /// first append().
  VideoConcat(std::filesystem::path path, Rational rate);
  ~VideoConcat();
  VideoConcat(const VideoConcat&) = delete;
  VideoConcat& operator=(const VideoConcat&) = delete;

  /// Whether frames [first, first + count) of `video` can be put into this file: the container
  /// takes the codec, no part of them is hidden by an edit list, the container asks for no
  /// rotation, and codec settings (headers, size, pixel format, reordering) are those of the frames
  /// already there.
  bool accepts(const VideoIndex& video, int64_t first, int64_t count) const;
  /// Appends these frames, with the frames before them that they need from their key frame on, and
  /// those behind that they refer to. Returns the number that frame `first` has in the new file.
  /// Call only when accepts(). Throws DataError naming both files.
  int64_t append(const VideoIndex& video, int64_t first, int64_t count);

  int64_t num_frames() const;
  uint64_t bytes_written() const;
  /// Finishes the file. Throws DataError.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longship::io
