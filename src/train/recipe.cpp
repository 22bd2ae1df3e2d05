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

void check_parallel_section(const ParallelSection& p, const Require& require) {
  const ParallelSection off;
  const bool shards = p.strategy == "fsdp" || p.strategy == "hsdp";
  for (const auto& [key, text] : {std::pair{"replicate", &p.replicate}, {"shard", &p.shard}}) {
    const bool number = !text->empty() && text->size() < 8 && text->front() != '0' &&
                        text->find_first_not_of("0123456789") == std::string::npos;
    require(*text == "auto" || number,
            fmt::format("parallel.{}: '{}' is neither auto nor a number of processes", key, *text));
    require(*text == "auto" || p.strategy == "hsdp",
            fmt::format("parallel.{}: has no effect with parallel.strategy {}; it belongs to hsdp",
                        key, p.strategy));
  }
  require(
      !shards || p.bucket_mb == off.bucket_mb,
      fmt::format("parallel.bucket_mb: has no effect with parallel.strategy {}, which sends the "
                  "gradients of a unit of the model together",
                  p.strategy));
  require(shards || p.reshard == off.reshard,
          fmt::format("parallel.reshard: has no effect with parallel.strategy {}; it belongs to "
                      "fsdp and hsdp",
                      p.strategy));
  require(p.strategy != "none" || p.transport == off.transport,
          "parallel.transport: has no effect with parallel.strategy none; choose a strategy or "
          "remove it");
  require(
      p.strategy != "none" || (p.reduce_dtype == off.reduce_dtype && p.bucket_mb == off.bucket_mb),
      "parallel: reduce_dtype and bucket_mb have no effect with parallel.strategy none; choose "
      "a strategy or remove them");
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
  check_parallel_section(r.parallel, require);
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
  require(r.perf.hand_over_gradients || r.train.cuda_graph != "per_microbatch",
          "perf.hand_over_gradients: train.cuda_graph per_microbatch keeps the gradients' buffers "
          "anyway; remove it");
  require(r.perf.hand_over_gradients || r.parallel.strategy == "none",
          fmt::format("perf.hand_over_gradients: has no effect with parallel.strategy {}, where "
                      "gradients go into buckets; remove it",
                      r.parallel.strategy));
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
  // These change neither samples, nor weights, nor noise; how many processes share the work changes
  // the order of sums only. The path of a dataset may change; its
  // content is compared by fingerprint where a run is resumed. Steps matter only through the
  // schedule.
  static const std::set<std::string> harmless = {"data.workers",
                                                 "data.prefetch",
                                                 "data.share_decoding",
                                                 "data.expect_order_sha256",
                                                 "train.steps",
                                                 "train.stop_after",
                                                 "train.threads",
                                                 "train.on_nonfinite",
                                                 "train.max_skipped_steps",
                                                 "train.device",
                                                 "train.cuda_graph",
                                                 "perf.hand_over_gradients",
                                                 "perf.copy_ahead",
                                                 "perf.early_launch",
                                                 "perf.two_graphs",
                                                 "perf.feature_cache",
                                                 "output_dir"};
  const auto is_harmless = [&](const std::string& key) {
    return harmless.contains(key) || key.starts_with("checkpoint.") || key.starts_with("log.") ||
           key.starts_with("eval.") || key.starts_with("parallel.") || key == "model.checkpoint" ||
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
