#pragma once
// Checkpoints of a run: checkpoints/step_N/, each complete and checked by its manifest, and the
// link `latest`.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace longship::train {

inline constexpr const char* kManifestFile = "state/manifest.json";

/// A folder that was looked at and not used, with the reason.
struct Rejected {
  std::filesystem::path folder;
  std::string reason;
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

  /// Steps of all folders named step_N, ascending, whatever their state.
  std::vector<int64_t> steps() const;
  /// The newest step whose manifest holds; newer ones that were rejected are appended to
  /// `rejected`.
  std::optional<int64_t> newest_valid(std::vector<Rejected>* rejected = nullptr) const;

  /// After save(newest): of the checkpoints up to `newest`, deletes those older than the last
  /// `keep_last`, but for multiples of `keep_every`. Later ones are left alone.
  void prune(int64_t newest, int64_t keep_last, std::optional<int64_t> keep_every) const;
  /// Removes what a killed process left half-written.
  void remove_partials() const;

 private:
  void point_latest_at(int64_t step) const;
  std::filesystem::path run_dir_;
};

/// Empty when the manifest of a checkpoint folder holds (every file there with its size and
/// SHA-256, none extra), else the reason.
std::string check_manifest(const std::filesystem::path& folder);
/// Writes the manifest over everything that is in the folder now.
void write_manifest(const std::filesystem::path& folder, int64_t step);

/// The checkpoint folder meant by `path`: itself, or the newest valid one of a run folder (rejected
/// ones are warned about). Throws CheckpointError when there is none.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

}  // namespace longship::train
