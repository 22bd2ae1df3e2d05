// Checkpoint names in both directions.
#include "models/pi05/mapping.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "io/tensor_io.h"
#include "models/tiny_case.h"
#include "support/paths.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;
using testing::tiny_policy;
using Named = io::NamedTensors;

constexpr const char* kEmbedTokens =
    "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight";

Named golden_weights(const std::string& golden = "pi05/tiny_train") {
  Named out;
  for (auto& [name, tensor] :
       io::load_tensors(longship::testing::golden_path(golden) / "weights.safetensors")) {
    out.emplace_back(name, tensor);
  }
  return out;
}

fs::path save(const std::string& name, const Named& tensors) {
  const fs::path path = longship::testing::scratch_dir(name) / "model.safetensors";
  io::save_tensors(path, tensors);
  return path;
}

/// Loads into a freshly initialised model and compares every parameter with the golden weights.
void expect_loads(const fs::path& path, const std::string& golden = "pi05/tiny_train") {
  const auto reference = tiny_policy(golden);
  Pi05Config config = pi05_import_config(longship::testing::golden_path(golden) / "config.json");
  Pi05Policy policy(config, {.device = at::kCPU, .dtype = at::kFloat, .seed = 9});
  policy.load_weights(path);
  const auto ours = policy.parameters(), want = reference->parameters();
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(at::equal(ours[i].tensor.detach(), want[i].tensor.detach())) << want[i].name;
  }
}

std::string error_of(const fs::path& path, const std::function<void(Pi05Config&)>& change = {}) {
  Pi05Config config =
      pi05_import_config(longship::testing::golden_path("pi05/tiny_train") / "config.json");
  if (change) change(config);
  Pi05Policy policy(config, {.device = at::kCPU, .dtype = at::kFloat, .seed = 9});
  try {
    policy.load_weights(path);
  } catch (const CheckpointError& e) {
    return e.what();
  }
  return "no error";
}

Named renamed(Named tensors, const std::function<std::string(const std::string&)>& rename) {
  for (auto& [name, tensor] : tensors) name = rename(name);
  return tensors;
}

TEST(Pi05Mapping, ExportLoadsAgainBitForBit) {
  for (const char* golden : {"pi05/tiny_train", "pi05/pi0_tiny"}) {
    const auto policy = tiny_policy(golden);
    Named out;
    std::set<std::string> names;
    for (const NamedTensor& t : policy->export_weights({})) {
      out.emplace_back(t.name, t.tensor);
      names.insert(t.name);
    }
    std::set<std::string> want;
    for (const auto& [name, tensor] : golden_weights(golden)) {
      want.insert(name);
      const auto it =
          std::find_if(out.begin(), out.end(), [&](const auto& o) { return o.first == name; });
      ASSERT_NE(it, out.end()) << name;
      EXPECT_TRUE(at::equal(it->second, tensor))
          << name;  // the expert's lm_head too: it was remembered
    }
    EXPECT_EQ(names, want);
    expect_loads(save("export", out), golden);
  }
}

TEST(Pi05Mapping, EveryOuterPrefixIsUnderstood) {
  for (const std::string prefix :
       {"model.", "model.architecture.pi05_model.", "architecture.pi05_model.", "pi05."}) {
    expect_loads(save("prefix",
                      renamed(golden_weights(), [&](const std::string& n) { return prefix + n; })));
  }
}

TEST(Pi05Mapping, LoongforgeSavesWithEveryTensorTwice) {
  Named twice = renamed(golden_weights(), [](const std::string& n) { return "model." + n; });
  for (const auto& [name, tensor] : golden_weights()) twice.emplace_back("pi05." + name, tensor);
  expect_loads(save("twice", twice));
  twice.back().second = twice.back().second.add(1);
  EXPECT_NE(error_of(save("twice_different", twice)).find("different values"), std::string::npos);
}

TEST(Pi05Mapping, OldTransformersLayout) {
  expect_loads(save("old", renamed(golden_weights(), [](std::string n) {
                      const std::string root = "paligemma_with_expert.paligemma.";
                      const auto swap = [&](const std::string& from, const std::string& to) {
                        if (n.starts_with(root + from))
                          n = root + to + n.substr(root.size() + from.size());
                      };
                      swap("model.language_model.", "language_model.model.");
                      swap("lm_head.", "language_model.lm_head.");
                      swap("model.vision_tower.", "vision_tower.");
                      swap("model.multi_modal_projector.", "multi_modal_projector.");
                      return n;
                    })));
}

TEST(Pi05Mapping, EmbedTokensAloneAndPreferred) {
  Named alone = renamed(golden_weights(), [](const std::string& n) {
    return n == kPi05Embedding ? std::string(kEmbedTokens) : n;
  });
  expect_loads(save("alone", alone));
  for (const auto& [name, tensor] : golden_weights()) {
    if (name == kPi05Embedding) alone.emplace_back(name, at::zeros_like(tensor));
  }
  expect_loads(save("both", alone));
}

TEST(Pi05Mapping, LeftoversOfPi0AreDroppedAndHeadsRenamed) {
  Named tensors = renamed(golden_weights(), [](const std::string& n) {
    return n.starts_with("time_mlp_") ? "action_" + n : n;
  });
  tensors.emplace_back("state_proj.weight", at::zeros({20, 12}));
  tensors.emplace_back("state_proj.bias", at::zeros({20}));
  expect_loads(save("leftovers", tensors));
}

TEST(Pi05Mapping, Pi0FilesAreRefusedWithTheCure) {
  const std::string text =
      error_of(longship::testing::golden_path("pi05/pi0_tiny") / "weights.safetensors");
  EXPECT_NE(text.find("pi0 checkpoint"), std::string::npos) << text;
  EXPECT_NE(text.find("model.variant: pi0"), std::string::npos) << text;
  const std::string reverse =
      error_of(longship::testing::golden_path("pi05/tiny_train") / "weights.safetensors",
               [](Pi05Config& c) { c.variant = "pi0"; });
  EXPECT_NE(reverse.find("pi05 checkpoint"), std::string::npos) << reverse;
}

TEST(Pi05Mapping, AllFaultsAreListedAtOnce) {
  Named tensors;
  for (auto& [name, tensor] : golden_weights()) {
    if (name == "action_in_proj.bias" || name == kPi05Embedding) continue;
    tensors.emplace_back(
        name, name == "action_out_proj.weight" ? tensor.narrow(0, 0, 3).contiguous() : tensor);
  }
  tensors.emplace_back("model.nonsense.weight", at::zeros({2}));
  const std::string text = error_of(save("faults", tensors));
  EXPECT_NE(text.find("2 missing tensors"), std::string::npos) << text;
  EXPECT_NE(text.find("action_in_proj.bias [20]"), std::string::npos) << text;
  EXPECT_NE(text.find("lm_head.weight [101, 36]"), std::string::npos) << text;
  EXPECT_NE(text.find("1 unexpected tensors"), std::string::npos) << text;
  EXPECT_NE(text.find("model.nonsense.weight [2] F32"), std::string::npos) << text;
  EXPECT_NE(text.find("action_out_proj.weight: [3, 20] F32 in the file, [12, 20] expected"),
            std::string::npos)
      << text;
}

TEST(Pi05Mapping, ExpertHeadMayBeAbsentAndIsExportedAsZeros) {
  Named tensors;
  for (auto& [name, tensor] : golden_weights()) {
    if (name != kPi05ExpertHead) tensors.emplace_back(name, tensor);
  }
  const auto policy = tiny_policy();
  policy->load_weights(save("headless", tensors));
  const auto exported = policy->export_weights({});
  EXPECT_EQ(exported.back().name, kPi05ExpertHead);
  EXPECT_EQ(exported.back().tensor.sizes(), (std::vector<int64_t>{101, 20}));
  EXPECT_EQ(exported.back().tensor.abs().max().item<float>(), 0.0f);
}

TEST(Pi05Mapping, ExportTakesReplacedValues) {
  const auto policy = tiny_policy();
  const NamedTensor value{"action_in_proj.bias", at::zeros({20})};
  for (const NamedTensor& t : policy->export_weights({&value, 1})) {
    if (t.name == value.name) {
      EXPECT_EQ(t.tensor.abs().max().item<float>(), 0.0f);
    }
  }
  const NamedTensor unknown{"nothing", at::zeros({1})};
  EXPECT_THROW(policy->export_weights({&unknown, 1}), InternalError);
}

TEST(Pi05Mapping, Bf16FilesAreReadIntoFp32) {
  Named half;
  for (auto& [name, tensor] : golden_weights()) half.emplace_back(name, tensor.to(at::kBFloat16));
  const auto policy = tiny_policy();
  policy->load_weights(save("half", half));
  EXPECT_EQ(policy->parameters()[0].tensor.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace longship::models
