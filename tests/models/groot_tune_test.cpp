// Which parameters the tune_* settings train, as Isaac-GR00T's set_trainable_parameters() of
// backbone and action head chooses them, and what is switched off in parts that do not train.
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/error.h"
#include "data/golden_arrays.h"
#include "models/groot/batch.h"
#include "models/groot/config.h"
#include "models/groot/policy.h"
#include "models/groot/spec.h"
#include "support/expect_error.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;
using longship::testing::expect_error;
using Names = std::set<std::string>;

struct Tune {
  bool llm = false, visual = false, projector = false, diffusion = false, vlln = false;
  int64_t top_layers = 0;
  std::string text() const {
    return fmt::format("llm {} visual {} projector {} diffusion {} vlln {} top layers {}", llm,
                       visual, projector, diffusion, vlln, top_layers);
  }
};

GrootConfig config_of(GrootVersion version, const Tune& tune, const std::string& size = "demo") {
  GrootConfig config(version);
  config.size = size;
  config.data.horizon = 16;
  config.tune_llm = tune.llm;
  config.tune_visual = tune.visual;
  config.tune_projector = tune.projector;
  config.tune_diffusion = tune.diffusion;
  config.tune_vlln = tune.vlln;
  config.tune_top_llm_layers = tune.top_layers;
  return config;
}

BuildOptions on_meta() {
  BuildOptions options;
  options.device = at::kMeta;
  options.initialise = false;
  return options;
}

Names trained_by(const GrootConfig& config) {
  Names out;
  GrootPolicy policy(config, on_meta());
  for (const ParamInfo& info : policy.parameters()) {
    if (info.role == ParamRole::kTrainable) out.insert(info.name);
  }
  return out;
}

bool begins(const std::string& name, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const char* prefix) { return name.starts_with(prefix); });
}

/// By the modules that upstream switches on and off. What no pass reads has no gradient there: the
/// pooling head of N1.6's tower, N1.7's final norm.
bool trains(GrootVersion version, const std::string& name, const Tune& tune, int64_t depth) {
  const bool is_n17 = version == GrootVersion::kN17;
  const std::string text =
      is_n17 ? "backbone.model.model.language_model." : "backbone.model.language_model.";
  const std::string layers = text + (is_n17 ? "layers." : "model.layers.");
  if (name.starts_with(text)) {
    if (is_n17 && name == text + "norm.weight") return false;
    if (tune.llm) return true;
    for (int64_t l = std::max<int64_t>(0, depth - tune.top_layers); l < depth; ++l) {
      if (name.starts_with(fmt::format("{}{}.", layers, l))) return true;
    }
    return false;
  }
  if (begins(name, {"backbone.model.vision_model.vision_model.head."})) return false;
  if (begins(name, {"backbone.model.vision_model.", "backbone.model.mlp1.",
                    "backbone.model.model.visual."})) {
    return tune.visual;
  }
  if (begins(name, {"action_head.model."})) return tune.diffusion;
  if (begins(name, {"action_head.vlln.", "action_head.vl_self_attention."})) return tune.vlln;
  EXPECT_TRUE(begins(name, {"action_head.state_encoder.", "action_head.action_encoder.",
                            "action_head.action_decoder.", "action_head.position_embedding.",
                            "action_head.mask_token"}))
      << name;
  return tune.projector;
}

class GrootTune : public ::testing::TestWithParam<GrootVersion> {};

TEST_P(GrootTune, EveryCombinationTrainsThePartsOfTheReference) {
  GrootConfig all = config_of(GetParam(), {.llm = true});
  all.state_dropout_prob = 0.2;  // gives N1.6 its mask_token
  const int64_t depth = all.sizes().text.depth;
  Names names;
  GrootPolicy whole(all, on_meta());
  for (const ParamInfo& info : whole.parameters()) names.insert(info.name);
  EXPECT_EQ(names.contains("action_head.mask_token"), GetParam() == GrootVersion::kN16);
  for (int bits = 0; bits < 32; ++bits) {
    for (const int64_t top : {int64_t{0}, int64_t{1}, depth + 3}) {
      const Tune tune{(bits & 1) != 0, (bits & 2) != 0,  (bits & 4) != 0,
                      (bits & 8) != 0, (bits & 16) != 0, top};
      GrootConfig config = config_of(GetParam(), tune);
      config.state_dropout_prob = 0.2;
      Names want;
      for (const std::string& name : names) {
        if (trains(GetParam(), name, tune, depth)) want.insert(name);
      }
      if (want.empty()) {
        expect_error<ConfigError>([&] { trained_by(config); },
                                  {"model.tune_llm", "model.tune_diffusion_model", "nothing"});
        continue;
      }
      EXPECT_EQ(trained_by(config), want) << tune.text();
    }
  }
}

struct Published {
  Tune tune;
  int64_t tensors, elements;
};

/// Elements: the parts' sizes in the published checkpoints, output head and pooling head aside.
std::vector<Published> published(GrootVersion version) {
  const bool is_n17 = version == GrootVersion::kN17;
  constexpr int64_t kLayers = 16, kLayer = 50'336'000;
  const int64_t table = is_n17 ? 151'936 * 2048 : 151'680 * 2048;
  return {
      {{.llm = true},
       11 * kLayers + (is_n17 ? 1 : 2),
       kLayers * kLayer + table + (is_n17 ? 0 : 2048)},
      {{.visual = true}, is_n17 ? 315 : 443, is_n17 ? 406'957'056 : 412'442'352 + 13'644'800},
      {{.projector = true},
       15,
       is_n17 ? 54'738'944 + 233'127'936 + 37'916'800 + 1'572'864
              : 54'607'872 + 232'931'328 + 37'785'600 + 1'572'864},
      {{.diffusion = true}, 456, 1'091'722'240},
      {{.vlln = true}, is_n17 ? 66 : 2, is_n17 ? 4'096 + 201'433'088 : 4'096},
      {{.top_layers = 4}, 44, 4 * kLayer},
  };
}

TEST_P(GrootTune, PartsHaveThePublishedSizes) {
  int64_t head = 0;
  for (const Published& p : published(GetParam())) {
    GrootPolicy policy(config_of(GetParam(), p.tune, "full"), on_meta());
    int64_t tensors = 0, elements = 0;
    for (const ParamInfo& info : policy.parameters()) {
      if (info.role != ParamRole::kTrainable) continue;
      ++tensors;
      elements += info.tensor.numel();
    }
    EXPECT_EQ(tensors, p.tensors) << p.tune.text();
    EXPECT_EQ(elements, p.elements) << p.tune.text();
    if (p.tune.projector || p.tune.diffusion || p.tune.vlln) head += elements;
  }
  const bool is_n17 = GetParam() == GrootVersion::kN17;
  EXPECT_EQ(head, is_n17 ? 1'620'515'968 : 1'418'624'000);
}

TEST_P(GrootTune, TheFinalNormTrainsWhereTheHeadReadsBehindIt) {
  GrootConfig config = config_of(GetParam(), {.llm = true});
  config.parity = "loongforge";
  const bool is_n17 = GetParam() == GrootVersion::kN17;
  EXPECT_TRUE(trained_by(config).contains(is_n17
                                              ? "backbone.model.model.language_model.norm.weight"
                                              : "backbone.model.language_model.model.norm.weight"));
  config.tune_llm = false;
  config.tune_top_llm_layers = 100;
  for (const std::string& name : trained_by(config)) {
    EXPECT_NE(name.find(".layers."), std::string::npos) << name;
  }
}

// config.json of a checkpoint carries the settings that it was trained with.
TEST_P(GrootTune, ConfigJsonCarriesTheSettings) {
  const bool is_n17 = GetParam() == GrootVersion::kN17;
  const std::string name = is_n17 ? "groot_n17/full_tiny" : "groot_n16/full_tiny";
  const fs::path folder = longship::testing::scratch_dir("groot_tune");
  fs::copy_file(longship::testing::golden_path(name) / "backbone_config.json",
                folder / "backbone_config.json");
  nlohmann::json json = longship::testing::golden_json(name + "/config.json");
  const auto import = [&] {
    std::ofstream(folder / "config.json") << json;
    return groot_import_config(folder / "config.json", GetParam());
  };
  const GrootConfig own = import();
  EXPECT_EQ(own.tune_llm, json.at("tune_llm").get<bool>());
  EXPECT_EQ(own.tune_visual, json.at("tune_visual").get<bool>());
  EXPECT_EQ(own.tune_top_llm_layers, json.at("tune_top_llm_layers").get<int64_t>());
  EXPECT_EQ(own.tune_projector, json.at("tune_projector").get<bool>());
  EXPECT_EQ(own.tune_diffusion, json.at("tune_diffusion_model").get<bool>());
  EXPECT_EQ(own.tune_vlln, json.at("tune_vlln").get<bool>());
  Names names;
  GrootPolicy whole(own, on_meta());
  for (const ParamInfo& info : whole.parameters()) names.insert(info.name);
  const int64_t depth = own.sizes().text.depth;
  for (const Tune& tune :
       {Tune{.llm = true, .vlln = true}, Tune{.visual = true, .projector = true},
        Tune{.diffusion = true, .top_layers = 2}, Tune{.projector = true, .vlln = true}}) {
    json["tune_llm"] = tune.llm;
    json["tune_visual"] = tune.visual;
    json["tune_projector"] = tune.projector;
    json["tune_diffusion_model"] = tune.diffusion;
    json["tune_vlln"] = tune.vlln;
    json["tune_top_llm_layers"] = tune.top_layers;
    Names want;
    for (const std::string& parameter : names) {
      if (trains(GetParam(), parameter, tune, depth)) want.insert(parameter);
    }
    const GrootConfig config = import();
    EXPECT_EQ(trained_by(config), want) << tune.text();
    // And an exported config.json says the same again.
    std::ofstream(folder / "config.json") << groot_export_config(config);
    EXPECT_EQ(trained_by(groot_import_config(folder / "config.json", GetParam())), want);
  }
  json["tune_vlln"] = "yes";
  expect_error<ConfigError>(import, {"config.json", "'tune_vlln'"});
  json["tune_vlln"] = true;
  json["tune_top_llm_layers"] = -1;
  expect_error<ConfigError>(import, {"config.json", "'tune_top_llm_layers' is -1"});
  fs::remove_all(folder);
}

// The reference keeps parts that do not train in evaluation mode: they drop nothing.
TEST_P(GrootTune, FrozenPartsDropNothing) {
  const bool is_n17 = GetParam() == GrootVersion::kN17;
  const ModelFamily& family = is_n17 ? groot_n17_family() : groot_n16_family();
  const auto loss = [&](const Tune& tune, bool dropout) {
    GrootConfig config = config_of(GetParam(), tune);
    config.dropout = dropout;
    config.shortest_edge = 96;
    GrootPolicy policy(config, {.seed = 3});
    auto batch = family.synthetic_batch(config, {3, 1, 10}, 1);
    policy.prepare(*batch, {});
    return policy.loss(*batch).loss.item<float>();
  };
  const float plain = loss({.projector = true}, false);
  EXPECT_EQ(loss({.projector = true}, true), plain);
  EXPECT_NE(loss({.projector = true, .diffusion = true}, true), plain);
  // Only N1.7 has layers with dropout beside the norm.
  if (is_n17) {
    EXPECT_NE(loss({.projector = true, .vlln = true}, true), plain);
  } else {
    EXPECT_EQ(loss({.projector = true, .vlln = true}, true), plain);
  }
}

INSTANTIATE_TEST_SUITE_P(Both, GrootTune, ::testing::Values(GrootVersion::kN16, GrootVersion::kN17),
                         [](const auto& test) {
                           return test.param == GrootVersion::kN17 ? "n17" : "n16";
                         });

}  // namespace
}  // namespace longship::models
