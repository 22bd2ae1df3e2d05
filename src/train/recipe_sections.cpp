// The fields of the recipe's sections with their texts, ranges and units.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "train/recipe.h"

namespace longship::train {

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
  visitor.field("share_decoding", share_decoding,
                {.doc = "A batch reads its pictures together: each is decoded once however many "
                        "samples show it, and a video file is passed once; false: sample by "
                        "sample. The result does not depend on it"});
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
                {.doc = "Samples per optimizer step, over all processes",
                 .unit = "samples",
                 .min = 1,
                 .max = 1e6});
  visitor.field("micro_batch", micro_batch,
                {.doc = "Samples per forward pass of a process; this times the number of processes "
                        "must divide global_batch, gradients are accumulated; null: global_batch / "
                        "processes",
                 .unit = "samples",
                 .min = 1});
  visitor.field("device", device,
                {.doc = "auto, cpu, cuda or cuda:N; with several processes cuda is the GPU of the "
                        "process's number on its host"});
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
  visitor.field(
      "flash_attention", flash_attention,
      {.doc = "CUDA with bf16: flash kernels over packed rows, in every part of the model "
              "whose heads they take; false: padded rows, a mask and the library's "
              "choice"});
  visitor.field("pack_text", pack_text,
                {.doc = "Only valid text tokens are computed; false: text rows up to the limit"});
  visitor.field("hand_over_gradients", hand_over_gradients,
                {.doc = "The backward pass gives its own buffers as gradients; false: gradients "
                        "keep theirs, which are zeroed before every step and added to"});
  visitor.field("copy_ahead", copy_ahead,
                {.doc = "CUDA: inputs of the next step are copied while this one runs"});
  visitor.field(
      "early_launch", early_launch,
      {.doc = "CUDA: a kernel of ours comes onto the device while the one before it still "
              "runs, and waits there"});
  visitor.field("two_graphs", two_graphs,
                {.doc = "CUDA with cuda_graph full_iteration: a frozen backbone runs as a graph of "
                        "its own beside the step before; not with fsdp and hsdp"});
  visitor.field("feature_cache", feature_cache,
                {.doc = "Host memory for the results of a frozen backbone, kept by sample, so that "
                        "from the second epoch on it is not run; needs pictures that are the same "
                        "every time; 0: none",
                 .unit = "GiB",
                 .min = 0,
                 .max = 65536});
  visitor.field("token_bucket", token_bucket,
                {.doc = "CUDA: text rows of a batch are padded to a multiple of this (GR00T: all "
                        "samples alike, so that it is reached), so that few graphs serve all "
                        "batches",
                 .unit = "tokens",
                 .min = 1,
                 .max = 65536});
  visitor.field("grid_cache", grid_cache,
                {.doc = "Host tables that depend on the sizes of pictures only are kept and shared "
                        "by batches with the same"});
  visitor.choice("fp8_scaling", fp8_scaling, {"delayed", "current"},
                 {.doc = "FP8: scales from the largest values of the last 16 steps, or from the "
                         "tensor itself (one pass more)"});
  visitor.choice("fp8_gradients", fp8_gradients, {"e5m2", "e4m3"},
                 {.doc = "FP8: format of output gradients; e5m2 has more range, e4m3 more bits"});
  visitor.field("cpu_oracles", cpu_oracles,
                {.doc = "Use the fused operators on the CPU too; slow, for tests"});
}

void ParallelSection::reflect(config::Visitor& visitor) {
  visitor.choice(
      "strategy", strategy, {"none", "ddp", "zero1", "fsdp", "hsdp"},
      {.doc = "Several processes (torchrun, srun, mpirun): ddp averages gradients; zero1 also "
              "divides the optimizer's state among them; fsdp the weights too; hsdp does so inside "
              "groups. none: one process only"});
  visitor.field("replicate", replicate,
                {.doc = "hsdp: number of groups that hold a whole model each; auto: processes / "
                        "shard"});
  visitor.field("shard", shard,
                {.doc = "hsdp: number of processes that share one copy of the model; auto: those "
                        "of one host"});
  visitor.choice("reduce_dtype", reduce_dtype, {"fp32", "bf16"},
                 {.doc = "Type in which gradients are sent and added up; bf16 halves the bytes and "
                         "rounds once"});
  visitor.choice("reshard", reshard, {"after_forward", "never", "after_optimizer_step"},
                 {.doc = "fsdp, hsdp: when a unit gives its gathered weights up"});
  visitor.choice("transport", transport, {"auto", "nccl", "peer"},
                 {.doc = "CUDA: what moves gradients and weights. peer: the copy engines of GPUs "
                         "of one host (at most 8) that read each other's memory; auto: peer where "
                         "it can be had, else nccl"});
  visitor.field("bucket_mb", bucket_mb,
                {.doc = "Gradients that are sent together, of ddp and zero1",
                 .unit = "MiB",
                 .min = 0.001,
                 .max = 65536});
  visitor.field("timeout_s", timeout_s,
                {.doc = "A process that answers no collective for so long is taken as lost",
                 .unit = "seconds",
                 .min = 1,
                 .max = 86400});
  visitor.field("setup_timeout_s", setup_timeout_s,
                {.doc = "How long the processes wait for each other at the start",
                 .unit = "seconds",
                 .min = 1,
                 .max = 86400});
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
  visitor.section("parallel", parallel, "Several processes that train one model");
  visitor.section("checkpoint", checkpoint, "Saving and resuming");
  visitor.section("log", log, "What is written while training");
  visitor.section("eval", eval, "Evaluation at the end of the training");
  visitor.field("output_dir", output_dir, {.doc = "Folder of the run"});
}

}  // namespace longship::train
