#include "train/run_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "train/checkpoint.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;

// What a run writes into its folder; --overwrite removes these and nothing else.
constexpr const char* kRunFiles[] = {"config.yaml", "train.log",   "metrics.jsonl", "tensorboard",
                                     "loss.svg",    "checkpoints", "latest",        "open_loop"};

bool is_empty_or_absent(const fs::path& folder) {
  return !fs::exists(folder) || (fs::is_directory(folder) && fs::is_empty(folder));
}

// What the processes of a run beside the first write, and all of them when a peer is lost.
bool is_rank_file(const std::string& name) {
  return (name.starts_with("train.rank") && name.ends_with(".log")) ||
         (name.starts_with("flight_") && name.ends_with(".json"));
}

void remove_run(const fs::path& folder) {
  for (const char* name : kRunFiles) fs::remove_all(folder / name);
  if (!fs::exists(folder)) return;
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (is_rank_file(entry.path().filename().string())) others.push_back(entry.path());
  }
  for (const fs::path& path : others) fs::remove(path);
}

std::string list_rejected(const std::vector<Rejected>& rejected) {
  std::vector<std::string> lines;
  for (const Rejected& r : rejected)
    lines.push_back(fmt::format("{}: {}", r.folder.string(), r.reason));
  return fmt::format("{}", fmt::join(lines, "; "));
}

// What a kill during the first save leaves is nothing to lose.
bool holds_only_partials(const fs::path& checkpoints) {
  if (!fs::exists(checkpoints)) return true;
  const fs::directory_iterator entries(checkpoints);
  return std::all_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
    return entry.path().filename().string().find(".partial-") != std::string::npos;
  });
}

// A run that ended before its first checkpoint may start over when it is the same run.
bool same_run_without_checkpoint(const Recipe& recipe, const fs::path& folder,
                                 const FamilyLookup& lookup) {
  if (!holds_only_partials(folder / "checkpoints")) return false;
  if (!fs::exists(folder / "config.yaml")) return false;
  try {
    const Recipe before = load_recipe(folder / "config.yaml", {}, lookup);
    for (const Difference& d : compare(before, recipe)) {
      if (d.breaks_exactness) return false;
    }
    return std::equal(
        before.data.datasets.begin(), before.data.datasets.end(), recipe.data.datasets.begin(),
        recipe.data.datasets.end(),
        [](const DatasetEntry& a, const DatasetEntry& b) { return a.path == b.path; });
  } catch (const ConfigError&) {
    return false;
  }
}

void check_differences(const Recipe& recipe, StartPlan& plan, const DatasetIdentity& dataset,
                       const FamilyLookup& lookup) {
  const fs::path file = *plan.resume_from / "config.yaml";
  LS_CHECK(fs::exists(file), CheckpointError, "{}: has no config.yaml, so it cannot be resumed",
           plan.resume_from->string());
  std::vector<std::string> breaking;
  const Recipe before = load_recipe(file, {}, lookup);
  for (const Difference& d : compare(before, recipe)) {
    const std::string line = fmt::format("{}: {} -> {}", d.key, d.before, d.after);
    if (d.key != "output_dir") plan.notes.push_back("changed since the checkpoint: " + line);
    if (d.breaks_exactness) breaking.push_back(line);
  }
  if (plan.state.dataset_identity.empty()) {
    plan.warnings.push_back(
        "the checkpoint says nothing of its datasets but a hash of an older kind; they are not "
        "compared");
  } else if (plan.state.dataset_fingerprint != fingerprint(dataset)) {
    std::vector<std::string> paths;
    for (const DatasetEntry& entry : recipe.data.datasets) paths.push_back(entry.path);
    for (const std::string& line : differences(plan.state.dataset_identity, dataset)) {
      breaking.push_back(
          fmt::format("the content of the dataset {}: {}", fmt::join(paths, " + "), line));
    }
  }
  LS_CHECK(plan.is_fork || breaking.empty(), ConfigError,
           "{} cannot be resumed with this recipe, because the run would not be the one it was; "
           "changed:\n  {}\nTake these changes back, or start a new run from the checkpoint: "
           "output_dir=<another folder> checkpoint.resume={}",
           plan.resume_from->string(), fmt::join(breaking, "\n  "), plan.resume_from->string());
}

StartPlan resume_plan(const fs::path& checkpoint, bool is_fork) {
  StartPlan plan;
  plan.resume_from = checkpoint;
  plan.is_fork = is_fork;
  plan.state = trainer_state_from(checkpoint);
  return plan;
}

// resume: auto in a folder that is not empty.
StartPlan plan_auto(const Recipe& recipe, const fs::path& folder, const FamilyLookup& lookup) {
  const CheckpointStore store(folder);
  std::vector<Rejected> rejected;
  const auto step = store.newest_valid(&rejected);
  if (step) {
    StartPlan plan = resume_plan(store.folder_of(*step), false);
    for (const Rejected& r : rejected) {
      plan.warnings.push_back(
          fmt::format("checkpoint {} is not used: {}", r.folder.string(), r.reason));
    }
    return plan;
  }
  if (!rejected.empty()) {
    throw CheckpointError(fmt::format(
        "{}: none of its checkpoints can be used: {}. Start over with --overwrite, or choose "
        "another output_dir",
        folder.string(), list_rejected(rejected)));
  }
  LS_CHECK(
      same_run_without_checkpoint(recipe, folder, lookup), ConfigError,
      "output_dir: {} is not empty and holds no checkpoint to resume; choose another folder, "
      "or pass --overwrite to remove an earlier run there (only files a run writes are removed)",
      folder.string());
  remove_run(folder);
  StartPlan plan;
  plan.notes.push_back("an earlier start of this run wrote no checkpoint; starting over");
  return plan;
}

}  // namespace

void StartPlan::report() const {
  for (const std::string& line : warnings) log::warn("{}", line);
  for (const std::string& line : notes) log::info("{}", line);
}

std::string to_json(const TrainerState& s) {
  nlohmann::ordered_json out;
  out["format"] = 1;
  out["step"] = s.step;
  out["num_updates"] = s.num_updates;
  out["skipped_steps"] = s.skipped_steps;
  out["num_samples"] = s.num_samples;
  out["seed"] = s.seed;
  out["global_batch"] = s.global_batch;
  out["dataset_fingerprint"] = s.dataset_fingerprint;
  out["dataset"] = nlohmann::ordered_json::array();
  for (const auto& [aspect, text] : s.dataset_identity) out["dataset"].push_back({aspect, text});
  out["window"] = {{"steps", s.window_steps},
                   {"updates", s.window_updates},
                   {"loss", s.window_loss},
                   {"grad_norm", s.window_grad_norm}};
  out["window"]["extra"] = nlohmann::ordered_json::array();
  for (const auto& [name, value] : s.window_extra) out["window"]["extra"].push_back({name, value});
  return out.dump(1) + "\n";
}

TrainerState trainer_state_from(const fs::path& checkpoint) {
  const fs::path file = checkpoint / "state" / "trainer.json";
  LS_CHECK(fs::exists(file), CheckpointError,
           "{}: has no training state (state/trainer.json), so it cannot be resumed; to start from "
           "its weights set model.checkpoint",
           checkpoint.string());
  const nlohmann::json in = parse_json_file(file, {.code = ExitCode::kCheckpoint});
  TrainerState s;
  try {
    s.step = in.at("step").get<int64_t>();
    s.num_updates = in.at("num_updates").get<int64_t>();
    s.skipped_steps = in.at("skipped_steps").get<int64_t>();
    s.num_samples = in.at("num_samples").get<int64_t>();
    s.seed = in.at("seed").get<int64_t>();
    s.global_batch = in.at("global_batch").get<int64_t>();
    s.dataset_fingerprint = in.at("dataset_fingerprint").get<std::string>();
    for (const auto& pair : in.value("dataset", nlohmann::json::array())) {
      s.dataset_identity.emplace_back(pair.at(0).get<std::string>(), pair.at(1).get<std::string>());
    }
    const nlohmann::json& window = in.at("window");
    s.window_steps = window.at("steps").get<int64_t>();
    s.window_updates = window.at("updates").get<int64_t>();
    s.window_loss = window.at("loss").get<double>();
    s.window_grad_norm = window.at("grad_norm").get<double>();
    for (const auto& pair : window.at("extra")) {
      s.window_extra.emplace_back(pair.at(0).get<std::string>(), pair.at(1).get<double>());
    }
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: {}", file.string(), error.what()));
  }
  return s;
}

StartPlan plan_start(const Recipe& recipe, bool overwrite, const DatasetIdentity& dataset,
                     const FamilyLookup& lookup) {
  const fs::path folder = recipe.output_dir;
  const std::string& resume = recipe.checkpoint.resume;
  LS_CHECK(!fs::exists(folder) || fs::is_directory(folder), ConfigError,
           "output_dir: {} is not a folder", folder.string());
  StartPlan plan;
  if (overwrite) remove_run(folder);
  if (resume != "auto" && resume != "never") {
    LS_CHECK(fs::exists(resume), CheckpointError, "checkpoint.resume: {} does not exist", resume);
    const fs::path checkpoint = resolve_checkpoint(resume);
    const std::string reason = check_manifest(checkpoint);
    LS_CHECK(reason.empty(), CheckpointError, "checkpoint.resume: {} cannot be used: {}",
             checkpoint.string(), reason);
    const fs::path owner = fs::canonical(checkpoint).parent_path().parent_path();
    const bool is_fork = !fs::exists(folder) || fs::canonical(folder) != owner;
    LS_CHECK(!is_fork || is_empty_or_absent(folder), ConfigError,
             "output_dir: {} is not empty; a run that starts from the checkpoint of another run "
             "needs a new folder (or --overwrite)",
             folder.string());
    plan = resume_plan(checkpoint, is_fork);
  } else if (!is_empty_or_absent(folder)) {
    if (resume == "never") {
      // A folder that --overwrite has just cleaned may still hold files that are not ours; they are
      // left alone.
      LS_CHECK(
          overwrite, ConfigError,
          "output_dir: {} is not empty and checkpoint.resume is never; choose another folder, or "
          "pass --overwrite to remove the earlier run there",
          folder.string());
    } else if (!overwrite) {
      plan = plan_auto(recipe, folder, lookup);
    }
  }
  std::error_code failure;
  fs::create_directories(folder, failure);
  LS_CHECK(!failure, ConfigError, "output_dir: {} cannot be created: {}", folder.string(),
           failure.message());
  if (plan.resume_from) check_differences(recipe, plan, dataset, lookup);
  return plan;
}

}  // namespace longship::train
