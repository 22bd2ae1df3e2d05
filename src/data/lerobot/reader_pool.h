#pragma once
// Video readers and packet tables of a dataset, shared by all threads.

#include <cstdint>
#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "io/video.h"

namespace longship::data::lerobot {

/// Lends open decoders. A reader is used by one thread at a time and returns to the pool
/// afterwards, so a file that is asked for again goes on where its decoder stands. At most
/// kReadersPerUser idle readers are kept for each thread that was ever busy at the same time, and
/// at most kMaxIdleBytes of pictures in them; the least recently used go first. Packet tables are
/// shared by all readers of a file and kept up to kMaxIndexedFrames frames in all, at about 57
/// bytes a frame; links to one file count as that file. No picture is kept but the ones a decoder
/// itself refers to. Thread-safe.
class ReaderPool {
 public:
  static constexpr int64_t kReadersPerUser = 64;
  static constexpr int64_t kNvdecReadersPerUser = 4;  // they hold 25 surfaces each on the GPU
  static constexpr int64_t kMaxIndexedFrames = 8'000'000;
  static constexpr int64_t kMaxIdleBytes = int64_t{1} << 30;

  /// `files`: absolute paths, numbered from 0. Nothing is opened yet.
  explicit ReaderPool(std::vector<std::filesystem::path> files,
                      io::VideoDecoder decoder = io::VideoDecoder::kCpu);

  /// A reader that belongs to the holder until the lease ends.
  class Lease {
   public:
    /// `watch` runs since the reader was asked for.
    Lease(ReaderPool& pool, int64_t file, std::unique_ptr<io::VideoReader> reader, Stopwatch watch)
        : pool_(&pool),
          file_(file),
          reader_(std::move(reader)),
          before_(reader_->statistics()),
          watch_(watch) {}
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    io::VideoReader& reader() { return *reader_; }
    /// After an error: the reader is closed instead of going back.
    void discard() {
      note_work();
      reader_.reset();
    }

   private:
    void note_work();
    ReaderPool* pool_;
    int64_t file_;
    std::unique_ptr<io::VideoReader> reader_;
    io::DecodeStatistics before_;
    Stopwatch watch_;
  };

  /// Throws DataError when the file cannot be opened.
  Lease acquire(int64_t file);
  /// Packet table of a file, built when it is not at hand. Throws DataError.
  io::VideoIndexPtr index(int64_t file);

  int64_t num_idle() const;
  PictureStatistics statistics() const;

 private:
  struct Idle {
    int64_t file;
    std::unique_ptr<io::VideoReader> reader;
    int64_t bytes;
  };
  struct Indexed {
    int64_t file;
    io::VideoIndexPtr index;
  };
  void give_back(int64_t file, std::unique_ptr<io::VideoReader> reader);
  int64_t first_of_same(int64_t file);

  std::vector<std::filesystem::path> files_;
  io::VideoDecoder decoder_;
  std::vector<int64_t> first_of_same_;                                  // [files] -1: not known yet
  std::map<std::pair<uint64_t, uint64_t>, int64_t> first_by_identity_;  // (device, inode)
  mutable std::mutex mutex_;
  std::list<Idle> idle_;  // most recently used first
  int64_t idle_bytes_ = 0;
  PictureStatistics statistics_;  // but for what is there now
  int64_t num_busy_ = 0, peak_busy_ = 1;
  std::list<Indexed> indices_;  // most recently used first
  std::unordered_map<int64_t, std::list<Indexed>::iterator> index_of_;
  int64_t num_indexed_frames_ = 0;
};

}  // namespace longship::data::lerobot
