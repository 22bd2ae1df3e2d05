#include "train/checkpoint_io.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "data/mixture.h"
#include "data/stats.h"
#include "train/session.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;

uint64_t bytes_of(const at::Tensor& t) {
  return static_cast<uint64_t>(t.numel()) * t.element_size();
}

// Values that replace parameters in the export, in the parameters' own dtype.
std::vector<models::NamedTensor> export_values(const AdamW& optimizer) {
  std::vector<models::NamedTensor> out;
  if (!optimizer.has_ema()) return out;
  for (const AdamW::Entry& e : optimizer.entries()) {
    out.push_back({e.name, e.ema.to(e.param.scalar_type())});
  }
  return out;
}

}  // namespace

std::string stats_json(const data::Dataset& dataset, const models::Transform& transform) {
  std::map<std::string, data::FeatureStats> stats = dataset.stats();
  const auto complete = [&](const data::Dataset& part, const std::string& prefix) {
    for (const auto& [column, offsets] : transform.windows().columns) {
      stats[prefix + column] =
          data::completed_stats(part, column, {"min", "max", "mean", "std", "q01", "q99"});
    }
  };
  if (const auto* mixture = dynamic_cast<const data::MixtureDataset*>(&dataset)) {
    for (const data::MixturePart& part : mixture->parts()) {
      complete(*part.dataset, part.name + "/");
    }
  } else {
    complete(dataset, "");
  }
  stats.merge(transform.own_stats());
  return stats_to_json(stats);
}

std::string initial_weights(const Recipe& recipe) {
  for (const auto& [key, value] : flatten(recipe)) {
    if (key == "model.checkpoint" && value != "null") return value;
  }
  return {};
}

void fill_weights(models::Policy& policy, const Recipe& recipe, const models::PreciseSink& sink) {
  const std::string weights = initial_weights(recipe);
  if (weights.empty()) return policy.initialise(static_cast<uint64_t>(recipe.train.seed), sink);
  log::info("weights from {}", weights);
  policy.load_weights(weights, sink);
}

fs::path save_checkpoint(CheckpointStore& store, const CheckpointContents& contents,
                         models::Policy& policy, const AdamW& optimizer,
                         const TrainerState& state) {
  CheckpointTensors tensors;
  tensors.weights = policy.export_weights(export_values(optimizer));
  for (const auto& [name, tensor] : optimizer.state()) {
    tensors.optimizer.push_back(
        {name, tensor.scalar_type(), tensor.sizes().vec(), [tensor] { return tensor; }});
  }
  return write_checkpoint(store, contents, policy, tensors, state);
}

fs::path write_checkpoint(CheckpointStore& store, const CheckpointContents& contents,
                          models::Policy& policy, const CheckpointTensors& tensors,
                          const TrainerState& state) {
  const Recipe& recipe = *contents.recipe;
  io::NamedTensors weights;
  uint64_t needed = 0;
  for (const models::NamedTensor& t : tensors.weights) {
    needed += bytes_of(t.tensor);
    weights.emplace_back(t.name, t.tensor.detach());
  }
  for (const io::LazyTensor& t : tensors.optimizer) {
    needed += static_cast<uint64_t>(c10::multiply_integers(t.shape)) * c10::elementSize(t.dtype);
  }
  io::NamedTensors policy_state;
  for (models::NamedTensor& t : policy.training_state())
    policy_state.emplace_back(t.name, t.tensor);
  return store.save(state.step, needed, [&](const fs::path& folder) {
    constexpr ExitCode code = ExitCode::kCheckpoint;
    fs::create_directories(folder / "state");
    io::save_tensors(folder / "model.safetensors", weights, {{"format", "pt"}});
    write_file_atomic(folder / "config.json",
                      recipe.family->export_config_json(*recipe.model, *contents.dataset), code);
    write_file_atomic(folder / "config.yaml", contents.recipe_yaml, code);
    write_file_atomic(folder / "stats.json", contents.stats_json, code);
    io::save_tensors(folder / "state" / "optimizer.safetensors", tensors.optimizer);
    if (!policy_state.empty()) {
      io::save_tensors(folder / "state" / "policy.safetensors", policy_state);
    }
    write_file_atomic(folder / "state" / "trainer.json", to_json(state), code);
  });
}

namespace {

// The state of the parts that this process updates, from the file of the whole. What belongs to no
// parameter of the model goes on to the optimizer, which complains.
io::NamedTensors read_own_state(const fs::path& file, const GradientSync* sync) {
  const io::Weights weights = io::open_weights(file);
  io::NamedTensors out;
  for (const io::TensorInfo& info : weights.tensors()) {
    at::Tensor whole = io::to_tensor(weights, info);
    const std::string name = info.name.substr(info.name.find('.') + 1);
    if (sync != nullptr && sync->knows(name)) {
      LS_CHECK(sync->has_shape(name, whole), CheckpointError,
               "{}: {} has another shape than the "
               "parameter",
               file.string(), io::describe(info));
      whole = sync->own_part(name, whole);
      if (whole.defined() && sync->sliced()) whole = whole.clone();  // lets the rest go
    }
    if (whole.defined()) out.emplace_back(info.name, std::move(whole));
  }
  return out;
}

}  // namespace

void load_training_state(const fs::path& checkpoint, models::Policy& policy, AdamW& optimizer,
                         int64_t num_updates, const GradientSync* sync) {
  policy.load_weights(checkpoint, {});
  const fs::path file = checkpoint / "state" / "optimizer.safetensors";
  const io::NamedTensors state = read_own_state(file, sync);
  try {
    optimizer.load_state(state, num_updates);
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", file.string(), error.what()));
  }
  const fs::path extra = checkpoint / "state" / "policy.safetensors";
  std::vector<models::NamedTensor> policy_state;
  if (fs::exists(extra)) {
    for (auto& [name, tensor] : io::load_tensors(extra)) policy_state.push_back({name, tensor});
  }
  try {
    policy.load_training_state(policy_state);
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", extra.string(), error.what()));
  }
}

}  // namespace longship::train
