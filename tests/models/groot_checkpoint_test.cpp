// Checkpoints of GR00T: the published names, shapes and counts; there and back; all faults named.
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <numeric>

#include "base/error.h"
#include "groot_public_names.h"
#include "io/tensor_io.h"
#include "models/groot/policy.h"
#include "support/paths.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;
using testing::GrootPublicTensor;
using Shapes = std::map<std::string, std::vector<int64_t>>;

GrootConfig config_of(GrootVersion version, const std::string& size) {
  GrootConfig config(version);
  config.size = size;
  config.data.horizon = 16;
  return config;
}

/// Names and shapes that a policy's checkpoints have, without any value.
Shapes shapes_of(GrootVersion version, const std::string& size) {
  BuildOptions options;
  options.device = at::kMeta;
  options.initialise = false;
  GrootPolicy policy(config_of(version, size), options);
  Shapes out;
  for (const NamedTensor& t : policy.export_weights({})) {
    EXPECT_TRUE(out.emplace(t.name, t.tensor.sizes().vec()).second) << t.name;
  }
  return out;
}

/// The published table, without the output head, which is the embedding once more.
Shapes table_of(const testing::GrootPublicSizes& sizes) {
  Shapes out;
  for (const GrootPublicTensor& t : testing::groot_public_tensors(sizes)) {
    EXPECT_TRUE(out.emplace(t.name, t.shape).second) << t.name;
  }
  EXPECT_EQ(out.erase(testing::groot_output_head(sizes.version)), 1U);
  return out;
}

void expect_same(const Shapes& ours, const Shapes& published) {
  for (const auto& [name, shape] : published) {
    const auto found = ours.find(name);
    if (found == ours.end()) {
      ADD_FAILURE() << name << " is missing";
    } else {
      EXPECT_EQ(found->second, shape) << name;
    }
  }
  for (const auto& [name, shape] : ours) EXPECT_TRUE(published.contains(name)) << name;
}

struct Part {
  const char* prefix;
  int64_t tensors, elements;
};
struct Published {
  GrootVersion version;
  std::vector<Part> parts;
  int64_t tensors, elements;
};

// Counts of the published models; the longest prefix that fits a name counts it. N1.6 is with the
// pooling head.
const std::vector<Published> kPublished = {
    {GrootVersion::kN16,
     {{"backbone.model.vision_model.", 437, 412'442'352},
      {testing::kGrootPooling, 11, 15'238'352},
      {"backbone.model.mlp1.", 6, 13'644'800},
      {"backbone.model.language_model.model.layers.", 176, 805'376'000},
      {"backbone.model.language_model.model.", 2, 310'640'640 + 2'048},
      {"action_head.model.", 456, 1'091'722'240},
      {"action_head.state_encoder.", 4, 54'607'872},
      {"action_head.action_encoder.", 6, 232'931'328},
      {"action_head.action_decoder.", 4, 37'785'600},
      {"action_head.vlln.", 2, 4'096},
      {"action_head.position_embedding.", 1, 1'572'864}},
     1105,
     2'960'729'840 + 15'238'352},
    {GrootVersion::kN17,
     {{"backbone.model.model.visual.", 315, 406'957'056},
      {"backbone.model.model.language_model.layers.", 176, 805'376'000},
      {"backbone.model.model.language_model.", 2, 311'164'928 + 2'048},
      {"action_head.vl_self_attention.", 64, 201'433'088},
      {"action_head.model.", 456, 1'091'722'240},
      {"action_head.state_encoder.", 4, 54'738'944},
      {"action_head.action_encoder.", 6, 233'127'936},
      {"action_head.action_decoder.", 4, 37'916'800},
      {"action_head.vlln.", 2, 4'096},
      {"action_head.position_embedding.", 1, 1'572'864}},
     1030,
     3'144'016'000}};

TEST(GrootPublicNames, FullModelsHaveThePublishedNamesAndShapes) {
  for (const Published& p : kPublished) {
    const Shapes ours = shapes_of(p.version, "full");
    expect_same(ours, table_of(testing::groot_published(p.version)));
    expect_same(shapes_of(p.version, "demo"), table_of(testing::groot_demo(p.version)));
    std::map<std::string, std::pair<int64_t, int64_t>> counts;
    std::pair<int64_t, int64_t> all;
    for (const auto& [name, shape] : ours) {
      const Part* best = nullptr;
      for (const Part& part : p.parts) {
        const bool longer = best == nullptr || std::string_view(part.prefix).size() >
                                                   std::string_view(best->prefix).size();
        if (name.starts_with(part.prefix) && longer) best = &part;
      }
      ASSERT_NE(best, nullptr) << name;
      const int64_t numel =
          std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
      for (auto* one : {&counts[best->prefix], &all}) {
        one->first += 1;
        one->second += numel;
      }
    }
    for (const Part& part : p.parts) {
      EXPECT_EQ(counts[part.prefix], std::pair(part.tensors, part.elements)) << part.prefix;
    }
    EXPECT_EQ(all, std::pair(p.tensors, p.elements));
  }
}

class GrootCheckpoint : public ::testing::TestWithParam<GrootVersion> {
 protected:
  void SetUp() override { folder_ = longship::testing::scratch_dir("groot_checkpoint"); }
  void TearDown() override { fs::remove_all(folder_); }
  void save(const std::vector<NamedTensor>& tensors) {
    io::NamedTensors out;
    for (const NamedTensor& t : tensors) out.emplace_back(t.name, t.tensor);
    io::save_tensors(path(), out);
  }
  fs::path path() const { return folder_ / "model.safetensors"; }
  fs::path folder_;
};

TEST_P(GrootCheckpoint, ValuesComeBackUnderAnOuterPrefix) {
  GrootPolicy first(config_of(GetParam(), "demo"), {.seed = 1});
  GrootPolicy second(config_of(GetParam(), "demo"), {.seed = 2});
  EXPECT_EQ(second.stored_weights(), nullptr);
  const std::vector<NamedTensor> exported = first.export_weights({});
  std::vector<NamedTensor> saved;
  for (const NamedTensor& t : exported) saved.push_back({"model." + t.name, t.tensor});
  save(saved);
  second.load_weights(path());
  const std::vector<NamedTensor> back = second.export_weights({});
  ASSERT_EQ(back.size(), exported.size());
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i].name, exported[i].name);
    EXPECT_TRUE(at::equal(back[i].tensor, exported[i].tensor)) << back[i].name;
  }
  ASSERT_NE(second.stored_weights(), nullptr);
  EXPECT_EQ(second.stored_weights()->dtypes.size(), exported.size());
  second.initialise(3, {});  // these weights are of no file
  EXPECT_EQ(second.stored_weights(), nullptr);
}

TEST_P(GrootCheckpoint, AllFaultsAreNamed) {
  GrootPolicy policy(config_of(GetParam(), "demo"), {.seed = 1});
  std::vector<NamedTensor> tensors = policy.export_weights({});
  std::erase_if(tensors, [](const NamedTensor& t) { return t.name == "action_head.vlln.bias"; });
  for (NamedTensor& t : tensors) {
    if (t.name == "action_head.vlln.weight") t.tensor = t.tensor.narrow(0, 0, 3).clone();
  }
  // Unknown ones, some of them much like those that a file may have.
  const bool n17 = GetParam() == GrootVersion::kN17;
  const std::vector<std::string> unknown = {
      "action_head.extra",
      "action_head.lm_head.weight",
      testing::groot_output_head(n17 ? GrootVersion::kN16 : GrootVersion::kN17),
      testing::groot_text_layer(GetParam(), 2) + "self_attn.sinks",
      testing::groot_text_layer(GetParam(), 2) + "extra.input_layernorm.weight",
      testing::groot_text_layer(GetParam(), 1) + "extra.weight",
      testing::groot_text_layer(n17 ? GrootVersion::kN16 : GrootVersion::kN17, 2) +
          "input_layernorm.weight"};
  for (const std::string& name : unknown) tensors.push_back({name, at::zeros({2})});
  save(tensors);
  std::string text;
  try {
    policy.load_weights(path());
  } catch (const CheckpointError& error) {
    text = error.what();
  }
  std::vector<std::string> words = unknown;
  words.insert(words.end(), {"1 missing tensors:\n  action_head.vlln.bias", "7 unexpected tensors",
                             "1 tensors of the wrong shape or type:\n  action_head.vlln.weight"});
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Both, GrootCheckpoint,
                         ::testing::Values(GrootVersion::kN16, GrootVersion::kN17));

}  // namespace
}  // namespace longship::models
