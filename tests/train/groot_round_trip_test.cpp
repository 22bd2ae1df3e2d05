// A checkpoint of GR00T with all public names goes through loading, training and saving: what was
// not trained keeps its bytes, everything its dtype, and nothing comes or goes.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "../models/groot_public_names.h"
#include "base/log.h"
#include "io/sharded_state.h"
#include "io/tensor_io.h"
#include "io/weights.h"
#include "models/groot/policy.h"
#include "nn/init.h"
#include "support/paths.h"
#include "train/assembly.h"
#include "train/checkpoint_io.h"
#include "train/checkpoint_tools.h"
#include "train/export_plan.h"
#include "train/session.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using models::GrootVersion;
using models::testing::GrootPublicTensor;
using Overrides = std::vector<std::string>;
using Tensors = std::map<std::string, at::Tensor>;

struct Case {
  GrootVersion version;
  const char* dtype;
};

std::string family_of(GrootVersion version) {
  return version == GrootVersion::kN17 ? "groot_n17" : "groot_n16";
}
std::string name_of(const Case& one) {
  return family_of(one.version) + "_" + one.dtype;
}
void PrintTo(const Case& one, std::ostream* out) {
  *out << name_of(one);
}

at::Tensor random(const std::string& name, at::IntArrayRef shape) {
  at::Tensor out = at::empty(shape, at::kFloat);
  nn::init_normal(out, name, 5, 0.05);
  return out;
}

class GrootRoundTrip : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    log::init(log::Level::kOff);
    root_ = longship::testing::scratch_dir("groot_round_trip");
    fs::create_directories(source());
  }
  void TearDown() override {
    log::init(log::Level::kInfo);
    fs::remove_all(root_);
  }

  bool n17() const { return GetParam().version == GrootVersion::kN17; }
  fs::path source() const { return root_ / "public"; }
  std::string head() const { return models::testing::groot_output_head(GetParam().version); }
  std::string embedding() const { return models::testing::groot_embedding(GetParam().version); }

  /// Random values under all public names. Tensors that nothing reads hold what no arithmetic
  /// keeps: NaNs with a payload.
  Tensors public_tensors(at::ScalarType dtype = at::kBFloat16) const {
    Tensors out;
    for (const GrootPublicTensor& t :
         models::testing::groot_public_tensors(models::testing::groot_demo(GetParam().version))) {
      out[t.name] = random(t.name, t.shape).to(dtype);
    }
    out[head()] = out.at(embedding()).clone();
    if (dtype != at::kBFloat16) return out;
    const auto set = [](at::Tensor tensor, uint16_t bits) {
      std::memcpy(tensor.mutable_data_ptr(), &bits, sizeof(bits));
    };
    set(out.at("action_head.state_encoder.layer1.W"), 0xffc3);  // of slot 0
    set(out.at("action_head.action_decoder.layer2.b"), 0x7fa1);
    if (!n17()) set(out.at(std::string(models::testing::kGrootPooling) + "probe"), 0xffc3);
    return out;
  }

  void save(const Tensors& tensors, const std::string& prefix = "") const {
    io::NamedTensors out;
    for (const auto& [name, tensor] : tensors) out.emplace_back(prefix + name, tensor);
    io::save_tensors(source() / "model.safetensors", out);
  }
  /// The same in two files with an index.
  void save_in_shards(const Tensors& tensors) const {
    io::NamedTensors shards[2];
    std::string map;
    for (const auto& [name, tensor] : tensors) {
      const size_t shard = map.size() / 7 % 2;
      shards[shard].emplace_back(name, tensor);
      map += (map.empty() ? "\"" : ", \"") + name + "\": \"shard" + std::to_string(shard) +
             ".safetensors\"";
    }
    for (const size_t s : {0, 1}) {
      ASSERT_GT(shards[s].size(), 20U);
      io::save_tensors(source() / ("shard" + std::to_string(s) + ".safetensors"), shards[s]);
    }
    std::ofstream(source() / "model.safetensors.index.json")
        << "{\"metadata\": {}, \"weight_map\": {" << map << "}}";
  }

  /// The second text layer, the head and slot 10 train.
  Assembly assemble_from(const fs::path& checkpoint, const Overrides& more = {}) {
    Overrides all = {"model.checkpoint=" + checkpoint.string(),
                     "model.action_dim=2",
                     "model.state_dim=2",
                     "model.tune_llm=false",
                     "model.tune_visual=false",
                     "model.tune_top_llm_layers=1",
                     "perf.feature_cache=0",
                     "train.device=cpu",
                     "train.global_batch=2",
                     std::string("train.dtype=") + GetParam().dtype};
    all.insert(all.end(), more.begin(), more.end());
    recipe_ = load_recipe(longship::testing::source_root() / "configs" /
                              family_of(GetParam().version) / "pusht_demo.yaml",
                          all, &models::find_family);
    apply_library_settings(*recipe_);
    return assemble(*recipe_, at::kCPU);
  }

  void train_steps(const Assembly& assembly, int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      std::vector<std::unique_ptr<models::Batch>> micro;
      micro.push_back(recipe_->family->synthetic_batch(*recipe_->model, {2, 1, 8},
                                                       static_cast<uint64_t>(step)));
      assembly.policy->prepare(*micro.back(), {42, static_cast<uint64_t>(step)});
      const UpdateScalars scalars{1e-2, 0.01};
      assembly.engine->submit(step, std::move(micro), step, scalars, scalars);
      while (assembly.engine->in_flight() > 0) {
        EXPECT_TRUE(std::isfinite(assembly.engine->take_report().loss));
      }
    }
  }

  /// What a save writes of weights and state.
  fs::path checkpoint(const Assembly& assembly, const std::string& name) {
    const fs::path folder = root_ / name;
    fs::create_directories(folder / "state");
    io::NamedTensors state;
    for (const auto& t : assembly.policy->training_state()) state.emplace_back(t.name, t.tensor);
    if (!state.empty()) io::save_tensors(folder / "state" / "policy.safetensors", state);
    write_shard(folder, 0, 1, whole_slices(assembly.optimizer->state()));
    write_shard_index(folder, 1, "none");
    write_model(folder / "model.safetensors", export_plan(*assembly.policy, *assembly.optimizer),
                io::ShardedState::open(folder / "state"));
    return folder;
  }

  /// Names, dtypes, shapes and bytes; `differs`: tensors whose bytes may be others.
  static void expect_same_file(const fs::path& checkpoint, const Tensors& expected,
                               const std::function<bool(const std::string&)>& differs = {}) {
    const auto is = io::load_tensors(checkpoint);
    EXPECT_EQ(is.size(), expected.size());
    for (const auto& [name, tensor] : is) EXPECT_TRUE(expected.contains(name)) << name;
    for (const auto& [name, tensor] : expected) {
      const auto found = is.find(name);
      if (found == is.end()) {
        ADD_FAILURE() << name << " is missing";
        continue;
      }
      EXPECT_EQ(found->second.scalar_type(), tensor.scalar_type()) << name;
      ASSERT_EQ(found->second.sizes(), tensor.sizes()) << name;
      if (differs && differs(name)) continue;
      EXPECT_TRUE(same_bytes(found->second, tensor)) << name;
    }
  }
  static fs::path state_file(const fs::path& checkpoint) {
    return checkpoint / "state" / io::shard_file_name(0, 1);
  }
  static bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor x = a.contiguous(), y = b.contiguous();
    return x.nbytes() == y.nbytes() &&
           std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
  }

  fs::path root_;
  std::optional<Recipe> recipe_;
};

TEST_P(GrootRoundTrip, AllPublicNamesComeBackByteForByte) {
  const Tensors tensors = public_tensors();
  save(tensors);
  expect_same_file(checkpoint(assemble_from(source()), "used"), tensors);
  // Every slot a parameter's own, and everything frozen but the head.
  expect_same_file(
      checkpoint(assemble_from(source(), {"model.tune_top_llm_layers=0",
                                          "model.tune_projector=false", "model.tune_vlln=false"}),
                 "frozen"),
      tensors);
}

TEST_P(GrootRoundTrip, ShardsComeBackInOneFile) {
  const Tensors tensors = public_tensors();
  save_in_shards(tensors);
  expect_same_file(checkpoint(assemble_from(source()), "folder"), tensors);
  expect_same_file(checkpoint(assemble_from(source() / "model.safetensors.index.json"), "index"),
                   tensors);
}

TEST_P(GrootRoundTrip, WhatTheFileLeavesOutStaysOut) {
  Tensors tensors = public_tensors();
  tensors.erase(head());
  std::erase_if(tensors,
                [](const auto& t) { return t.first.starts_with(models::testing::kGrootPooling); });
  save(tensors);
  const fs::path folder = checkpoint(assemble_from(source()), "first");
  expect_same_file(folder, tensors);
  expect_same_file(checkpoint(assemble_from(folder), "second"), tensors);
}

TEST_P(GrootRoundTrip, TensorsThatTheModelDoesNotHaveStay) {
  Tensors tensors = public_tensors();
  tensors[head()] = random("another", tensors.at(head()).sizes()).to(at::kBFloat16);  // not tied
  const auto sizes = models::testing::groot_demo(GetParam().version);
  for (const int64_t layer : {2, 3, 27}) {
    for (const GrootPublicTensor& t : models::testing::groot_public_text_layer(sizes, layer)) {
      tensors[t.name] = random(t.name, t.shape).to(layer == 3 ? at::kFloat : at::kBFloat16);
    }
  }
  save(tensors, "model.");  // as LoongForge does
  const Assembly assembly = assemble_from(source());
  fs::remove_all(source());  // a run does not need it any more
  expect_same_file(checkpoint(assembly, "saved"), tensors);
}

TEST_P(GrootRoundTrip, TrainedTensorsHaveTheDtypeOfTheFile) {
  const Tensors tensors = public_tensors();
  save(tensors);
  const Assembly assembly = assemble_from(source());
  train_steps(assembly, 2);
  const fs::path folder = checkpoint(assembly, "trained");
  std::set<std::string> trained, frozen;
  for (const models::ParamInfo& info : assembly.policy->parameters()) {
    (info.role == models::ParamRole::kFrozen ? frozen : trained).insert(info.name);
  }
  EXPECT_GT(frozen.size(), 20U);
  const auto is_trained = [&](const std::string& name) { return trained.contains(name); };
  expect_same_file(folder, tensors, is_trained);

  // Trained ones are the average, rounded; of a table the other slots are as they were.
  const auto saved = io::load_tensors(folder / "model.safetensors");
  const auto state = io::load_tensors(state_file(folder));
  int64_t tables = 0, changed = 0;
  for (const std::string& name : trained) {
    const at::Tensor value = state.at("ema." + name).to(at::kBFloat16);
    const at::Tensor before = tensors.at(name), after = saved.at(name);
    changed += !same_bytes(before, after);
    if (value.sizes() == after.sizes()) {
      EXPECT_TRUE(same_bytes(after, value)) << name;
      continue;
    }
    ++tables;
    ASSERT_EQ(value.size(0), 1) << name;
    for (int64_t slot = 0; slot < after.size(0); ++slot) {
      EXPECT_TRUE(same_bytes(after[slot], slot == 10 ? value[0] : before[slot]))
          << name << " " << slot;
    }
  }
  EXPECT_EQ(tables, 14);
  EXPECT_GT(changed, static_cast<int64_t>(trained.size()) / 2);

  // One file from the state is the same file, and a resumed run writes it again.
  consolidate_checkpoint(folder, root_ / "one.safetensors", {});
  expect_same_file(root_ / "one.safetensors", saved);
  const Assembly resumed = assemble_from(source());
  load_training_state(folder, *resumed.policy, *resumed.optimizer, 2);
  const fs::path again = checkpoint(resumed, "again");
  expect_same_file(again, saved);
  const auto state_again = io::load_tensors(state_file(again));
  for (const auto& [name, tensor] : state) {
    EXPECT_TRUE(same_bytes(tensor, state_again.at(name))) << name;
  }
}

TEST_P(GrootRoundTrip, FullPrecisionFilesKeepTheirBytes) {
  const Tensors tensors = public_tensors(at::kFloat);
  save(tensors);
  const Assembly assembly = assemble_from(source());
  const bool rounded = GetParam().dtype == std::string("bf16");
  const auto& exact = assembly.policy->stored_weights()->exact;
  EXPECT_EQ(exact.contains(embedding()), rounded);
  EXPECT_EQ(exact.contains("action_head.action_encoder.W1.W#unused"), rounded);
  EXPECT_FALSE(exact.contains("action_head.action_encoder.W1.W"));  // trained
  EXPECT_FALSE(exact.contains("action_head.action_encoder.W1.b#unused"));
  expect_same_file(checkpoint(assembly, "saved"), tensors);
}

TEST_P(GrootRoundTrip, TheOutputHeadFollowsATrainedEmbedding) {
  const Tensors tensors = public_tensors();
  save(tensors);
  const Assembly assembly = assemble_from(source(), {"model.tune_llm=true"});
  train_steps(assembly, 1);
  const auto saved = io::load_tensors(checkpoint(assembly, "saved"));
  EXPECT_FALSE(same_bytes(saved.at(embedding()), tensors.at(embedding())));
  EXPECT_TRUE(same_bytes(saved.at(head()), saved.at(embedding())));
}

// Where no process holds whole weights.
TEST_P(GrootRoundTrip, DividedWeightsAreTakenFromTheState) {
  const Tensors tensors = public_tensors();
  save(tensors);
  const Assembly assembly = assemble_from(source());
  std::set<std::string> frozen, names;
  for (const models::ParamInfo& info : assembly.policy->parameters()) {
    if (info.role == models::ParamRole::kFrozen) frozen.insert(info.name);
  }
  for (const ExportTensor& t : export_plan(*assembly.policy, *assembly.optimizer, false)) {
    EXPECT_EQ(t.spec.dtype, io::DType::kBF16) << t.spec.name;
    EXPECT_TRUE(names.insert(t.spec.name).second) << t.spec.name;
    if (!t.pieces.empty()) continue;
    if (t.spec.name == head()) {
      EXPECT_EQ(t.source, "param." + embedding());
    } else if (!t.literal.defined()) {
      EXPECT_EQ(t.source, (frozen.contains(t.spec.name) ? "param." : "ema.") + t.spec.name);
    } else {
      // The one whose NaN no other dtype keeps.
      EXPECT_TRUE(t.spec.name.starts_with(models::testing::kGrootPooling)) << t.spec.name;
    }
  }
  EXPECT_EQ(names.size(), tensors.size());
}

// A parameter that the file lacks is exported when it trains; N1.7 has no such one.
class GrootMaskToken : public GrootRoundTrip {};

TEST_P(GrootMaskToken, IsExportedWhenItTrains) {
  const Tensors tensors = public_tensors();
  save(tensors);
  Tensors expected = tensors;
  const std::string token = "action_head.mask_token";
  expected[token] = at::zeros({1, 1, 64});
  const Overrides trained = {"model.state_dropout_prob=0.2"};
  const Overrides frozen = {trained[0], "model.freeze=[" + token + "]"};
  expect_same_file(checkpoint(assemble_from(source(), trained), "trained"), expected);
  expect_same_file(checkpoint(assemble_from(source(), frozen), "frozen"), tensors);
}

INSTANTIATE_TEST_SUITE_P(All, GrootRoundTrip,
                         ::testing::Values(Case{GrootVersion::kN16, "fp32"},
                                           Case{GrootVersion::kN16, "bf16"},
                                           Case{GrootVersion::kN17, "fp32"},
                                           Case{GrootVersion::kN17, "bf16"}),
                         [](const auto& one) { return name_of(one.param); });

INSTANTIATE_TEST_SUITE_P(N16, GrootMaskToken,
                         ::testing::Values(Case{GrootVersion::kN16, "fp32"},
                                           Case{GrootVersion::kN16, "bf16"}),
                         [](const auto& one) { return name_of(one.param); });

}  // namespace
}  // namespace longship::train
