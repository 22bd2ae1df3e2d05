#include "train/checkpoint.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/strings.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "longship-checkpoint-1";
// Beyond the tensors: headers, JSON files, file system blocks.
constexpr uint64_t kSlackBytes = uint64_t{4} << 20;

std::optional<int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with("step_")) return std::nullopt;
  const std::optional<int64_t> step = parse_whole_number(std::string_view(name).substr(5));
  return step && *step >= 0 ? step : std::nullopt;
}

// Relative paths of all files below a folder but for the manifest, sorted.
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_directory()) continue;
    std::string name = entry.path().lexically_relative(folder).generic_string();
    if (name != kManifestFile) out.push_back(std::move(name));
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string checked(const fs::path& folder) {
  const fs::path file = folder / kManifestFile;
  if (!fs::exists(file)) return fmt::format("it has no {}", kManifestFile);
  const nlohmann::json manifest =
      parse_json_file(file, {.max_bytes = uint64_t{64} << 20, .code = ExitCode::kCheckpoint});
  if (!manifest.is_object() || manifest.value("format", "") != kFormat ||
      !manifest.contains("files") || !manifest["files"].is_array()) {
    return fmt::format("{} is not of the form {}", kManifestFile, kFormat);
  }
  std::set<std::string> listed;
  for (const auto& entry : manifest["files"]) {
    const auto name = entry.at("path").get<std::string>();
    const auto bytes = entry.at("bytes").get<uint64_t>();
    listed.insert(name);
    const fs::path path = folder / name;
    if (!fs::is_regular_file(path)) return fmt::format("{} is missing", name);
    const uint64_t found = fs::file_size(path);
    if (found != bytes) return fmt::format("{} has {} bytes instead of {}", name, found, bytes);
  }
  for (const std::string& name : files_below(folder)) {
    if (!listed.contains(name)) return fmt::format("{} is not in the manifest", name);
  }
  for (const auto& entry : manifest["files"]) {
    const auto name = entry.at("path").get<std::string>();
    if (sha256_file(folder / name) != entry.at("sha256").get<std::string>()) {
      return fmt::format("the content of {} does not match its SHA-256", name);
    }
  }
  return {};
}

}  // namespace

std::string check_manifest(const fs::path& folder) {
  try {
    return checked(folder);
  } catch (const std::exception& error) {
    return error.what();
  }
}

void write_manifest(const fs::path& folder, int64_t step) {
  nlohmann::ordered_json manifest;
  manifest["format"] = kFormat;
  manifest["step"] = step;
  manifest["files"] = nlohmann::ordered_json::array();
  for (const std::string& name : files_below(folder)) {
    const fs::path path = folder / name;
    manifest["files"].push_back(
        {{"path", name}, {"bytes", fs::file_size(path)}, {"sha256", sha256_file(path)}});
  }
  fs::create_directories((folder / kManifestFile).parent_path());
  write_file_atomic(folder / kManifestFile, manifest.dump(1) + "\n", ExitCode::kCheckpoint);
}

CheckpointStore::CheckpointStore(fs::path run_dir) : run_dir_(std::move(run_dir)) {}

fs::path CheckpointStore::folder_of(int64_t step) const {
  return checkpoints_dir() / fmt::format("step_{}", step);
}

std::vector<int64_t> CheckpointStore::steps() const {
  std::vector<int64_t> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(checkpoints_dir(), ignored)) {
    if (!entry.is_directory()) continue;
    if (const auto step = step_of(entry.path())) out.push_back(*step);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::optional<int64_t> CheckpointStore::newest_valid(std::vector<Rejected>* rejected) const {
  const std::vector<int64_t> all = steps();
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const std::string reason = check_manifest(folder_of(*it));
    if (reason.empty()) return *it;
    if (rejected != nullptr) rejected->push_back({folder_of(*it), reason});
  }
  return std::nullopt;
}

fs::path CheckpointStore::save(int64_t step, uint64_t expected_bytes,
                               const std::function<void(const fs::path&)>& fill) {
  const fs::path target = folder_of(step);
  try {
    if (fs::exists(target)) {
      if (check_manifest(target).empty()) {
        point_latest_at(step);
        return target;
      }
      fs::path aside;
      for (int64_t k = 1; aside.empty() || fs::exists(aside); ++k) {
        aside = target.parent_path() / fmt::format("step_{}.invalid-{}", step, k);
      }
      fs::rename(target, aside);
      log::warn("{} is not valid and was moved to {}", target.string(), aside.string());
    }
    const uint64_t needed = expected_bytes + expected_bytes / 100 + kSlackBytes;
    const uint64_t available = free_bytes(checkpoints_dir());
    LS_CHECK(available >= needed, CheckpointError, "{} are needed and {} are free",
             human_bytes(needed), human_bytes(available));
    AtomicFolder folder(target, ExitCode::kCheckpoint);
    fill(folder.path());
    write_manifest(folder.path(), step);
    folder.commit();
    point_latest_at(step);
  } catch (const std::exception& error) {
    const auto last = newest_valid();
    throw CheckpointError(fmt::format(
        "could not save the checkpoint {}: {}; {}. Make room or correct the permissions, then "
        "start the same command again to resume",
        target.string(), error.what(),
        last ? fmt::format("the last good checkpoint is {}", folder_of(*last).string())
             : "no checkpoint had been written before"));
  }
  return target;
}

void CheckpointStore::point_latest_at(int64_t step) const {
  const fs::path link = run_dir_ / "latest";
  const fs::path fresh = run_dir_ / fmt::format("latest.partial-{}", ::getpid());
  std::error_code ignored;
  fs::remove(fresh, ignored);
  fs::create_directory_symlink(fs::path("checkpoints") / fmt::format("step_{}", step), fresh);
  fs::rename(fresh, link);
}

void CheckpointStore::prune(int64_t newest, int64_t keep_last,
                            std::optional<int64_t> keep_every) const {
  std::vector<int64_t> all = steps();
  std::erase_if(all, [newest](int64_t step) { return step > newest; });
  std::error_code failure;
  for (size_t i = 0; i + static_cast<size_t>(keep_last) < all.size(); ++i) {
    if (keep_every && all[i] % *keep_every == 0) continue;
    // Renamed first, so that a kill while deleting never leaves a step_N that is half there.
    const fs::path doomed =
        checkpoints_dir() / fmt::format("step_{}.partial-{}", all[i], ::getpid());
    fs::rename(folder_of(all[i]), doomed, failure);
    if (!failure) fs::remove_all(doomed, failure);
    if (failure) {
      log::warn("could not delete the old checkpoint {}: {}", folder_of(all[i]).string(),
                failure.message());
    }
  }
}

void CheckpointStore::remove_partials() const {
  if (fs::exists(checkpoints_dir())) remove_stale_partials(checkpoints_dir());
  if (fs::exists(run_dir_)) remove_stale_partials(run_dir_);
}

fs::path resolve_checkpoint(const fs::path& path) {
  LS_CHECK(fs::exists(path), CheckpointError, "{}: there is no such file or folder", path.string());
  if (fs::exists(path / "model.safetensors") || fs::exists(path / "model.safetensors.index.json")) {
    return path;
  }
  const CheckpointStore store(path);
  std::vector<Rejected> rejected;
  const auto step = store.newest_valid(&rejected);
  std::vector<std::string> reasons;
  for (const Rejected& r : rejected) {
    reasons.push_back(fmt::format("{}: {}", r.folder.string(), r.reason));
  }
  LS_CHECK(step.has_value(), CheckpointError,
           "{}: neither a checkpoint (it has no model.safetensors) nor a run with a usable one{}",
           path.string(),
           reasons.empty() ? std::string(" (no folder checkpoints/step_N)")
                           : fmt::format(": {}", fmt::join(reasons, "; ")));
  for (const std::string& reason : reasons) log::warn("checkpoint not used: {}", reason);
  return store.folder_of(*step);
}

}  // namespace longship::train
