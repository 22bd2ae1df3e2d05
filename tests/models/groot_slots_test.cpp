// Slots of the category-specific layers that a run does not use: no part of training, unchanged in
// checkpoints.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/config/load.h"
#include "base/config/yaml.h"
#include "base/error.h"
#include "data/golden_arrays.h"
#include "data/mapped_dataset.h"
#include "data/mixture.h"
#include "io/tensor_io.h"
#include "models/groot/embodiment.h"
#include "models/groot/mapping.h"
#include "models/groot/plan.h"
#include "models/groot/policy.h"
#include "models/groot/spec.h"
#include "models/tiny_case.h"
#include "nn/tensor_math.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;
using longship::testing::expect_error;
using Tensors = std::map<std::string, at::Tensor>;

constexpr int64_t kOwn = 10, kOther = 24;  // new_embodiment, and what another dataset says

std::shared_ptr<const data::Dataset> fake_dataset(int64_t embodiment = 0) {
  auto dataset = std::make_shared<longship::testing::FakeDataset>();
  const auto value = [](int64_t e, int64_t t, int64_t i) { return static_cast<float>(e + t + i); };
  dataset->add_column("action", 4, value);
  dataset->add_column("observation.state", 5, value);
  dataset->add_episode(3);
  dataset->add_episode(2);
  dataset->task_list = {"reach"};
  data::DatasetMapping mapping;
  mapping.embodiment = embodiment;
  return data::map_dataset(dataset, mapping);
}

std::shared_ptr<const data::Dataset> fake_mixture() {
  std::vector<data::MixturePart> parts(2);
  parts[0].dataset = fake_dataset(kOther);
  parts[0].name = "other";
  parts[1].dataset = fake_dataset();
  parts[1].name = "own";
  return std::make_shared<data::MixtureDataset>(std::move(parts), "observation.state", "action");
}

GrootConfig config_of(GrootVersion version, const std::string& train_slots,
                      const std::string& size = "demo") {
  GrootConfig config(version);
  config.size = size;
  config.train_slots = train_slots;
  config.data.horizon = 16;
  config.shortest_edge = 96;
  return config;
}

GrootConfig bound(GrootVersion version, const data::Dataset& dataset,
                  const std::string& train_slots = "used", const std::string& size = "demo") {
  GrootConfig config = config_of(version, train_slots, size);
  config.bind_dataset(dataset);
  return config;
}

bool is_table(std::string_view name) {
  for (const char* part : {".state_encoder.", ".action_encoder.", ".action_decoder."}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

const ModelFamily& family_of(GrootVersion version) {
  return version == GrootVersion::kN17 ? groot_n17_family() : groot_n16_family();
}

/// Three samples of the given slots.
std::unique_ptr<Batch> batch_of(const GrootConfig& config, const std::vector<int64_t>& slots,
                                uint64_t seed = 1) {
  auto batch = family_of(config.version).synthetic_batch(config, {3, 1, 10}, seed);
  for (int64_t i = 0; i < 3; ++i) {
    groot_batch(*batch).embodiment[i].fill_(slots[static_cast<size_t>(i)]);
  }
  return batch;
}

Tensors exported(GrootPolicy& policy, std::span<const NamedTensor> values = {}) {
  Tensors out;
  for (const NamedTensor& t : policy.export_weights(values)) {
    EXPECT_TRUE(out.emplace(t.name, t.tensor.detach().clone()).second) << t.name;
  }
  return out;
}

/// Losses of five updates with decay, and the gradients' norms.
std::vector<double> train(GrootPolicy& policy, const std::vector<std::vector<int64_t>>& slots) {
  ParityRecipe recipe;
  recipe.schedule = "cosine_with_warmup_openpi";
  recipe.peak_lr = recipe.min_lr = 1e-3;
  recipe.decay_steps = 100;
  recipe.weight_decay = 0.1;
  recipe.clip_norm = 1;
  const auto optimizer = testing::plain_optimizer(policy.parameters(), recipe);
  std::vector<double> out;
  for (int64_t step = 0; step < 5; ++step) {
    const auto number = static_cast<uint64_t>(step);
    const auto batch = batch_of(policy.model().config(), slots[number % slots.size()], number);
    const at::Tensor loss = policy.loss(*batch, {7, number}).loss;
    loss.backward();
    out.push_back(loss.item<double>());
    out.push_back(optimizer->step(step));
  }
  return out;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

class GrootSlots : public ::testing::TestWithParam<GrootVersion> {};

TEST_P(GrootSlots, OneUsedSlotTrainsAsAmongAll) {
  const auto dataset = fake_dataset();
  GrootPolicy used(bound(GetParam(), *dataset), {.seed = 3});
  GrootPolicy all(bound(GetParam(), *dataset, "all"), {.seed = 3});
  const Tensors before = exported(used), also = exported(all);
  ASSERT_EQ(before.size(), also.size());
  for (const auto& [name, value] : before) EXPECT_TRUE(at::equal(value, also.at(name))) << name;
  EXPECT_TRUE(used.model().config().dropout);

  const std::vector<double> a = train(used, {{kOwn, kOwn, kOwn}});
  const std::vector<double> b = train(all, {{kOwn, kOwn, kOwn}});
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6 * std::abs(b[i])) << i;

  const Tensors after = exported(used), among = exported(all);
  for (const auto& [name, value] : after) {
    if (!is_table(name)) {
      EXPECT_LE(largest_difference(value, among.at(name)), 1e-6) << name;
      continue;
    }
    ASSERT_EQ(value.sizes(), before.at(name).sizes()) << name;
    for (int64_t slot = 0; slot < value.size(0); ++slot) {
      const at::Tensor then = before.at(name)[slot];
      if (slot == kOwn) {
        EXPECT_FALSE(at::equal(value[slot], then)) << name;
        EXPECT_LE(largest_difference(value[slot], among.at(name)[slot]), 1e-6) << name;
      } else {
        EXPECT_TRUE(at::equal(value[slot], then)) << name << " " << slot;
      }
    }
    // The other way decays them.
    if (name.ends_with(".W")) {
      EXPECT_FALSE(at::equal(among.at(name)[0], before.at(name)[0]));
    }
  }
}

TEST_P(GrootSlots, TwoUsedSlotsInOneBatch) {
  const auto dataset = fake_mixture();
  const GrootConfig config = bound(GetParam(), *dataset);
  EXPECT_EQ(config.trained_slots(), (std::vector<int64_t>{kOwn, kOther}));
  GrootPolicy used(config, {.seed = 3});
  GrootPolicy all(bound(GetParam(), *dataset, "all"), {.seed = 3});
  const Tensors before = exported(used);
  // Mixed, of one slot, of the other.
  const std::vector<std::vector<int64_t>> slots{
      {kOther, kOwn, kOther}, {kOther, kOther, kOther}, {kOwn, kOwn, kOwn}};
  const std::vector<double> a = train(used, slots), b = train(all, slots);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6 * std::abs(b[i])) << i;
  const Tensors after = exported(used), among = exported(all);
  for (const auto& [name, value] : after) {
    if (!is_table(name)) continue;
    for (int64_t slot = 0; slot < value.size(0); ++slot) {
      const bool trained = slot == kOwn || slot == kOther;
      EXPECT_EQ(at::equal(value[slot], before.at(name)[slot]), !trained) << name << " " << slot;
      if (trained) {
        EXPECT_LE(largest_difference(value[slot], among.at(name)[slot]), 2e-6) << name;
      }
    }
  }
}

TEST_P(GrootSlots, SamplingReadsTheSameWeights) {
  const at::NoGradGuard no_grad;
  const auto dataset = fake_mixture();
  GrootPolicy used(bound(GetParam(), *dataset), {.seed = 3});
  GrootPolicy all(bound(GetParam(), *dataset, "all"), {.seed = 3});
  for (const std::vector<int64_t>& slots :
       {std::vector<int64_t>{kOwn, kOther, kOwn}, {kOther, kOther, kOther}}) {
    const auto batch = batch_of(used.model().config(), slots);
    EXPECT_TRUE(at::equal(used.sample(*batch, {1, 0}), all.sample(*batch, {1, 0})));
  }
}

TEST_P(GrootSlots, PartsKnowTheirRole) {
  const auto dataset = fake_dataset();
  GrootPolicy policy(bound(GetParam(), *dataset), {.seed = 3});
  std::set<std::string> names;
  int64_t tables = 0;
  for (const ParamInfo& info : policy.parameters()) {
    names.insert(info.name);
    if (!is_table(info.name)) continue;
    ++tables;
    const bool unused = info.name.ends_with(nn::kUnusedCategories);
    EXPECT_EQ(info.role, unused ? ParamRole::kFrozen : ParamRole::kTrainable) << info.name;
    EXPECT_EQ(info.unit, unused ? nn::kUnreadUnit : nn::kRootUnit) << info.name;
    EXPECT_EQ(info.tensor.requires_grad(), !unused) << info.name;
    EXPECT_EQ(info.tensor.size(0), unused ? 31 : 1) << info.name;
    EXPECT_TRUE(info.tensor.is_contiguous());
  }
  EXPECT_EQ(tables, 28);
  const std::vector<std::string> order = policy.use_order();
  EXPECT_EQ(std::set<std::string>(order.begin(), order.end()), names);
  EXPECT_EQ(order.size(), names.size());
  policy.loss(*batch_of(policy.model().config(), {kOwn, kOwn, kOwn}), {7, 0}).loss.backward();
  for (const ParamInfo& info : policy.parameters()) {
    if (!is_table(info.name)) continue;
    EXPECT_EQ(info.tensor.grad().defined(), info.role == ParamRole::kTrainable) << info.name;
  }
  // Patterns speak of public names.
  GrootConfig config = bound(GetParam(), *dataset);
  config.freeze = {"action_head.state_encoder.layer1.W"};
  GrootPolicy frozen(config, {.seed = 3});
  for (const ParamInfo& info : frozen.parameters()) {
    if (info.name == config.freeze.front()) {
      EXPECT_EQ(info.role, ParamRole::kFrozen);
    }
  }
}

TEST_P(GrootSlots, ParametersInBf16) {
  const auto dataset = fake_dataset();
  BuildOptions options;
  options.dtype = at::kBFloat16;
  GrootPolicy used(bound(GetParam(), *dataset), options);
  GrootPolicy all(bound(GetParam(), *dataset, "all"), options);
  const Tensors a = exported(used), b = exported(all);
  for (const auto& [name, value] : a) {
    EXPECT_EQ(value.scalar_type(), b.at(name).scalar_type()) << name;
    EXPECT_TRUE(at::equal(value, b.at(name))) << name;
  }
}

TEST_P(GrootSlots, CheckpointsHoldWholeTables) {
  const auto dataset = fake_mixture();
  const fs::path folder = longship::testing::scratch_dir("groot_slots");
  const fs::path path = folder / "model.safetensors";
  GrootPolicy all(config_of(GetParam(), "all"), {.seed = 1});
  io::NamedTensors file;
  for (const NamedTensor& t : all.export_weights({})) file.emplace_back(t.name, t.tensor);
  io::save_tensors(path, file);

  GrootPolicy used(bound(GetParam(), *dataset), {.seed = 2});
  Tensors given;
  used.load_weights(path, [&](const std::string& name, const at::Tensor& value) {
    EXPECT_EQ(value.scalar_type(), at::kFloat);
    EXPECT_TRUE(given.emplace(name, value.clone()).second) << name;
  });
  // Every parameter's own values, once.
  for (const ParamInfo& info : used.parameters()) {
    ASSERT_TRUE(given.contains(info.name)) << info.name;
    EXPECT_TRUE(at::equal(given.at(info.name), info.tensor)) << info.name;
    given.erase(info.name);
  }
  EXPECT_TRUE(given.empty());
  const Tensors back = exported(used);
  ASSERT_EQ(back.size(), file.size());
  std::vector<std::string> order;
  for (const NamedTensor& t : used.export_weights({})) order.push_back(t.name);
  for (size_t i = 0; i < file.size(); ++i) {
    EXPECT_EQ(order[i], file[i].first);
    EXPECT_TRUE(at::equal(back.at(file[i].first), file[i].second)) << file[i].first;
  }

  // A model whose parameters have no memory of their own gets the values through the sink only.
  BuildOptions options;
  options.allocate = options.initialise = false;
  GrootPolicy sharded(bound(GetParam(), *dataset), options);
  std::set<std::string> names;
  sharded.load_weights(path, [&](const std::string& name, const at::Tensor& value) {
    names.insert(name);
    EXPECT_EQ(value.dtype(), at::kFloat);
  });
  EXPECT_EQ(names.size(), sharded.parameters().size());
  for (const NamedTensor& t : sharded.export_weights({})) {
    EXPECT_EQ(t.tensor.sizes(), back.at(t.name).sizes()) << t.name;
    EXPECT_EQ(is_table(t.name), t.tensor.is_meta()) << t.name;
  }
  names.clear();
  sharded.initialise(5, [&](const std::string& name, const at::Tensor&) { names.insert(name); });
  EXPECT_EQ(names.size(), sharded.parameters().size());

  // A table of another shape, or none, is one fault among the others.
  const std::string wrong = "action_head.action_encoder.W1.W";
  const std::string absent = "action_head.action_decoder.layer2.b";
  std::erase_if(file, [&](const auto& t) { return t.first == absent; });
  for (auto& [name, tensor] : file) {
    if (name == wrong) tensor = tensor.narrow(0, 0, 2).clone();
  }
  io::save_tensors(path, file);
  expect_error<CheckpointError>([&] { used.load_weights(path); }, {wrong, absent, "[2, ", "[32, "});
  fs::remove_all(folder);
}

TEST_P(GrootSlots, ExportTakesValuesOfTheParameters) {
  const auto dataset = fake_dataset();
  GrootPolicy policy(bound(GetParam(), *dataset), {.seed = 2});
  const Tensors before = exported(policy);
  std::vector<NamedTensor> values;
  for (const ParamInfo& info : policy.parameters()) {
    if (info.role != ParamRole::kTrainable) continue;
    values.push_back({info.name, at::full(info.tensor.sizes(), 0.25)});
  }
  for (const auto& [name, value] : exported(policy, values)) {
    if (!is_table(name)) continue;
    for (int64_t slot = 0; slot < value.size(0); ++slot) {
      const at::Tensor then = before.at(name)[slot];
      EXPECT_TRUE(at::equal(value[slot], slot == kOwn ? at::full(then.sizes(), 0.25) : then));
    }
  }
  EXPECT_TRUE(at::equal(exported(policy).at("action_head.state_encoder.layer1.W"),
                        before.at("action_head.state_encoder.layer1.W")));
  values = {{"action_head.state_encoder.layer1.W", at::full({32, 1}, 0.25)}};
  expect_error<ShapeError>([&] { policy.export_weights(values); },
                           {"state_encoder.layer1.W", "[32, 1]", "[1, "});
}

TEST_P(GrootSlots, ForeignSlotsAreRefused) {
  const auto dataset = fake_dataset();
  GrootPolicy policy(bound(GetParam(), *dataset), {.seed = 2});
  const auto batch = batch_of(policy.model().config(), {kOwn, 0, kOwn});
  const std::string tag = GetParam() == GrootVersion::kN17 ? "simpler_env_google" : "oxe_google";
  for (const bool sampling : {false, true}) {
    expect_error<ConfigError>(
        [&] {
          const auto own = batch->clone();
          sampling ? policy.prepare_sampling(*own, {1, 0}) : policy.prepare(*own, {1, 0});
        },
        {"sample 1 ", "slot 0 (" + tag + ")", "10 (new_embodiment)", "model.train_slots: all",
         "embodiment"});
  }
  expect_error<ConfigError>([&] { policy.sample(*batch, {1, 0}); }, {"sample 1 "});
  GrootPolicy all(config_of(GetParam(), "used"), {.seed = 2});  // bound to nothing: all slots
  const auto own = batch->clone();
  EXPECT_NO_THROW(all.prepare(*own, {1, 0}));
}

TEST_P(GrootSlots, ResumingWithOtherSlotsIsRefused) {
  const auto one = fake_dataset(), two = fake_mixture();
  GrootConfig other = config_of(GetParam(), "used");
  other.embodiment = GetParam() == GrootVersion::kN17 ? "simpler_env_google" : "oxe_google";
  other.bind_dataset(*one);
  GrootPolicy own(bound(GetParam(), *one), {}), foreign(other, {}),
      several(bound(GetParam(), *two), {}), all(config_of(GetParam(), "all"), {});
  EXPECT_TRUE(all.training_state().empty());
  EXPECT_EQ(own.training_state().size(), 28U);
  EXPECT_NO_THROW(own.load_training_state(own.training_state()));
  EXPECT_NO_THROW(all.load_training_state({}));
  const auto refuse = [](GrootPolicy& now, GrootPolicy& before,
                         std::initializer_list<std::string_view> words) {
    expect_error<CheckpointError>([&] { now.load_training_state(before.training_state()); }, words);
  };
  refuse(own, foreign, {"slots 0, this run trains 10", "model.checkpoint", "model.embodiment"});
  refuse(own, several, {"slots 10, 24, this run trains 10"});
  refuse(own, all, {"slots all, this run trains 10", "model.train_slots"});
  refuse(all, own, {"slots 10, this run trains all"});
}

INSTANTIATE_TEST_SUITE_P(Both, GrootSlots,
                         ::testing::Values(GrootVersion::kN16, GrootVersion::kN17));

// Of the published models: 14 tables of 32 slots.
TEST(GrootSlotCounts, PublishedSizesWithOneSlot) {
  struct Published {
    GrootVersion version;
    int64_t total, all, one;
  };
  for (const Published& p :
       {Published{GrootVersion::kN16, 2'975'968'192, 1'619'968'000, 1'304'809'600},
        Published{GrootVersion::kN17, 3'144'016'000, 1'620'515'968, 1'304'913'028}}) {
    BuildOptions options;
    options.device = at::kMeta;
    options.initialise = false;
    const auto dataset = fake_dataset();
    int64_t trained[2] = {0, 0}, tables = 0;
    for (const bool used : {false, true}) {
      GrootPolicy policy(bound(p.version, *dataset, used ? "used" : "all", "full"), options);
      EXPECT_EQ(policy.module().num_elements(), p.total);
      int64_t total = 0;
      for (const ParamInfo& info : policy.parameters()) {
        total += info.tensor.numel();
        if (info.role != ParamRole::kTrainable) continue;
        trained[used] += info.tensor.numel();
        if (used && is_table(info.name)) tables += info.tensor.numel();
      }
      EXPECT_EQ(total, p.total);
    }
    EXPECT_EQ(trained[0], p.all);
    EXPECT_EQ(trained[1], p.one);
    EXPECT_EQ(trained[0] - trained[1], 31 * tables);
  }
}

TEST(GrootSlotChoice, FollowsDatasetsRecipeAndCode) {
  const auto one = fake_dataset(), two = fake_mixture();
  using Slots = std::vector<int64_t>;
  const GrootVersion version = GrootVersion::kN17;
  EXPECT_EQ(bound(version, *one).trained_slots(), Slots{kOwn});
  EXPECT_EQ(bound(version, *two, "all").trained_slots(), Slots{});
  EXPECT_EQ(config_of(version, "used").trained_slots(), Slots{});
  GrootConfig config = config_of(version, "used");
  config.embodiment = "libero_sim";
  config.bind_dataset(*two);
  EXPECT_EQ(config.trained_slots(), (Slots{2, kOther}));
  const auto far = fake_dataset(32);
  expect_error<ConfigError>([&] { bound(version, *far); }, {"embodiment 32", "0 .. 31"});
  // A recipe speaks of a robot, also where batches are made up.
  GrootConfig recipe(version);
  const std::string text = "{family: groot_n17, embodiment: libero_sim, train_slots: used}";
  config::load(config::parse_yaml_text(text, "test.yaml"), recipe);
  EXPECT_EQ(recipe.trained_slots(), Slots{2});
  recipe.bind_dataset(*fake_dataset(kOther));
  EXPECT_EQ(recipe.trained_slots(), Slots{kOther});
  // What the checkpoint says of its tags comes first.
  const fs::path folder = longship::testing::scratch_dir("groot_slot_choice");
  std::ofstream(folder / "embodiment_id.json") << R"({"new_embodiment": 31})";
  config = config_of(version, "used");
  config.checkpoint = folder.string();
  config.bind_dataset(*one);
  EXPECT_EQ(config.trained_slots(), Slots{31});
  fs::remove_all(folder);
}

}  // namespace
}  // namespace longship::models
