#include "data/lerobot/reader_pool.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

namespace longship::data::lerobot {

ReaderPool::ReaderPool(std::vector<std::filesystem::path> files, io::VideoDecoder decoder)
    : files_(std::move(files)), decoder_(decoder), first_of_same_(files_.size(), -1) {}

/// The first file that was asked for and is the same file on disk.
int64_t ReaderPool::first_of_same(int64_t file) {
  const auto i = static_cast<size_t>(file);
  {
    const std::lock_guard lock(mutex_);
    if (first_of_same_[i] >= 0) return first_of_same_[i];
  }
  struct stat status {};
  if (::stat(files_[i].c_str(), &status) != 0) return file;  // opening it will say why
  const std::lock_guard lock(mutex_);
  first_of_same_[i] =
      first_by_identity_.try_emplace({status.st_dev, status.st_ino}, file).first->second;
  return first_of_same_[i];
}

namespace {

// A decoder of a codec that reorders holds some pictures, 4:2:0 mostly, and tables.
int64_t bytes_of(const io::VideoReader& reader) {
  constexpr int64_t kPictures = 10, kTables = 1 << 20;
  return kPictures * reader.info().width * reader.info().height * 3 / 2 + kTables;
}

// Of VideoIndex: a packet's entry, the frame's place and its times.
constexpr int64_t kIndexBytesPerFrame = 57;

}  // namespace

void ReaderPool::Lease::note_work() {
  const io::DecodeStatistics& now = reader_->statistics();
  const Elapsed spent = watch_.lap();
  const std::lock_guard lock(pool_->mutex_);
  PictureStatistics& sum = pool_->statistics_;
  sum.decoding += spent;
  sum.pictures_read += now.frames_read - before_.frames_read;
  sum.pictures_decoded += now.frames_decoded - before_.frames_decoded;
  sum.packets_decoded += now.packets_decoded - before_.packets_decoded;
  sum.seeks += now.seeks - before_.seeks;
}

ReaderPool::Lease::~Lease() {
  if (reader_) note_work();
  pool_->give_back(file_, std::move(reader_));
}

ReaderPool::Lease ReaderPool::acquire(int64_t file) {
  const Stopwatch watch;
  file = first_of_same(file);
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(idle_.begin(), idle_.end(),
                                    [file](const Idle& idle) { return idle.file == file; });
    if (found != idle_.end()) {
      std::unique_ptr<io::VideoReader> reader = std::move(found->reader);
      idle_bytes_ -= found->bytes;
      idle_.erase(found);
      ++statistics_.decoders_reused;
      peak_busy_ = std::max(peak_busy_, ++num_busy_);
      return Lease(*this, file, std::move(reader), watch);
    }
  }
  auto reader = std::make_unique<io::VideoReader>(index(file), decoder_);
  const std::lock_guard lock(mutex_);
  ++statistics_.decoders_opened;
  peak_busy_ = std::max(peak_busy_, ++num_busy_);
  return Lease(*this, file, std::move(reader), watch);
}

void ReaderPool::give_back(int64_t file, std::unique_ptr<io::VideoReader> reader) {
  std::list<Idle> closing;  // decoders are freed outside the lock
  const std::lock_guard lock(mutex_);
  --num_busy_;
  if (reader) {
    const int64_t bytes = bytes_of(*reader);
    idle_.push_front({file, std::move(reader), bytes});
    idle_bytes_ += bytes;
  }
  const int64_t per_user =
      decoder_ == io::VideoDecoder::kNvdec ? kNvdecReadersPerUser : kReadersPerUser;
  while (static_cast<int64_t>(idle_.size()) > per_user * peak_busy_ ||
         (idle_bytes_ > kMaxIdleBytes && idle_.size() > 1)) {
    idle_bytes_ -= idle_.back().bytes;
    closing.splice(closing.begin(), idle_, std::prev(idle_.end()));
  }
}

io::VideoIndexPtr ReaderPool::index(int64_t file) {
  file = first_of_same(file);
  {
    const std::lock_guard lock(mutex_);
    const auto found = index_of_.find(file);
    if (found != index_of_.end()) {
      indices_.splice(indices_.begin(), indices_, found->second);
      return found->second->index;
    }
  }
  io::VideoIndexPtr index = io::VideoIndex::build(files_[static_cast<size_t>(file)]);
  const std::lock_guard lock(mutex_);
  if (!index_of_.contains(file)) {
    indices_.push_front({file, index});
    index_of_[file] = indices_.begin();
    num_indexed_frames_ += index->info().num_frames;
    while (num_indexed_frames_ > kMaxIndexedFrames && indices_.size() > 1) {
      num_indexed_frames_ -= indices_.back().index->info().num_frames;
      index_of_.erase(indices_.back().file);
      indices_.pop_back();
    }
  }
  return index;
}

PictureStatistics ReaderPool::statistics() const {
  const std::lock_guard lock(mutex_);
  PictureStatistics out = statistics_;
  out.decoders_idle = static_cast<int64_t>(idle_.size());
  out.indexed_frames = num_indexed_frames_;
  out.index_bytes = num_indexed_frames_ * kIndexBytesPerFrame;
  return out;
}

int64_t ReaderPool::num_idle() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(idle_.size());
}

}  // namespace longship::data::lerobot
