// longship checkpoint: looks into checkpoints, puts them together, cuts them anew, compares them.
#include "apps/checkpoint.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/strings.h"
#include "train/checkpoint_tools.h"

namespace longship::apps {
namespace {

namespace fs = std::filesystem;
using train::TensorDiff;

constexpr const char* kExitCodes =
    "PATH is a checkpoint (RUN/checkpoints/step_N, RUN/latest) or a run folder. "
    "docs/checkpoints.md "
    "describes the files and every message.\n"
    "Exit codes: 0 done, 1 diff: A and B differ, 2 usage (also: --out exists), 4 a checkpoint is "
    "damaged, incomplete or cannot be written.";

/// Progress of a long job, in mebibytes; shown once it takes a while.
class Shown {
 public:
  explicit Shown(std::string label) : label_(std::move(label)) {}
  train::BytesProgress report() {
    return [this](uint64_t done, uint64_t total) {
      constexpr uint64_t kMib = uint64_t{1} << 20;
      if (total < 64 * kMib) return;
      if (progress_ == nullptr) {
        progress_ =
            std::make_unique<Progress>(label_, static_cast<int64_t>(total / kMib), "MiB", 0, 10);
      }
      progress_->update(static_cast<int64_t>(done / kMib));
    };
  }

 private:
  std::string label_;
  std::unique_ptr<Progress> progress_;
};

struct VerifyOptions {
  std::string path;
  bool json = false;
};

nlohmann::ordered_json to_json(const train::Verified& v) {
  nlohmann::ordered_json out;
  out["path"] = v.folder.string();
  out["sound"] = v.faults.empty();
  out["step"] = v.step;
  out["world_size"] = v.world_size;
  out["strategy"] = v.strategy;
  out["files"] = v.num_files;
  out["bytes"] = v.bytes;
  out["state_tensors"] = v.num_tensors;
  out["faults"] = v.faults;
  return out;
}

int verify(const VerifyOptions& options) {
  bool sound = true;
  nlohmann::ordered_json report = nlohmann::ordered_json::array();
  for (const fs::path& folder : train::checkpoints_at(options.path)) {
    train::Verified v;
    {
      Shown shown("verify " + folder.filename().string());
      v = train::verify_checkpoint(folder, shown.report());
    }
    sound = sound && v.faults.empty();
    if (options.json) {
      report.push_back(to_json(v));
    } else if (v.faults.empty()) {
      fmt::print("{}: sound; step {}, {} files, {}, state of {} rank{} ({})\n", folder.string(),
                 v.step, v.num_files, human_bytes(v.bytes), v.world_size,
                 v.world_size == 1 ? "" : "s", v.strategy);
    } else {
      fmt::print("{}: NOT sound\n", folder.string());
      for (const std::string& fault : v.faults) fmt::print("  {}\n", fault);
    }
  }
  if (options.json) fmt::print("{}\n", report.dump(1));
  return sound ? 0 : static_cast<int>(ExitCode::kCheckpoint);
}

struct ConsolidateOptions {
  std::string path, out;
  train::ConsolidateOptions how;
};

int consolidate(const ConsolidateOptions& options) {
  const fs::path checkpoint = train::resolve_checkpoint(options.path);
  {
    Shown shown("consolidate");
    train::consolidate_checkpoint(checkpoint, options.out, options.how, shown.report());
  }
  fmt::print("{}: weights of {}\n", options.out, checkpoint.string());
  return 0;
}

struct ReshardOptions {
  std::string path, out;
  int64_t world = 0;
};

int reshard(const ReshardOptions& options) {
  const fs::path checkpoint = train::resolve_checkpoint(options.path);
  {
    Shown shown("reshard");
    train::reshard_checkpoint(checkpoint, options.world, options.out, shown.report());
  }
  fmt::print("{}: {} for {} rank{}\n", options.out, checkpoint.string(), options.world,
             options.world == 1 ? "" : "s");
  return 0;
}

struct DiffOptions {
  std::string a, b;
  bool all = false, json = false;
};

// JSON has no NaN and no infinity.
nlohmann::ordered_json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : "inf";
}

void print_diff(const TensorDiff& d) {
  std::string what(train::to_string(d.kind));
  switch (d.kind) {
    case TensorDiff::Kind::kEqual:
      break;
    case TensorDiff::Kind::kOtherShape:
      what += fmt::format(": {} and {}", d.a, d.b);
      break;
    case TensorDiff::Kind::kOnlyA:
    case TensorDiff::Kind::kOnlyB:
      what += ": " + d.a + d.b;
      break;
    case TensorDiff::Kind::kOtherDtype:
      what += fmt::format(": {} and {};", d.a, d.b);
      [[fallthrough]];
    case TensorDiff::Kind::kDiffers:
      what += fmt::format(" in {} of {} elements, by at most {:.3g}", with_thousands(d.num_unequal),
                          with_thousands(d.numel), d.max_abs);
  }
  fmt::print("{:<5} {}: {}\n", d.part, d.name, what);
}

int diff(const DiffOptions& options) {
  std::vector<TensorDiff> all;
  {
    Shown shown("diff");
    all = train::diff_checkpoints(options.a, options.b, shown.report());
  }
  std::map<std::string, int64_t> counts;
  int64_t unequal = 0;
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  for (const TensorDiff& d : all) {
    ++counts[std::string(train::to_string(d.kind))];
    const bool equal = d.kind == TensorDiff::Kind::kEqual;
    if (!equal) ++unequal;
    if (options.json) {
      tensors.push_back({{"part", d.part},
                         {"name", d.name},
                         {"result", train::to_string(d.kind)},
                         {"a", d.a},
                         {"b", d.b},
                         {"elements", d.numel},
                         {"unequal", d.num_unequal},
                         {"max_abs", number(d.max_abs)}});
    } else if (!equal || options.all) {
      print_diff(d);
    }
  }
  if (options.json) {
    nlohmann::ordered_json out;
    out["a"] = options.a;
    out["b"] = options.b;
    out["equal"] = unequal == 0;
    out["counts"] = counts;
    out["tensors"] = std::move(tensors);
    fmt::print("{}\n", out.dump(1));
  } else {
    std::string summary;
    for (const auto& [result, count] : counts) {
      summary += fmt::format("{}{} {}", summary.empty() ? "" : ", ", count, result);
    }
    fmt::print("{} tensors: {}\n", all.size(), summary);
  }
  return unequal == 0 ? 0 : 1;
}

void add_verify(CLI::App& group, std::function<int()>& action) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command =
      group.add_subcommand("verify", "Read every file of a checkpoint and list all that is wrong");
  command->add_option("path", options->path, "Checkpoint, or run folder: all its checkpoints")
      ->required();
  command->add_flag("--json", options->json, "Print JSON: a list with one entry a checkpoint");
  command->footer(
      "Checks sizes and SHA-256 of all files, files missing or too many, that the files of the "
      "ranks hold every element of the state exactly once, and the weights file.\n"
      "Exit codes: 0 all sound, 4 at least one is not (also: no checkpoint there).");
  command->callback([options, &action] { action = [options] { return verify(*options); }; });
}

void add_consolidate(CLI::App& group, std::function<int()>& action) {
  auto options = std::make_shared<ConsolidateOptions>();
  CLI::App* command = group.add_subcommand(
      "consolidate", "Write one public weights file from a checkpoint of any number of ranks");
  command->add_option("path", options->path, "Checkpoint, or run folder: its newest sound one")
      ->required();
  command
      ->add_option("--out", options->out,
                   "FILE.safetensors, or a new folder for model.safetensors, config.json, "
                   "config.yaml and stats.json; nothing is overwritten")
      ->required();
  command
      ->add_option("--values", options->how.values,
                   "auto: the moving average when there is one, else the masters; ema; weights: "
                   "the masters")
      ->check(CLI::IsMember({"auto", "ema", "weights"}))
      ->capture_default_str();
  command
      ->add_option("--dtype", options->how.dtype,
                   "keep: as in the checkpoint's model.safetensors; fp32: masters in full "
                   "precision; bf16")
      ->check(CLI::IsMember({"keep", "fp32", "bf16"}))
      ->capture_default_str();
  command->footer(
      "With the defaults the result is the checkpoint's own model.safetensors, byte for byte.\n"
      "Exit codes: 0 done, 2 usage (also: --out exists), 4 the checkpoint is damaged or the result "
      "cannot be written.");
  command->callback([options, &action] { action = [options] { return consolidate(*options); }; });
}

void add_reshard(CLI::App& group, std::function<int()>& action) {
  auto options = std::make_shared<ReshardOptions>();
  CLI::App* command = group.add_subcommand(
      "reshard", "Write the same checkpoint as another number of ranks would have");
  command->add_option("path", options->path, "Checkpoint, or run folder: its newest sound one")
      ->required();
  command->add_option("--world", options->world, "Number of ranks")
      ->required()
      ->check(CLI::Range(1, 65536));
  command->add_option("--out", options->out, "The new checkpoint's folder")->required();
  command->footer(
      "Resuming needs no resharding: every number of ranks loads every checkpoint.\n"
      "Exit codes: 0 done, 2 usage (also: --out exists), 4 the checkpoint is damaged or the result "
      "cannot be written.");
  command->callback([options, &action] { action = [options] { return reshard(*options); }; });
}

void add_diff(CLI::App& group, std::function<int()>& action) {
  auto options = std::make_shared<DiffOptions>();
  CLI::App* command = group.add_subcommand("diff", "Compare two checkpoints tensor by tensor");
  command->add_option("a", options->a, "Checkpoint, run folder or weights file")->required();
  command->add_option("b", options->b, "The other one")->required();
  command->add_flag("--all", options->all, "List equal tensors too");
  command->add_flag("--json", options->json, "Print JSON with every tensor");
  command->footer(
      "Compares the weights, and the state where both have one, whatever the number of ranks that "
      "wrote them. Equal means the same bits.\n"
      "Exit codes: 0 all equal, 1 something differs, 4 one cannot be read.");
  command->callback([options, &action] { action = [options] { return diff(*options); }; });
}

}  // namespace

void add_checkpoint_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* group =
      app.add_subcommand("checkpoint", "Verify, consolidate, reshard and compare checkpoints");
  group->require_subcommand(1);
  group->footer(kExitCodes);
  add_verify(*group, action);
  add_consolidate(*group, action);
  add_reshard(*group, action);
  add_diff(*group, action);
}

}  // namespace longship::apps
