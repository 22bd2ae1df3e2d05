#include "train/checkpoint_io.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "data/mixture.h"
#include "data/stats.h"
#include "io/tensor_io.h"
#include "train/session.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;

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

std::vector<ExportTensor> export_plan(models::Policy& policy, const AdamW& optimizer) {
  std::map<std::string, const AdamW::Entry*> entries;
  std::set<const void*> trained;  // memory that updates change
  for (const AdamW::Entry& e : optimizer.entries()) {
    entries[e.name] = &e;
    trained.insert(e.param.storage().data());
  }
  std::vector<ExportTensor> out;
  std::vector<size_t> derived;
  for (const models::NamedTensor& t : policy.export_weights({})) {
    ExportTensor e;
    e.spec = {t.name, io::to_dtype(t.tensor.scalar_type()), t.tensor.sizes().vec()};
    const auto found = entries.find(t.name);
    const bool is_parameter = found != entries.end() &&
                              found->second->param.sizes() == t.tensor.sizes() &&
                              found->second->param.const_data_ptr() == t.tensor.const_data_ptr();
    if (is_parameter) {
      e.source = (optimizer.has_ema() ? "ema." : "weights.") + t.name;
    } else {
      LS_CHECK(found == entries.end(), InternalError,
               "the exported '{}' is not the parameter of that name", t.name);
      e.literal = t.tensor.detach();
      e.literal_moves = trained.contains(t.tensor.storage().data());
      if (e.literal_moves) derived.push_back(out.size());
    }
    out.push_back(std::move(e));
  }
  // What a family makes from several parameters has no tensor of its own in the state.
  if (!derived.empty() && optimizer.has_ema()) {
    const std::vector<models::NamedTensor> values = policy.export_weights(export_values(optimizer));
    for (const size_t i : derived) out[i].literal = values.at(i).tensor.detach();
  }
  return out;
}

SaveParts collect_parts(const CheckpointContents& contents, models::Policy& policy,
                        const AdamW& optimizer, const TrainerState& state) {
  const Recipe& recipe = *contents.recipe;
  SaveParts parts;
  parts.step = state.step;
  parts.state = whole_slices(optimizer.state());
  parts.model = export_plan(policy, optimizer);
  for (models::NamedTensor& t : policy.training_state()) {
    parts.policy_state.emplace_back(t.name, t.tensor);
  }
  parts.texts = {
      {"config.json", recipe.family->export_config_json(*recipe.model, *contents.dataset)},
      {"config.yaml", contents.recipe_yaml},
      {"stats.json", contents.stats_json},
      {"state/trainer.json", to_json(state)}};
  return parts;
}

SaveParts share_of(SaveParts all, int64_t rank, int64_t world_size, const std::string& strategy) {
  SaveParts out;
  out.step = all.step;
  out.strategy = strategy;
  out.state = even_share(all.state, rank, world_size);
  if (rank != 0) return out;
  out.model = std::move(all.model);
  out.policy_state = std::move(all.policy_state);
  out.texts = std::move(all.texts);
  return out;
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

void load_training_state(const fs::path& checkpoint, models::Policy& policy, AdamW& optimizer,
                         int64_t num_updates) {
  policy.load_weights(checkpoint, {});
  const io::ShardedState stored = io::ShardedState::open(checkpoint / "state");
  const std::vector<StateSlice> slices = whole_slices(optimizer.state());
  std::vector<io::TensorSpec> expected;
  for (const StateSlice& s : slices) {
    expected.push_back({s.name, io::to_dtype(s.tensor.scalar_type()), s.shape});
  }
  check_state(stored, expected);
  load_slices(stored, slices);  // the slices are the optimizer's own tensors
  optimizer.load_state(optimizer.state(), num_updates);
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
