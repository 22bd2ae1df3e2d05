#include "train/checkpoint.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/strings.h"
#include "io/sharded_state.h"

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

/// A file as the manifest has it.
struct Listed {
  std::string name, sha256;
  uint64_t bytes = 0;
};

std::vector<Listed> listed_files(const fs::path& folder) {
  const nlohmann::json manifest = parse_json_file(
      folder / kManifestFile, {.max_bytes = uint64_t{64} << 20, .code = ExitCode::kCheckpoint});
  LS_CHECK(manifest.is_object() && manifest.value("format", "") == kFormat &&
               manifest.contains("files") && manifest["files"].is_array(),
           CheckpointError, "{} is not of the form {}", kManifestFile, kFormat);
  std::vector<Listed> out;
  for (const auto& entry : manifest["files"]) {
    out.push_back({entry.at("path").get<std::string>(), entry.at("sha256").get<std::string>(),
                   entry.at("bytes").get<uint64_t>()});
  }
  return out;
}

/// Calls fault(reason) for everything that is wrong; it says whether to go on.
void look(const fs::path& folder, const BytesProgress& progress,
          const std::function<bool(const std::string&)>& fault) {
  if (!fs::exists(folder / kManifestFile)) {
    fault(fmt::format("it has no {}", kManifestFile));
    return;
  }
  std::vector<Listed> sound;
  std::set<std::string> names;
  uint64_t total = 0, done = 0;
  // What costs nothing first: sizes tell most damage at once.
  for (Listed& file : listed_files(folder)) {
    names.insert(file.name);
    const fs::path path = folder / file.name;
    if (!fs::is_regular_file(path)) {
      if (!fault(fmt::format("{} is missing", file.name))) return;
    } else if (const uint64_t found = fs::file_size(path); found != file.bytes) {
      const std::string reason =
          fmt::format("{} has {} bytes instead of {}", file.name, found, file.bytes);
      if (!fault(reason)) return;
    } else {
      total += file.bytes;
      sound.push_back(std::move(file));
    }
  }
  for (const std::string& name : files_below(folder)) {
    if (!names.contains(name) && !fault(fmt::format("{} is not in the manifest", name))) return;
  }
  for (const Listed& file : sound) {
    const auto sum = sha256_file(folder / file.name, [&](uint64_t bytes) {
      if (progress) progress(done + bytes, total);
    });
    done += file.bytes;
    const bool damaged = sum != file.sha256;
    if (damaged && !fault(fmt::format("the content of {} does not match its SHA-256", file.name))) {
      return;
    }
  }
}

}  // namespace

std::string check_manifest(const fs::path& folder, const BytesProgress& progress) {
  std::string reason;
  try {
    look(folder, progress, [&reason](const std::string& fault) {
      reason = fault;
      return false;
    });
    if (reason.empty() && fs::exists(folder / "state" / io::kShardIndexFile)) {
      io::ShardedState::open(folder / "state").check_files();
    }
  } catch (const std::exception& error) {
    reason = error.what();
  }
  return reason;
}

std::vector<std::string> manifest_faults(const fs::path& folder, const BytesProgress& progress) {
  std::vector<std::string> faults;
  try {
    look(folder, progress, [&faults](const std::string& fault) {
      faults.push_back(fault);
      return true;
    });
  } catch (const std::exception& error) {
    faults.emplace_back(error.what());
  }
  return faults;
}

void write_manifest(const fs::path& folder, int64_t step, const std::vector<WrittenFile>& written) {
  std::map<std::string, io::FileSum> known;
  for (const WrittenFile& file : written) known[file.path] = file.sum;
  nlohmann::ordered_json manifest;
  manifest["format"] = kFormat;
  manifest["step"] = step;
  manifest["files"] = nlohmann::ordered_json::array();
  for (const std::string& name : files_below(folder)) {
    const fs::path path = folder / name;
    const auto found = known.find(name);
    const uint64_t bytes = fs::file_size(path);
    LS_CHECK(found == known.end() || found->second.bytes == bytes, CheckpointError,
             "{} has {} bytes, its writer reported {}; does every rank see the same folder?",
             path.string(), bytes, found->second.bytes);
    manifest["files"].push_back(
        {{"path", name},
         {"bytes", bytes},
         {"sha256", found == known.end() ? sha256_file(path) : found->second.sha256}});
    known.erase(name);
  }
  LS_CHECK(known.empty(), CheckpointError,
           "{} was reported by its writer and is not there; does every rank see the same folder?",
           (folder / known.begin()->first).string());
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
  SingleProcess alone;
  SavePlan plan;
  plan.step = step;
  plan.bytes = expected_bytes;
  plan.write = [&fill](const fs::path& folder) {
    fill(folder);
    return std::vector<WrittenFile>();
  };
  return save(alone, plan);
}

/// The temporary folder, or none where a valid checkpoint of the step is there already.
struct CheckpointStore::Opened {
  std::unique_ptr<AtomicFolder> folder;
};

CheckpointStore::Opened CheckpointStore::open_folder(int64_t step, uint64_t expected_bytes) {
  const fs::path target = folder_of(step);
  if (fs::exists(target)) {
    if (check_manifest(target).empty()) {
      point_latest_at(step);
      return {};
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
  Opened opened{std::make_unique<AtomicFolder>(target, ExitCode::kCheckpoint)};
  fs::create_directories(opened.folder->path() / "state");
  return opened;
}

namespace {

// What `work` throws as text; "" when it does not.
template <class Work>
std::string reason_of(const Work& work) {
  try {
    work();
    return "";
  } catch (const std::exception& error) {
    return error.what()[0] == '\0' ? "an error without a message" : error.what();
  }
}

std::string report_of(const std::vector<WrittenFile>& files) {
  nlohmann::json out = nlohmann::json::array();
  for (const WrittenFile& f : files) out.push_back({f.path, f.sum.bytes, f.sum.sha256});
  return out.dump();
}

std::vector<WrittenFile> files_of(const std::vector<std::string>& reports) {
  std::vector<WrittenFile> out;
  for (const std::string& report : reports) {
    for (const auto& f : parse_json_text(report, "the report of a rank")) {
      out.push_back(
          {f.at(0).get<std::string>(), {f.at(1).get<uint64_t>(), f.at(2).get<std::string>()}});
    }
  }
  return out;
}

uint64_t sum_of(const std::vector<std::string>& numbers) {
  uint64_t sum = 0;
  for (const std::string& text : numbers) sum += std::stoull(text);
  return sum;
}

}  // namespace

// Rank 0 knows the last good checkpoint, and tells.
void CheckpointStore::fail_together(CheckpointGroup& group, int64_t step, const Agreement& found) {
  std::string text;
  if (group.rank() == 0) {
    std::vector<std::string> reasons;
    for (size_t r = 0; r < found.notes.size(); ++r) {
      if (found.failed[r] == 0) continue;
      reasons.push_back(group.world_size() == 1 ? found.notes[r]
                                                : fmt::format("rank {}: {}", r, found.notes[r]));
    }
    std::optional<int64_t> last;
    group.working([&] { last = newest_valid(); });
    text = fmt::format(
        "could not save the checkpoint {}: {}; {}. Make room or correct the permissions",
        folder_of(step).string(), fmt::join(reasons, "; "),
        last ? fmt::format("the last good checkpoint is {}", folder_of(*last).string())
             : "no checkpoint had been written before");
  } else {
    group.working([] {});
  }
  throw CheckpointError(group.agree(true, text).notes.at(0));
}

fs::path CheckpointStore::save(CheckpointGroup& group, const SavePlan& plan) {
  const bool first = group.rank() == 0;
  group.set_step(plan.step);
  const Agreement sizes = group.agree(true, std::to_string(plan.bytes));
  Opened opened;
  std::string why;
  group.working([&] {
    if (!first) return;
    why = reason_of([&] { opened = open_folder(plan.step, sum_of(sizes.notes)); });
  });
  const Agreement begun =
      group.agree(why.empty(), opened.folder ? opened.folder->path().filename().string() : why);
  if (!begun.ok) fail_together(group, plan.step, begun);
  const std::string& name = begun.notes.at(0);
  if (name.empty()) return folder_of(plan.step);  // it is there already

  std::vector<WrittenFile> files;
  group.working([&] { why = reason_of([&] { files = plan.write(checkpoints_dir() / name); }); });
  const Agreement written = group.agree(why.empty(), why.empty() ? report_of(files) : why);
  if (!written.ok) {
    opened.folder.reset();
    fail_together(group, plan.step, written);
  }
  group.working([&] {
    if (!first) return;
    why = reason_of([&] {
      const fs::path folder = opened.folder->path();
      files = files_of(written.notes);
      if (plan.complete) {
        for (WrittenFile& file : plan.complete(folder)) files.push_back(std::move(file));
      }
      write_manifest(folder, plan.step, files);
      opened.folder->commit();
      point_latest_at(plan.step);
    });
  });
  const Agreement committed = group.agree(why.empty(), why);
  if (!committed.ok) {
    opened.folder.reset();
    fail_together(group, plan.step, committed);
  }
  return folder_of(plan.step);
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
  if (fs::exists(checkpoints_dir())) {
    // In a container every start may have the number of the process that was killed.
    const std::string own = fmt::format(".partial-{}", ::getpid());
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(checkpoints_dir(), ignored)) {
      if (entry.path().filename().string().ends_with(own)) fs::remove_all(entry.path(), ignored);
    }
    remove_stale_partials(checkpoints_dir());
  }
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
