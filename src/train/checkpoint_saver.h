#pragma once
// Saving while training goes on.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "train/checkpoint_io.h"

namespace longship::train {

/// A host copy of tensors that training changes, in memory that is used again for the next one. On
/// CUDA the memory is pinned and the copies run on a stream of their own.
class HostCopy {
 public:
  /// Copies the tensors of `parts` that training changes; the result refers to this object's
  /// memory. On return the originals may change. Waits for what is enqueued on their device.
  /// Throws CheckpointError when this machine has not enough free memory for the copy.
  SaveParts take(const SaveParts& parts);
  /// Held now.
  uint64_t bytes() const;

 private:
  void reserve(uint64_t num_bytes, bool pinned);
  std::vector<at::Tensor> chunks_;  // uint8
  bool pinned_ = false;
};

struct SaverOptions {
  bool async = true;
  int64_t keep_last = 3;
  std::optional<int64_t> keep_every;
};

/// Saves checkpoints of a run, one at a time. With `async` begin() copies the state and returns; a
/// thread writes, commits and prunes. Files are the same, bit for bit, as without.
class CheckpointSaver {
 public:
  /// Both must outlive this object. With `async` the group is used by a thread of this object.
  CheckpointSaver(CheckpointStore& store, CheckpointGroup& group, SaverOptions options);
  ~CheckpointSaver();  // waits for the save under way
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Tells that this step is saved already (it was resumed from).
  void assume_saved(int64_t step, const std::filesystem::path& folder);
  /// Saves the state of `step`, which make() gives, unless it is saved or being saved. Waits for
  /// the save before. With `async` a failure is a warning with path, reason and the last good
  /// checkpoint, and training goes on; without, it throws CheckpointError.
  void begin(int64_t step, const std::function<SaveParts()>& make);
  /// The same, and returns when the checkpoint is there. Throws CheckpointError. For the end of a
  /// run.
  void finish(int64_t step, const std::function<SaveParts()>& make);
  /// Waits for the save under way. Throws only when a peer was lost.
  void wait();
  /// The newest committed one; empty when there is none. Not while a save is under way.
  const std::filesystem::path& newest() const { return newest_; }

 private:
  void write(const SaveParts& parts);
  void write_or_stop(const SaveParts& parts);
  void write_in_background(const SaveParts& parts);
  void keep_saved(int64_t step, const std::filesystem::path& folder);

  CheckpointStore& store_;
  CheckpointGroup& group_;
  SaverOptions options_;
  HostCopy copy_;
  std::thread thread_;
  // Of the thread while it runs.
  std::optional<int64_t> saved_step_;
  std::filesystem::path newest_;
  std::exception_ptr lost_peer_;
};

}  // namespace longship::train
