#pragma once
// Checkpoints of a run: checkpoints/step_N/, each complete and checked by its manifest, and the
// link `latest`.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "train/checkpoint_group.h"

namespace longship::train {

inline constexpr const char* kManifestFile = "state/manifest.json";

/// A folder that was looked at and not used, with the reason.
struct Rejected {
  std::filesystem::path folder;
  std::string reason;
};

/// A file of a checkpoint as its writer reports it.
struct WrittenFile {
  std::string path;  // relative to the checkpoint
  io::FileSum sum;
};

/// What the ranks of a group write into a checkpoint.
struct SavePlan {
  int64_t step = 0;
  uint64_t bytes = 0;  // of this rank's files, for the check of free space
  /// On every rank: writes its files (synced) and reports them.
  std::function<std::vector<WrittenFile>(const std::filesystem::path& folder)> write;
  /// On rank 0, after write() of all ranks: what is made from their files. May be empty.
  std::function<std::vector<WrittenFile>(const std::filesystem::path& folder)> complete;
};

/// Writes, finds and prunes the checkpoints below `run_dir`. A kill at any moment leaves every
/// committed checkpoint usable: a folder is filled under a temporary name, gets a manifest with the
/// size and SHA-256 of every file, is synced and renamed; `latest` follows by an atomic rename;
/// older ones are deleted only after that.
class CheckpointStore {
 public:
  explicit CheckpointStore(std::filesystem::path run_dir);

  std::filesystem::path folder_of(int64_t step) const;
  std::filesystem::path checkpoints_dir() const { return run_dir_ / "checkpoints"; }

  /// Checks the free space against `expected_bytes`, calls fill(folder) and commits. A checkpoint
  /// of the same step that is valid is left as it is; one that is not is moved aside. Throws
  /// CheckpointError naming the path, the reason and the last good checkpoint.
  std::filesystem::path save(int64_t step, uint64_t expected_bytes,
                             const std::function<void(const std::filesystem::path&)>& fill);

  /// The same by all ranks of a group, each with its own plan for the same step; the folder of the
  /// run is one they all see. Rank 0 makes the temporary folder, every rank writes its files and
  /// reports their size and SHA-256, rank 0 completes, writes the manifest, syncs and renames. When
  /// any rank fails nothing is committed, and every rank throws the same CheckpointError with the
  /// reasons of all. Exceptions of the group (a lost peer) pass through; nothing is committed then
  /// either, but what rank 0 had committed already.
  std::filesystem::path save(CheckpointGroup& group, const SavePlan& plan);

  /// Steps of all folders named step_N, ascending, whatever their state.
  std::vector<int64_t> steps() const;
  /// The newest step whose manifest holds; newer ones that were rejected are appended to
  /// `rejected`.
  std::optional<int64_t> newest_valid(std::vector<Rejected>* rejected = nullptr) const;

  /// After save(newest): of the checkpoints up to `newest`, deletes those older than the last
  /// `keep_last`, but for multiples of `keep_every`. Later ones are left alone.
  void prune(int64_t newest, int64_t keep_last, std::optional<int64_t> keep_every) const;
  /// Removes what a killed process left half-written. At the start of a run, before any save.
  void remove_partials() const;

 private:
  struct Opened;
  Opened open_folder(int64_t step, uint64_t needed);
  [[noreturn]] void fail_together(CheckpointGroup& group, int64_t step, const Agreement& found);
  void point_latest_at(int64_t step) const;
  std::filesystem::path run_dir_;
};

/// Called while files are read: bytes done, bytes in all.
using BytesProgress = std::function<void(uint64_t done, uint64_t total)>;

/// Empty when the manifest of a checkpoint folder holds (every file there with its size and
/// SHA-256, none extra) and its state is complete (the index of the ranks' files covers every
/// tensor), else the reason.
std::string check_manifest(const std::filesystem::path& folder, const BytesProgress& progress = {});
/// All such reasons, for looking at a checkpoint. Files after a damaged one are read too.
std::vector<std::string> manifest_faults(const std::filesystem::path& folder,
                                         const BytesProgress& progress = {});
/// Writes the manifest over everything that is in the folder now. Files in `written` are taken at
/// their writer's word, but for their size; others are read.
void write_manifest(const std::filesystem::path& folder, int64_t step,
                    const std::vector<WrittenFile>& written = {});

/// The checkpoint folder meant by `path`: itself, or the newest valid one of a run folder (rejected
/// ones are warned about). Throws CheckpointError when there is none.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

}  // namespace longship::train
