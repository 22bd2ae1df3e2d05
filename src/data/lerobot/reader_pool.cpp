#include "data/lerobot/reader_pool.h"

#include <algorithm>
#include <utility>

namespace longship::data::lerobot {

ReaderPool::ReaderPool(std::vector<std::filesystem::path> files) : files_(std::move(files)) {}

ReaderPool::Lease::~Lease() {
  pool_->give_back(file_, std::move(reader_));
}

ReaderPool::Lease ReaderPool::acquire(int64_t file) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(idle_.begin(), idle_.end(),
                                    [file](const Idle& idle) { return idle.file == file; });
    if (found != idle_.end()) {
      std::unique_ptr<io::VideoReader> reader = std::move(found->reader);
      idle_.erase(found);
      peak_busy_ = std::max(peak_busy_, ++num_busy_);
      return Lease(*this, file, std::move(reader));
    }
  }
  auto reader = std::make_unique<io::VideoReader>(index(file));
  const std::lock_guard lock(mutex_);
  peak_busy_ = std::max(peak_busy_, ++num_busy_);
  return Lease(*this, file, std::move(reader));
}

void ReaderPool::give_back(int64_t file, std::unique_ptr<io::VideoReader> reader) {
  std::list<Idle> closing;  // decoders are freed outside the lock
  const std::lock_guard lock(mutex_);
  --num_busy_;
  if (reader) idle_.push_front({file, std::move(reader)});
  while (static_cast<int64_t>(idle_.size()) > kReadersPerUser * peak_busy_) {
    closing.splice(closing.begin(), idle_, std::prev(idle_.end()));
  }
}

io::VideoIndexPtr ReaderPool::index(int64_t file) {
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

int64_t ReaderPool::num_idle() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(idle_.size());
}

}  // namespace longship::data::lerobot
