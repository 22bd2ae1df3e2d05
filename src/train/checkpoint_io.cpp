#include "train/checkpoint_io.h"

#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "data/mixture.h"
#include "data/stats.h"
#include "io/tensor_io.h"
#include "train/export_plan.h"
#include "train/session.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;

io::NamedTensors policy_state_of(models::Policy& policy) {
  io::NamedTensors out;
  for (models::NamedTensor& t : policy.training_state()) out.emplace_back(t.name, t.tensor);
  return out;
}

}  // namespace

std::map<std::string, data::FeatureStats> checkpoint_stats(const data::Dataset& dataset,
                                                           const models::Transform& transform) {
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
  return stats;
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

SaveParts collect_parts(const CheckpointContents& contents, models::Policy& policy,
                        const AdamW& optimizer, const TrainerState& state, GradientSync* sync) {
  SaveParts parts;
  parts.step = state.step;
  parts.state = sync != nullptr ? sync->own_state(optimizer, /*loading=*/false)
                                : whole_slices(optimizer.state());
  if (sync != nullptr) {
    parts.strategy = sync->strategy();
    sync->wait_weights();
    if (!sync->first()) return parts;
  }
  const Recipe& recipe = *contents.recipe;
  parts.model = export_plan(policy, optimizer, sync == nullptr || sync->has_whole_weights());
  parts.policy_state = policy_state_of(policy);
  parts.texts = {
      {"config.json", recipe.family->export_config_json(*recipe.model, *contents.dataset)},
      {"config.yaml", contents.recipe_yaml},
      {"stats.json", contents.stats_json},
      {"state/trainer.json", to_json(state)}};
  parts.texts.insert(parts.texts.end(), contents.files.begin(), contents.files.end());
  return parts;
}

uint64_t SaveParts::bytes() const {
  uint64_t sum = bytes_of(state) + bytes_of(model);
  for (const auto& [name, tensor] : policy_state) {
    sum += static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
  }
  for (const auto& [path, text] : texts) sum += text.size();
  return sum;
}

fs::path save_parts(CheckpointStore& store, CheckpointGroup& group, const SaveParts& parts) {
  SavePlan plan;
  plan.step = parts.step;
  plan.bytes = parts.bytes();
  plan.write = [&](const fs::path& folder) {
    return std::vector{write_shard(folder, group.rank(), group.world_size(), parts.state)};
  };
  plan.complete = [&](const fs::path& folder) {
    std::vector<WrittenFile> files;
    for (const auto& [path, text] : parts.texts) {
      write_file_atomic(folder / path, text, ExitCode::kCheckpoint);
    }
    if (!parts.policy_state.empty()) {
      io::save_tensors(folder / "state" / "policy.safetensors", parts.policy_state);
    }
    files.push_back(write_shard_index(folder, group.world_size(), parts.strategy));
    files.push_back({"model.safetensors", write_model(folder / "model.safetensors", parts.model,
                                                      io::ShardedState::open(folder / "state"))});
    return files;
  };
  return store.save(group, plan);
}

fs::path save_checkpoint(CheckpointStore& store, const CheckpointContents& contents,
                         models::Policy& policy, const AdamW& optimizer,
                         const TrainerState& state) {
  SingleProcess alone;
  return save_parts(store, alone, collect_parts(contents, policy, optimizer, state));
}

namespace {

// The whole state, whoever holds it.
std::vector<io::TensorSpec> expected_state(models::Policy& policy, bool has_ema) {
  std::vector<io::TensorSpec> out;
  for (const models::ParamInfo& info : policy.parameters()) {
    if (info.role == models::ParamRole::kFrozen) continue;
    const auto add = [&](const char* kind) {
      out.push_back({kind + info.name, io::DType::kF32, info.tensor.sizes().vec()});
    };
    add("weights.");
    if (info.role == models::ParamRole::kTrainable) {
      add("exp_avg.");
      add("exp_avg_sq.");
    }
    if (has_ema) add("ema.");
  }
  return out;
}

}  // namespace

void load_training_state(const fs::path& checkpoint, models::Policy& policy, AdamW& optimizer,
                         int64_t num_updates, GradientSync* sync) {
  models::PreciseSink sink;
  if (sync != nullptr) {
    sink = [&](const std::string& name, const at::Tensor& value) {
      sync->set_values(optimizer, name, value);
    };
  }
  policy.load_weights(checkpoint, sink);
  // First, because what differs here explains what does not fit there.
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
  const io::ShardedState stored = io::ShardedState::open(checkpoint / "state");
  check_state(stored, expected_state(policy, optimizer.has_ema()));
  // The slices are the optimizer's own tensors.
  load_slices(stored, sync != nullptr ? sync->own_state(optimizer, /*loading=*/true)
                                      : whole_slices(optimizer.state()));
  optimizer.load_state(optimizer.state(), num_updates);
}

}  // namespace longship::train
