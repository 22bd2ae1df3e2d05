#pragma once
// The contract between a model family and the trainer. The trainer knows only these types, never a
// family's name.

#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/config/visitor.h"
#include "base/error.h"
#include "data/augment/config.h"
#include "data/dataset.h"
#include "data/delta_actions.h"
#include "data/sample.h"
#include "models/stored_weights.h"
#include "nn/fp8.h"
#include "nn/fused.h"
#include "nn/module.h"
#include "nn/unit.h"

namespace longship::models {

/// A collated batch of one family. All tensors live on one device. `sample_ids[i]` is the global
/// sample id of row i.
class Batch {
 public:
  virtual ~Batch() = default;
  /// Every defined tensor with its name, in a fixed order.
  virtual std::vector<std::pair<std::string, at::Tensor*>> tensors() = 0;
  /// A batch with the same host plan that shares the tensors.
  virtual std::unique_ptr<Batch> clone() const = 0;
  /// What a captured step depends on besides tensor values: two prepared batches with equal
  /// signatures have tensors of equal names, shapes and dtypes and take the same path through the
  /// model.
  virtual std::string signature() const = 0;
  /// Copies every tensor to `device` (non-blocking from pinned memory); host-side plans stay where
  /// they are.
  void to(at::Device device) {
    for (auto& [name, tensor] : tensors()) *tensor = tensor->to(device, /*non_blocking=*/true);
  }
  int64_t size() const { return static_cast<int64_t>(sample_ids.size()); }
  std::vector<int64_t> sample_ids;
};

/// Key of every random draw of a step: results depend on it and on the sample id, never on workers
/// or ranks.
struct DrawKey {
  uint64_t seed = 0;
  uint64_t step = 0;  // optimizer step for training; draw number for sampling
};

struct LossResult {
  at::Tensor loss;  // [] fp32, with autograd graph; the mean that is differentiated
  std::vector<std::pair<std::string, at::Tensor>> metrics;  // further scalars [] fp32, detached
};

enum class ParamRole {
  kTrainable,  // receives a gradient
  kFrozen,     // requires_grad false; never touched by the optimizer (frozen by choice, or dead by
               // structure)
  kDecayOnly,  // gradient is exactly zero by structure: only the decoupled decay applies
};

/// Gradient of a table of which a step touches few rows. The backward pass adds to `grad` and sets
/// the flags of the rows that it touches; rows with flag 0 hold zeros. The optimizer zeroes `grad`
/// after every update and never resets a flag.
struct RowSparseGrad {
  at::Tensor grad;              // shape of the parameter, fp32 or bf16, contiguous, on its device
  at::Tensor row_flags;         // uint8 [size(0)]
  int64_t rows_per_sample = 0;  // at most so many rows for each sample of a step
};

struct ParamInfo {
  std::string name;  // public checkpoint name
  at::Tensor tensor;
  ParamRole role = ParamRole::kTrainable;
  /// Where the gradient is instead of in tensor.grad(). Only with kTrainable.
  std::optional<RowSparseGrad> row_sparse = std::nullopt;
  /// The unit in which the forward pass reads it (nn/unit.h): the root where it is read outside of
  /// all, nn::kUnreadUnit where nothing reads it.
  std::string unit = {};
  /// No gradient passes through its unit: everything trainable comes behind it.
  bool forward_only = false;
};

/// A named host tensor for export.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// Called with every parameter's full-precision fp32 values, before they are rounded to the
/// parameter's dtype. Parameters without memory (BuildOptions::allocate, sharding) are given to it
/// only, one after another.
using PreciseSink = std::function<void(const std::string& name, const at::Tensor& value)>;

/// One model on one device.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual nn::Module& module() = 0;
  /// Every parameter in a stable order under its public name. Freeze options are already applied.
  virtual std::vector<ParamInfo> parameters() = 0;
  /// Names of all parameters in the order in which the forward pass first needs them. Gradients
  /// come in the reverse order, which is the order in which several processes exchange them.
  virtual std::vector<std::string> use_order() {
    std::vector<std::string> names;
    for (const ParamInfo& info : parameters()) names.push_back(info.name);
    return names;
  }
  /// Completes a training batch on the host before it goes to the device: random draws from `key`
  /// and the sample ids, index tables, padding to buckets. Thread-safe; does nothing twice.
  virtual void prepare(Batch& batch, const DrawKey& key) const = 0;
  /// The same for a batch that sample() gets: start noise from `key`.
  virtual void prepare_sampling(Batch& batch, const DrawKey& key) const = 0;
  /// Flow-matching (or other) loss of a prepared batch on the model's device. Reads device tensors
  /// only, so that it can be captured.
  virtual LossResult loss(const Batch& batch) = 0;
  /// The same for a batch as collate() made it: a copy is prepared and moved to the model's device.
  LossResult loss(const Batch& batch, const DrawKey& key) {
    const std::unique_ptr<Batch> own = batch.clone();
    prepare(*own, key);
    own->to(parameters().front().tensor.device());
    return loss(*own);
  }
  /// Once per optimizer step, before its first loss(): work that depends on the weights only.
  virtual void begin_step() {}

  // ---- The frozen part ----
  // Where a pass begins with work that nothing trainable has a share in, its result depends on the
  // batch only, and may be made earlier, beside another step, or kept for the next time a sample
  // comes.

  virtual bool has_frozen_part() const { return false; }
  /// Its result for a prepared batch on the model's device: [rows, width], detached. Can be
  /// captured. First feature_rows() rows of each sample, in order; the rows behind are all alike.
  virtual at::Tensor frozen_features(const Batch& batch) {
    static_cast<void>(batch);
    throw InternalError("this model family has no frozen part");
  }
  /// A batch with `features` in place of what only the frozen part reads: its loss() begins behind
  /// that part and equals that of `batch`, bit for bit. The other tensors are shared.
  virtual std::unique_ptr<Batch> behind_frozen_part(const Batch& batch,
                                                    const at::Tensor& features) const {
    static_cast<void>(batch), static_cast<void>(features);
    throw InternalError("this model family has no frozen part");
  }
  /// Rows of features of each sample of a prepared batch, and of the whole batch.
  virtual std::vector<int64_t> feature_rows(const Batch& batch) const {
    static_cast<void>(batch);
    return {};
  }
  virtual int64_t num_feature_rows(const Batch& batch) const {
    static_cast<void>(batch);
    return 0;
  }

  /// Lets `hooks` watch the units; null: nobody. They must outlive the passes. Throws ConfigError
  /// for models that cannot be watched.
  virtual void attach(nn::UnitHooks* hooks) {
    static_cast<void>(hooks);
    throw ConfigError("parallel.strategy: this model family cannot be sharded; use ddp or zero1");
  }
  /// What an exact resume needs besides parameters and optimizer (scales of FP8), by name. Aliased.
  /// "rows.<parameter>", int64, for the parts of an exported tensor that is several parameters, of
  /// which some may be frozen: "<exported>" and "<exported>#<word>". Row i of the parameter is row
  /// rows[i] of the exported tensor; export_weights() puts nothing together where it is given a
  /// part on the meta device.
  virtual std::vector<NamedTensor> training_state() { return {}; }
  /// Restores it; strict. Throws CheckpointError.
  virtual void load_training_state(std::span<const NamedTensor> state) {
    LS_CHECK(state.empty(), CheckpointError, "unexpected training state '{}'", state.front().name);
  }
  /// Tensors of that state whose elements are the largest values seen so far. Several processes
  /// share the largest of each after the passes of a step, so that they scale alike.
  virtual std::vector<at::Tensor> shared_maxima() { return {}; }
  /// With Fp8Options::measure, after a backward pass.
  virtual std::vector<nn::Fp8Measurement> fp8_measurements() { return {}; }
  /// Large tensors besides the parameters, by name, for memory reports.
  virtual std::vector<std::pair<std::string, std::vector<at::Tensor>>> extra_memory() { return {}; }
  /// Predicted action chunks, normalised, [B, horizon, action_dim] fp32 on the model's device. Call
  /// under no-grad.
  virtual at::Tensor sample(const Batch& batch, const DrawKey& key) = 0;
  /// Several independent chunks per row, [draws, B, horizon, action_dim]; draw d is sample(batch,
  /// {seed, d}). Families that can, encode the observation once for all draws.
  virtual at::Tensor sample_draws(const Batch& batch, uint64_t seed, int64_t draws) {
    std::vector<at::Tensor> chunks;
    for (int64_t d = 0; d < draws; ++d) {
      chunks.push_back(sample(batch, DrawKey{seed, static_cast<uint64_t>(d)}));
    }
    return at::stack(chunks);
  }
  /// Random weights from (seed, parameter name).
  virtual void initialise(uint64_t seed, const PreciseSink& sink) = 0;
  /// Loads weights from a public checkpoint file or folder, strict in both directions. Throws
  /// CheckpointError with all names.
  virtual void load_weights(const std::filesystem::path& path, const PreciseSink& sink) = 0;
  /// The tensors of the public checkpoint that the model has, in public order; `values` replaces
  /// parameters by name where given (EMA). Tensors may alias parameters.
  virtual std::vector<NamedTensor> export_weights(std::span<const NamedTensor> values) = 0;
  /// What the file of the last load_weights() says besides values: checkpoints are written with its
  /// dtypes and with all that it has. Null: no file, or a family whose checkpoints have the dtypes
  /// of the parameters.
  virtual const StoredWeights* stored_weights() const { return nullptr; }
};

/// Turns raw samples into batches of the family, and actions back into raw units. Const and
/// thread-safe.
class Transform {
 public:
  virtual ~Transform() = default;
  /// One prepared sample on the host.
  class Item {
   public:
    virtual ~Item() = default;
    int64_t sample_id = 0;
  };
  /// Which columns and cameras at which frame offsets a sample needs.
  virtual data::WindowSpec windows() const = 0;
  /// Throws DataError (for example when the prompt is longer than the token limit).
  virtual std::unique_ptr<Item> prepare(const data::RawSample& sample) const = 0;
  /// The text that a sample's tokens stand for, for people to read; the task where the family adds
  /// nothing to it.
  virtual std::string prompt(const data::RawSample& sample) const { return sample.task; }
  virtual std::unique_ptr<Batch> collate(std::span<const std::unique_ptr<Item>> items) const = 0;
  /// actions [B, horizon, action_dim] normalised, host fp32 -> raw units. Relative actions become
  /// absolute again with the raw states of `observed`, the batch as collate() made it: row r of the
  /// actions belongs to its sample r modulo its size, so that several draws can lie behind each
  /// other. Null is allowed where data.delta_actions is not used.
  virtual at::Tensor denormalise_actions(const at::Tensor& actions,
                                         const Batch* observed = nullptr) const = 0;
  /// Statistics that the transform normalises with and that belong to no whole column (those of
  /// chunks of relative actions), under the name by which Dataset::stats() gives them back. Kept
  /// with every checkpoint.
  virtual std::map<std::string, data::FeatureStats> own_stats() const { return {}; }
  /// A transform and the statistics of its dataset, as a checkpoint keeps them: those of every
  /// column that it reads, complete (min, max, mean, std, q01, q99), and its own_stats().
  struct Described {
    const Transform* transform = nullptr;
    std::map<std::string, data::FeatureStats> stats = {};
  };
  /// Further files of an exported checkpoint, (name, text), in which upstream keeps what is done to
  /// samples. `parts`: this one, and of a mixture those of the other datasets, in order.
  virtual std::vector<std::pair<std::string, std::string>> checkpoint_files(
      std::span<const Described> parts) const {
    static_cast<void>(parts);
    return {};
  }
  /// Cheap checks of the whole dataset against the model before step 1 (action dimension, cameras,
  /// prompt lengths).
  virtual void check_dataset(const data::Dataset& dataset) const = 0;
};

/// One transform per dataset of a mixture, (name, transform), behind the interface of one: each
/// sample goes to the transform of its dataset (RawSample::dataset), which normalises with that
/// dataset's statistics; their items share batches, so all are of one model. windows() is what any
/// part needs; errors begin with the dataset's name; check_dataset() takes the data::MixtureDataset
/// and lists the faults of all parts; denormalise_actions() throws InternalError, because units
/// belong to one dataset.
std::unique_ptr<Transform> make_mixture_transform(
    std::vector<std::pair<std::string, std::unique_ptr<Transform>>> parts);

/// The part of the recipe's `data:` section that shapes a model's inputs. The recipe loader fills
/// it before build() and make_transform(); an imported checkpoint fills it from its config.json.
struct DataBinding {
  int64_t horizon = 50;  // action steps per chunk
  /// (model's camera slot, dataset's camera), in slot order; empty = the family's own rule, which
  /// must be unambiguous.
  std::vector<std::pair<std::string, std::string>> cameras;
  /// Place of each of the dataset's state and action dimensions in the model's vectors; empty: the
  /// first ones, and the dataset must have exactly the configured number.
  std::vector<int64_t> state_dims, action_dims;
  /// The samples of a batch may have different action dimensions, so that each says its own.
  bool dims_differ = false;
  /// Action dimensions that are learned relative to the state.
  data::DeltaChoice delta;
  double state_dropout = 0;     // probability that a training sample's state is left out
  data::AugmentConfig augment;  // resolved; applied to training samples only
  /// The model changes the pictures, on its device; else the transform does it on the host.
  bool augment_on_device = false;
  /// The checkpoint whose own recipe the configuration comes from; empty for a new run. Its files
  /// say what was done to samples, whatever became of the weights that it started from.
  std::filesystem::path own_checkpoint = {};
};

/// Base of a family's `model:` section. `reflect` lists every field of that section,
/// family-specific ones included; `data` is not part of it.
class ModelConfig {
 public:
  virtual ~ModelConfig() = default;
  virtual void reflect(config::Visitor& visitor) = 0;
  /// Takes what the configuration leaves open from the dataset (action and state widths). Call
  /// once, after `data` is filled and before build() and make_transform(). Throws ConfigError when
  /// both say different things.
  virtual void bind_dataset(const data::Dataset& dataset) { static_cast<void>(dataset); }
  /// Columns of the state and of the actions: those whose values must be finite, and that a
  /// mixture's mapping of dimensions speaks of.
  virtual std::string state_column() const { return "observation.state"; }
  virtual std::string action_column() const { return "action"; }
  /// What training draws at random in the inputs of a model's frozen part (changed pictures), for
  /// messages; empty where a sample's are the same every time it comes.
  virtual std::string random_frozen_inputs() const { return {}; }
  std::string family;
  DataBinding data;
};

struct BuildOptions {
  at::Device device = at::kCPU;  // kMeta builds shapes only
  at::ScalarType dtype = at::kFloat;
  /// false: parameters have shape, dtype and device, but no memory until somebody gives it
  /// (sharding)
  bool allocate = true;
  bool initialise =
      true;  // random weights from `seed`; false: initialise() or load_weights() follow
  uint64_t seed = 0;
  std::optional<nn::Fp8Options> fp8 = std::nullopt;  // products in FP8
  nn::Fused fused = {};                              // operators to use
  std::vector<std::string> recompute = {};  // units whose activations are computed again, see plan
  int64_t token_bucket = 1;                 // text rows of a batch are padded to a multiple of it
  bool pad_text = false;                    // text padded to the token limit, as the references do
  bool grid_cache = false;                  // host tables of picture grids are kept
};

/// Floating-point operations of one training batch, forward pass, products only (a multiply-add
/// counts 2); the backward pass is twice that.
struct BatchCost {
  double executed = 0;   // what this engine does
  double reference = 0;  // what the reference implementation does for the same samples, padding
                         // and dead layers included
};

/// Shape of a made-up batch.
struct SyntheticShape {
  int64_t batch = 1;
  int64_t images = 2;   // per sample
  int64_t tokens = 60;  // valid text tokens per sample
};

class ModelFamily {
 public:
  virtual ~ModelFamily() = default;
  virtual std::string name() const = 0;
  virtual std::string summary() const = 0;
  virtual std::unique_ptr<ModelConfig> make_config() const = 0;
  /// Builds with random weights, or uninitialised ones; the caller loads a checkpoint afterwards
  /// when the configuration names one.
  virtual std::unique_ptr<Policy> build(const ModelConfig& config,
                                        const BuildOptions& options) const = 0;
  virtual std::unique_ptr<Transform> make_transform(const ModelConfig& config,
                                                    const data::Dataset& dataset) const = 0;
  /// Layers that multiply in FP8 under train.fp8: default, as patterns over the names that the
  /// family's README lists.
  virtual std::vector<std::string> default_fp8_layers() const { return {}; }
  /// Switches of the recipe ("perf.fused_loss") that change nothing for this family.
  virtual std::vector<std::string> unused_switches() const { return {}; }
  /// Work of a batch.
  virtual BatchCost cost(const ModelConfig& config, const Batch& batch) const = 0;
  /// A host batch of random numbers, for measuring without a dataset.
  virtual std::unique_ptr<Batch> synthetic_batch(const ModelConfig& config,
                                                 const SyntheticShape& shape,
                                                 uint64_t seed) const = 0;
  /// `config.json` of an exported checkpoint under upstream's own keys.
  virtual std::string export_config_json(const ModelConfig& config,
                                         const data::Dataset& dataset) const = 0;
  /// Reads an exported or public `config.json` into the family's configuration.
  virtual std::unique_ptr<ModelConfig> import_config_json(
      const std::filesystem::path& path) const = 0;
};

/// Throws ConfigError with the nearest name when unknown.
const ModelFamily& find_family(const std::string& name);
std::vector<const ModelFamily*> all_families();

}  // namespace longship::models
