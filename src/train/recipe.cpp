#include "train/recipe.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/config/load.h"
#include "base/error.h"

namespace longship::train {
namespace {

// Turns every leaf into text under its dotted path.
class Flattener : public config::Visitor {
 public:
  std::vector<std::pair<std::string, std::string>> out;

  void field(std::string_view key, bool& v, const config::Meta&) override {
    add(key, v ? "true" : "false");
  }
  void field(std::string_view key, int64_t& v, const config::Meta&) override {
    add(key, fmt::format("{}", v));
  }
  void field(std::string_view key, double& v, const config::Meta&) override {
    add(key, fmt::format("{}", v));
  }
  void field(std::string_view key, std::string& v, const config::Meta&) override { add(key, v); }
  void field(std::string_view key, std::optional<int64_t>& v, const config::Meta&) override {
    add(key, v ? fmt::format("{}", *v) : "null");
  }
  void field(std::string_view key, std::optional<double>& v, const config::Meta&) override {
    add(key, v ? fmt::format("{}", *v) : "null");
  }
  void field(std::string_view key, std::optional<std::string>& v, const config::Meta&) override {
    add(key, v ? *v : "null");
  }
  void field(std::string_view key, std::vector<int64_t>& v, const config::Meta&) override {
    add(key, fmt::format("[{}]", fmt::join(v, ", ")));
  }
  void field(std::string_view key, std::vector<double>& v, const config::Meta&) override {
    add(key, fmt::format("[{}]", fmt::join(v, ", ")));
  }
  void field(std::string_view key, std::vector<std::string>& v, const config::Meta&) override {
    add(key, fmt::format("[{}]", fmt::join(v, ", ")));
  }
  void field(std::string_view key, config::CountOrList& v, const config::Meta&) override {
    add(key, v.is_list ? fmt::format("[{}]", fmt::join(v.list, ", ")) : fmt::format("{}", v.count));
  }
  void field(std::string_view key, std::vector<std::pair<std::string, std::string>>& v,
             const config::Meta&) override {
    std::vector<std::string> parts;
    for (const auto& [a, b] : v) parts.push_back(a + ": " + b);
    add(key, fmt::format("{{{}}}", fmt::join(parts, ", ")));
  }
  void choice(std::string_view key, std::string& v, const std::vector<std::string>&,
              const config::Meta&) override {
    add(key, v);
  }
  bool enter_section(std::string_view key, std::string_view) override {
    path_.emplace_back(key);
    return true;
  }
  void leave_section() override { path_.pop_back(); }
  int64_t begin_list(std::string_view key, int64_t, std::string_view) override {
    path_.emplace_back(key);
    return -1;  // as they are: any other answer would replace the items
  }
  void begin_item(int64_t i) override { path_.push_back(fmt::format("{}", i)); }
  void end_item() override { path_.pop_back(); }
  void end_list() override { path_.pop_back(); }

 private:
  void add(std::string_view key, std::string value) {
    std::string name = fmt::format("{}", fmt::join(path_, "."));
    if (!name.empty()) name += '.';
    out.emplace_back(name + std::string(key), std::move(value));
  }
  std::vector<std::string> path_;
};

using Require = std::function<void(bool, std::string)>;

void check_datasets(const Recipe& r, const Require& require) {
  const std::vector<DatasetEntry>& all = r.data.datasets;
  const auto given = [](const config::CountOrList& v) { return v.is_list || v.count != 0; };
  size_t num_weights = 0;
  std::set<std::string> names;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string key = fmt::format("data.datasets.{}.", i);
    num_weights += all[i].weight ? 1 : 0;
    require(!all[i].weight || (*all[i].weight > 0 && std::isfinite(*all[i].weight)),
            fmt::format("{}weight: {} is no share; it must be above 0", key,
                        all[i].weight.value_or(0)));
    require(!all[i].name || !all[i].name->empty(), key + "name: is empty");
    require(!all[i].name || names.insert(*all[i].name).second,
            fmt::format("{}name: '{}' is the name of two datasets", key, all[i].name.value_or("")));
    require(!given(all[i].val_episodes) || !given(r.data.val_episodes),
            key + "val_episodes: data.val_episodes is given too; remove one of them");
  }
  for (size_t i = 0; r.data.is_mixture() && !r.data.slots().empty() && i < all.size(); ++i) {
    require(!r.data.cameras_of(i).empty(),
            fmt::format("data.datasets.{}.cameras: other datasets say which camera fills which "
                        "slot; say it for this one too (slots: {})",
                        i, fmt::join(r.data.slots(), ", ")));
  }
  require(all.size() > 1 || num_weights == 0,
          fmt::format("data.datasets.0.weight: {} has no effect with a single dataset; remove it",
                      all.empty() ? 0 : all[0].weight.value_or(0)));
  require(num_weights == 0 || num_weights == all.size(),
          fmt::format("data.datasets: {} of {} datasets have a weight; give all of them one, or "
                      "none (then each sample counts the same)",
                      num_weights, all.size()));
  require(all.size() <= 1 || !r.data.val_episodes.is_list,
          "data.val_episodes: a list does not say which of the datasets it speaks of; give each "
          "dataset its own val_episodes");
  require(!r.data.is_mixture() || !r.eval.open_loop,
          "eval.open_loop: evaluates one dataset, this recipe mixes several or places dimensions; "
          "run longship eval on the checkpoint afterwards");
  const DataSection off;
  require(r.data.shuffle == "blocks" || r.data.block_episodes == off.block_episodes,
          "data.block_episodes: has no effect with data.shuffle full; set data.shuffle: blocks");
  require(r.data.on_bad_sample == "skip" || r.data.max_bad_fraction == off.max_bad_fraction,
          "data.max_bad_fraction: has no effect with data.on_bad_sample error");
  for (size_t i = 0; i < r.data.expect_order_sha256.size(); ++i) {
    const std::string& hash = r.data.expect_order_sha256[i];
    require(hash.empty() || (hash.size() == 64 &&
                             hash.find_first_not_of("0123456789abcdef") == std::string::npos),
            fmt::format("data.expect_order_sha256: entry {} is '{}', no SHA-256 (64 lower-case "
                        "hexadecimal digits; an empty one skips its epoch)",
                        i, hash));
  }
}

// Options that would change nothing, and values that do not fit each other.
std::vector<std::string> cross_checks(const Recipe& r) {
  std::vector<std::string> faults;
  const auto require = [&](bool good, std::string text) {
    if (!good) faults.push_back(std::move(text));
  };
  require(!r.data.datasets.empty(),
          "data.datasets: give one dataset, e.g. [{path: data/pusht_v30}]");
  check_datasets(r, require);
  require(
      r.data.delta_actions.empty() || r.data.delta_exclude.empty(),
      "data.delta_exclude: data.delta_actions chooses the relative dimensions already; give one "
      "of them");
  require(r.data.workers > 0 || r.data.prefetch == DataSection{}.prefetch,
          "data.prefetch: has no effect with data.workers 0; remove it or use workers");
  require(r.optim.betas.size() == 2 && r.optim.betas[0] >= 0 && r.optim.betas[0] < 1 &&
              r.optim.betas[1] >= 0 && r.optim.betas[1] < 1,
          fmt::format("optim.betas: [{}] must be two numbers from 0 up to, not including, 1",
                      fmt::join(r.optim.betas, ", ")));
  const int64_t micro = r.train.micro_batch.value_or(r.train.global_batch);
  require(r.train.global_batch % micro == 0,
          fmt::format("train.micro_batch: {} does not divide train.global_batch {}", micro,
                      r.train.global_batch));
  require(
      r.train.on_nonfinite == "skip" || !r.train.max_skipped_steps,
      "train.max_skipped_steps: has no effect with on_nonfinite 'stop'; set on_nonfinite: skip");
  require(!r.train.stop_after || *r.train.stop_after <= r.train.steps,
          fmt::format("train.stop_after: {} is beyond train.steps {}",
                      r.train.stop_after.value_or(0), r.train.steps));
  require(r.train.cuda_graph == "none" || r.perf.fused_optimizer,
          "train.cuda_graph: needs perf.fused_optimizer; set perf.fused_optimizer=true or "
          "train.cuda_graph=none");
  require(!r.train.fp8 || r.train.dtype == "bf16",
          "train.fp8: works on bf16 weights; set train.dtype=bf16 or train.fp8=null");
  require(r.train.dtype == "fp32" || r.train.dtype == "bf16", "train.dtype: fp32 or bf16");
  require(r.checkpoint.resume != "", "checkpoint.resume: auto, never, or the path of a checkpoint");
  const EvalSection off;
  require(
      r.eval.open_loop || (r.eval.draws == off.draws && r.eval.episodes == off.episodes &&
                           r.eval.batch == off.batch),
      "eval: draws, episodes and batch have no effect with eval.open_loop false; set it to true "
      "or remove them");
  require(!r.eval.open_loop || r.eval.episodes != "val" || r.data.val_episodes.is_list ||
              r.data.val_episodes.count > 0,
          "eval.episodes: 'val' means the validation episodes, but data.val_episodes is 0");
  require(!r.output_dir.empty(), "output_dir: required, the folder of the run, e.g. runs/my_first");
  for (const auto& check :
       {std::function<void()>([&] { Schedule(r.optim.schedule, r.optim.lr, r.train.steps); }),
        std::function<void()>([&] { r.optim.weight_decay_ramp.check(r.optim.weight_decay); })}) {
    try {
      check();
    } catch (const ConfigError& error) {
      faults.emplace_back(error.what());
    }
  }
  return faults;
}

}  // namespace

// Cameras of one dataset keep their names; those of several appear under their slots.
static std::vector<std::pair<std::string, std::string>> bound_cameras(const DataSection& data) {
  if (!data.is_mixture()) return data.datasets.empty() ? data.cameras : data.cameras_of(0);
  std::vector<std::pair<std::string, std::string>> out;
  std::set<std::string> filled;
  for (size_t i = 0; i < data.datasets.size(); ++i) {
    for (const auto& [slot, camera] : data.cameras_of(i)) {
      if (!camera.empty()) filled.insert(slot);
    }
  }
  for (const std::string& slot : data.slots()) {
    out.emplace_back(slot, filled.contains(slot) ? slot : std::string());
  }
  return out;
}

void DatasetEntry::reflect(config::Visitor& visitor) {
  visitor.field("path", path, {.doc = "Folder of a LeRobot dataset", .required = true});
  visitor.field(
      "weight", weight,
      {.doc = "Share of the samples in a mixture, relative to the other weights; null for "
              "all: each dataset by its number of samples",
       .min = 0});
  visitor.field("name", name,
                {.doc = "Name in messages and statistics; null: the last part of the path"});
  visitor.field("keys", keys,
                {.doc = "Our name -> the dataset's name of a column or camera, e.g. "
                        "{observation.state: obs.joints, action: actions.joint}"});
  visitor.field("cameras", cameras,
                {.doc = "Model's camera slot -> this dataset's camera; empty: as data.cameras"});
  visitor.field(
      "state_dims", state_dims,
      {.doc = "Place of each state dimension in the model's vector; empty: 0, 1, 2, ..."});
  visitor.field(
      "action_dims", action_dims,
      {.doc = "Place of each action dimension in the model's vector; empty: 0, 1, 2, ..."});
  visitor.field("embodiment", embodiment,
                {.doc = "Number of the robot, for models that tell robots apart", .min = 0});
  visitor.field("episodes", episodes, {.doc = "episode_index of the episodes to use; empty: all"});
  visitor.field(
      "val_episodes", val_episodes,
      {.doc = "Episodes of this dataset held out from training; 0: as data.val_episodes"});
  visitor.field("stats", stats,
                {.doc = "Statistics to use instead of the dataset's own: a stats.json of a "
                        "checkpoint, of a LeRobot dataset, or openpi's norm_stats.json"});
}

bool DataSection::is_mixture() const {
  return datasets.size() > 1 || (datasets.size() == 1 && !(datasets[0].state_dims.empty() &&
                                                           datasets[0].action_dims.empty()));
}

std::vector<std::string> DataSection::names() const {
  std::vector<std::string> out;
  std::set<std::string> taken;
  for (const DatasetEntry& entry : datasets) {
    if (entry.name) taken.insert(*entry.name);
  }
  for (const DatasetEntry& entry : datasets) {
    if (entry.name) {
      out.push_back(*entry.name);
      continue;
    }
    std::filesystem::path path(entry.path);
    if (path.filename().empty()) path = path.parent_path();
    const std::string stem = path.filename().empty() ? entry.path : path.filename().string();
    std::string name = stem;
    for (int64_t number = 2; !taken.insert(name).second; ++number) {
      name = fmt::format("{}_{}", stem, number);
    }
    out.push_back(name);
  }
  return out;
}

const std::vector<std::pair<std::string, std::string>>& DataSection::cameras_of(size_t i) const {
  return datasets.at(i).cameras.empty() ? cameras : datasets[i].cameras;
}

std::vector<std::string> DataSection::slots() const {
  std::vector<std::string> out;
  const auto add = [&](const std::vector<std::pair<std::string, std::string>>& map) {
    for (const auto& [slot, camera] : map) {
      if (std::find(out.begin(), out.end(), slot) == out.end()) out.push_back(slot);
    }
  };
  add(cameras);
  for (const DatasetEntry& entry : datasets) add(entry.cameras);
  return out;
}

void DataSection::reflect(config::Visitor& visitor) {
  visitor.list("datasets", datasets, "Datasets to train on, mixed where there are several");
  visitor.field("val_episodes", val_episodes,
                {.doc = "Episodes held out from training: a count (the last ones) or a list of "
                        "episode indices"});
  visitor.field("cameras", cameras,
                {.doc = "Model's camera slot -> dataset's camera, e.g. {base_0_rgb: "
                        "observation.image}; empty: only where it is unambiguous"});
  visitor.field("horizon", horizon,
                {.doc = "Actions per chunk", .unit = "frames", .min = 1, .max = 100000});
  visitor.choice(
      "shuffle", shuffle, {"full", "blocks"},
      {.doc = "full: every epoch in random order; blocks: random order of blocks of a few "
              "episodes and of the samples inside a block, which reads few files at a "
              "time"});
  visitor.field("block_episodes", block_episodes,
                {.doc = "With shuffle blocks", .unit = "episodes", .min = 1, .max = 1e9});
  visitor.field("expect_order_sha256", expect_order_sha256,
                {.doc = "SHA-256 of the order of sample ids of epoch 0, 1, ... as an earlier run "
                        "logged them; a run with another order is refused"});
  visitor.choice(
      "on_bad_sample", on_bad_sample, {"error", "skip"},
      {.doc = "A sample with NaN, infinite or unreadable values: error stops; skip leaves "
              "it out, always the same ones, and names it"});
  visitor.field("max_bad_fraction", max_bad_fraction,
                {.doc = "With on_bad_sample skip: more bad samples than this stop the run",
                 .min = 0,
                 .max = 1});
  visitor.field("delta_actions", delta_actions,
                {.doc = "Action dimensions learned relative to the state of the chunk's first "
                        "frame, as run lengths: [6, -1] is six relative ones and one absolute one; "
                        "normalised with statistics of such chunks; empty: absolute"});
  visitor.field("delta_exclude", delta_exclude,
                {.doc = "The same by name: every dimension is relative but those whose name "
                        "contains one of these words, e.g. [gripper]"});
  visitor.field("state_dropout", state_dropout,
                {.doc = "Probability that a training sample's state is left out (its normalised "
                        "values become 0); never in evaluation",
                 .min = 0,
                 .max = 1});
  visitor.section("augment", augment, "Random changes of the pictures while training");
  visitor.field("workers", workers,
                {.doc = "Threads that read and prepare samples; 0: the training thread does it. "
                        "The result does not depend on it",
                 .min = 0,
                 .max = 1024});
  visitor.field(
      "prefetch", prefetch,
      {.doc = "Micro-batches prepared ahead", .unit = "micro-batches", .min = 1, .max = 10000});
  visitor.choice("decoder", decoder, {"cpu", "nvdec"},
                 {.doc = "Who decodes videos: the CPU, or the GPU's decoder through the driver"});
}

void OptimSection::reflect(config::Visitor& visitor) {
  visitor.choice("name", name, {"adamw"}, {.doc = "Optimizer"});
  visitor.field("lr", lr, {.doc = "Peak learning rate", .min = 0, .max = 10});
  visitor.field("betas", betas, {.doc = "AdamW's decay rates of the two moments"});
  visitor.field("eps", eps, {.doc = "AdamW's epsilon, outside the root", .min = 0});
  visitor.field("weight_decay", weight_decay,
                {.doc = "Decoupled weight decay of every trained parameter", .min = 0});
  visitor.field("clip_norm", clip_norm,
                {.doc = "Largest global norm of the gradients; null: no clipping", .min = 0});
  visitor.field("ema", ema,
                {.doc = "Decay of the moving average of the weights, which is what a checkpoint "
                        "then exports; null: none",
                 .min = 0,
                 .max = 0.9999999});
  visitor.section("schedule", schedule, "Learning rate over the updates");
  visitor.section("weight_decay_ramp", weight_decay_ramp, "Rise of the weight decay");
  visitor.list("groups", groups, "Parameters with their own learning rate or weight decay");
}

AdamWConfig OptimSection::adamw() const {
  return {betas[0], betas[1], eps, weight_decay, clip_norm, ema, groups, false};
}

void TrainSection::reflect(config::Visitor& visitor) {
  visitor.field("steps", steps,
                {.doc = "Length of the training", .unit = "steps", .min = 1, .max = 1e12});
  visitor.field("stop_after", stop_after,
                {.doc = "Save and end after this step although the schedule is laid out for "
                        "train.steps; null: train to the end",
                 .unit = "steps",
                 .min = 1});
  visitor.field("global_batch", global_batch,
                {.doc = "Samples per optimizer step", .unit = "samples", .min = 1, .max = 1e6});
  visitor.field("micro_batch", micro_batch,
                {.doc = "Samples per forward pass; must divide global_batch, gradients are "
                        "accumulated; null: global_batch",
                 .unit = "samples",
                 .min = 1});
  visitor.field("device", device, {.doc = "auto, cpu, cuda or cuda:N"});
  visitor.choice("dtype", dtype, {"fp32", "bf16"},
                 {.doc = "Type of the weights in forward and backward; bf16 keeps fp32 masters"});
  visitor.field("seed", seed,
                {.doc = "Seed of initialisation, sample order, noise and time", .min = 0});
  visitor.field("deterministic", deterministic,
                {.doc = "Only kernels that repeat bit for bit; slower on a GPU"});
  visitor.field("threads", threads,
                {.doc = "CPU threads of the tensor library; 0: all cores", .min = 0, .max = 4096});
  visitor.choice("cuda_graph", cuda_graph, {"none", "per_microbatch", "full_iteration"},
                 {.doc = "CUDA: launch every operator, replay forward and backward of a "
                         "micro-batch as one graph, or the whole step with the optimizer; the "
                         "results are the same"});
  visitor.field("recompute", recompute,
                {.doc = "Units whose activations are computed again in the backward pass instead "
                        "of kept: none, vit, full, or unit patterns such as vision.*,joint.1?"});
  visitor.field("fp8", fp8,
                {.doc = "CUDA with bf16: products in FP8. null: none; default: the layers that the "
                        "family lists; or the table that longship calibrate wrote"});
  visitor.field("tf32", tf32,
                {.doc = "CUDA: fp32 products on tensor cores with 10 bits of mantissa"});
  visitor.choice("on_nonfinite", on_nonfinite, {"stop", "skip"},
                 {.doc = "NaN or Inf in loss or gradients: stop with exit code 6, or skip the "
                         "whole step"});
  visitor.field("max_skipped_steps", max_skipped_steps,
                {.doc = "Most steps that on_nonfinite 'skip' may skip in a run; null: 10",
                 .unit = "steps",
                 .min = 1});
}

void PerfSection::reflect(config::Visitor& visitor) {
  visitor.field("fused_norms", fused_norms,
                {.doc = "CUDA: residual, gate and the following norm in one pass over memory"});
  visitor.field("fused_activations", fused_activations,
                {.doc = "CUDA: GEGLU, and GELU with its bias, in one pass"});
  visitor.field("fused_rope", fused_rope,
                {.doc = "CUDA: rotation and split of queries, keys and values in one pass"});
  visitor.field("fused_loss", fused_loss,
                {.doc = "CUDA: flow-matching target, loss and gradient in one pass each"});
  visitor.field("fused_optimizer", fused_optimizer,
                {.doc = "CUDA: norm, clipping and AdamW over all tensors in three launches, "
                        "without the host; needed for cuda_graph"});
  visitor.field("sparse_embedding", sparse_embedding,
                {.doc = "CUDA: only token rows that were ever used have gradients and moments"});
  visitor.field("stacked_linears", stacked_linears,
                {.doc = "One product for layers with the same input (q, k, v; gate, up)"});
  visitor.field("flash_attention", flash_attention,
                {.doc = "CUDA with bf16: flash kernels over packed rows; false: padded rows, a "
                        "mask and the library's choice"});
  visitor.field("pack_text", pack_text,
                {.doc = "Only valid text tokens are computed; false: text rows up to the limit"});
  visitor.field("copy_ahead", copy_ahead,
                {.doc = "CUDA: inputs of the next step are copied while this one runs"});
  visitor.field("token_bucket", token_bucket,
                {.doc = "CUDA: text rows of a batch are padded to a multiple of this, so that few "
                        "graphs serve all batches",
                 .unit = "tokens",
                 .min = 1,
                 .max = 65536});
  visitor.choice("fp8_scaling", fp8_scaling, {"delayed", "current"},
                 {.doc = "FP8: scales from the largest values of the last 16 steps, or from the "
                         "tensor itself (one pass more)"});
  visitor.choice("fp8_gradients", fp8_gradients, {"e5m2", "e4m3"},
                 {.doc = "FP8: format of output gradients; e5m2 has more range, e4m3 more bits"});
  visitor.field("cpu_oracles", cpu_oracles,
                {.doc = "Use the fused operators on the CPU too; slow, for tests"});
}

void CheckpointSection::reflect(config::Visitor& visitor) {
  visitor.field("every", every,
                {.doc = "Steps between checkpoints; one is always written at the end; null: only "
                        "at the end",
                 .unit = "steps",
                 .min = 1});
  visitor.field("keep_last", keep_last, {.doc = "Newest checkpoints kept", .min = 1});
  visitor.field("keep_every", keep_every,
                {.doc = "Keep for ever those whose step is a multiple of this; null: none",
                 .unit = "steps",
                 .min = 1});
  visitor.field("async", async,
                {.doc = "Copy the state and write the copy while training goes on (needs host "
                        "memory for the copy); a save that fails then is a warning, but for the "
                        "last one. false: training waits, and any failed save ends it"});
  visitor.field("resume", resume,
                {.doc = "auto: go on from the newest valid checkpoint of output_dir when there is "
                        "one; never: start from scratch; or the path of a checkpoint or run"});
}

void LogSection::reflect(config::Visitor& visitor) {
  visitor.field("every", every,
                {.doc = "Steps between records; values are means since the last one",
                 .unit = "steps",
                 .min = 1});
  visitor.field("tensorboard", tensorboard, {.doc = "Write a TensorBoard event file"});
}

void EvalSection::reflect(config::Visitor& visitor) {
  visitor.field("open_loop", open_loop,
                {.doc = "Compare predicted with recorded actions at the end of the training"});
  visitor.field(
      "draws", draws,
      {.doc = "Chunks drawn per frame; their mean is the prediction", .min = 1, .max = 4096});
  visitor.field("episodes", episodes,
                {.doc = "val, last:N, all, or episode indices such as 21,22,23"});
  visitor.field("batch", batch, {.doc = "Frames per batch", .unit = "frames", .min = 1});
}

void Recipe::reflect(config::Visitor& visitor) {
  visitor.section("model", *model, "The model; fields depend on the family");
  visitor.section("data", data, "Where samples come from");
  visitor.section("optim", optim, "Optimizer");
  visitor.section("train", train, "The loop");
  visitor.section("perf", perf, "Optimisations, each with a plain fall-back");
  visitor.section("checkpoint", checkpoint, "Saving and resuming");
  visitor.section("log", log, "What is written while training");
  visitor.section("eval", eval, "Evaluation at the end of the training");
  visitor.field("output_dir", output_dir, {.doc = "Folder of the run"});
}

Recipe default_recipe(const models::ModelFamily& family) {
  Recipe recipe;
  recipe.family = &family;
  recipe.model = family.make_config();
  recipe.model->family = family.name();
  return recipe;
}

Recipe recipe_from(const config::Node& root, const FamilyLookup& lookup) {
  const config::Node* name = root.find_path("model.family");
  LS_CHECK(name != nullptr && name->is_scalar(), ConfigError,
           "{}: model.family is required: the name of a model family, e.g. model: {{family: pi05}}",
           config::place_of(root, "model"));
  const models::ModelFamily* family = nullptr;
  try {
    family = &lookup(name->scalar());
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: model.family: {}", name->mark().str(), error.what()));
  }
  Recipe recipe = default_recipe(*family);
  config::load(root, recipe);
  std::vector<std::string> faults;
  try {
    recipe.data.augment.resolve();
  } catch (const ConfigError& error) {
    faults.emplace_back(error.what());
  }
  for (std::string& fault : cross_checks(recipe)) faults.push_back(std::move(fault));
  for (std::string& fault : faults) {
    const std::string key = fault.substr(0, fault.find(':'));
    fault = fmt::format("{}: {}", config::place_of(root, key), fault);
  }
  if (!faults.empty()) throw ConfigError(fmt::format("{}", fmt::join(faults, "\n")));
  recipe.model->data.horizon = recipe.data.horizon;
  recipe.model->data.cameras = bound_cameras(recipe.data);
  recipe.model->data.delta = {recipe.data.delta_actions, recipe.data.delta_exclude};
  recipe.model->data.state_dropout = recipe.data.state_dropout;
  recipe.model->data.augment = recipe.data.augment;
  return recipe;
}

Recipe load_recipe(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                   const FamilyLookup& lookup) {
  config::Node root = config::parse_yaml_file(file);
  for (const std::string& text : overrides) config::apply_override(root, text);
  return recipe_from(root, lookup);
}

Recipe with_overrides(const Recipe& recipe, const std::vector<std::string>& overrides,
                      const FamilyLookup& lookup) {
  config::Node root = config::parse_yaml_text(dump(recipe), "resolved recipe");
  for (const std::string& text : overrides) config::apply_override(root, text);
  return recipe_from(root, lookup);
}

std::string dump(const Recipe& recipe) {
  return config::dump_yaml(recipe);
}

std::vector<std::pair<std::string, std::string>> flatten(const Recipe& recipe) {
  Flattener flattener;
  const_cast<Recipe&>(recipe).reflect(flattener);  // printing visitors write nothing
  return flattener.out;
}

std::vector<Difference> compare(const Recipe& before, const Recipe& after) {
  // These change neither samples, nor weights, nor noise. The path of a dataset may change; its
  // content is compared by fingerprint where a run is resumed. Steps matter only through the
  // schedule.
  static const std::set<std::string> harmless = {
      "data.workers",     "data.prefetch",    "data.expect_order_sha256", "train.steps",
      "train.stop_after", "train.threads",    "train.on_nonfinite",       "train.max_skipped_steps",
      "train.device",     "train.cuda_graph", "perf.copy_ahead",          "output_dir"};
  const auto is_harmless = [&](const std::string& key) {
    return harmless.contains(key) || key.starts_with("checkpoint.") || key.starts_with("log.") ||
           key.starts_with("eval.") || key == "model.checkpoint" ||
           (key.starts_with("data.datasets.") &&
            (key.ends_with(".path") || key.ends_with(".name")));
  };
  std::map<std::string, std::string> old_values;
  for (auto& [key, value] : flatten(before)) old_values[key] = value;
  std::vector<Difference> out;
  for (auto& [key, value] : flatten(after)) {
    const auto found = old_values.find(key);
    const std::string old_value = found == old_values.end() ? "(absent)" : found->second;
    if (found != old_values.end()) old_values.erase(found);
    if (old_value != value) out.push_back({key, old_value, value, !is_harmless(key)});
  }
  for (auto& [key, value] : old_values) out.push_back({key, value, "(absent)", !is_harmless(key)});
  const Schedule schedule(after.optim.schedule, after.optim.lr, after.train.steps);
  for (Difference& d : out) {
    if (d.key == "train.steps" && schedule.depends_on_total_steps()) d.breaks_exactness = true;
  }
  return out;
}

}  // namespace longship::train
