#include "models/pi05/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/config/load.h"
#include "base/config/yaml.h"
#include "base/error.h"
#include "support/paths.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;

nlohmann::json golden_config(const std::string& name) {
  std::ifstream in(longship::testing::golden_path(name) / "config.json");
  return nlohmann::json::parse(in);
}

fs::path write_config(const std::string& name, const nlohmann::json& doc) {
  const fs::path path = longship::testing::scratch_dir(name) / "config.json";
  std::ofstream(path) << doc.dump();
  return path;
}

TEST(Pi05Config, TinyIsTheGoldenSize) {
  Pi05Config tiny;
  tiny.size = "tiny";
  const Pi05Sizes a = tiny.sizes();
  const Pi05Sizes b =
      pi05_import_config(longship::testing::golden_path("pi05/tiny_train") / "config.json").sizes();
  EXPECT_EQ(a.width, b.width);
  EXPECT_EQ(a.expert_mlp_dim, b.expert_mlp_dim);
  EXPECT_EQ(a.vision.mlp_dim, b.vision.mlp_dim);
  EXPECT_EQ(a.vision.num_tokens(), 9);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.max_action_dim, b.max_action_dim);
  EXPECT_EQ(a.head_dim, b.head_dim);
}

TEST(Pi05Config, ImportReadsRealDimsAndCameras) {
  const Pi05Config c =
      pi05_import_config(longship::testing::golden_path("pi05/tiny_two_cameras") / "config.json");
  EXPECT_EQ(c.action_dim, 7);
  EXPECT_EQ(c.state_dim, 8);
  EXPECT_EQ(c.horizon(), 5);
  EXPECT_EQ(c.slots(), (std::vector<std::string>{"base_0_rgb", "left_wrist_0_rgb"}));
  EXPECT_EQ(c.normalization, "quantiles");
}

TEST(Pi05Config, ExportImportRoundTrip) {
  for (const char* name : {"pi05/tiny_train", "pi05/pi0_tiny"}) {
    const Pi05Config c = pi05_import_config(longship::testing::golden_path(name) / "config.json");
    const std::string text = pi05_export_config(c, c.action_dim, c.state_dim, c.slots());
    EXPECT_EQ(nlohmann::json::parse(text), golden_config(name)) << text;
  }
}

TEST(Pi05Config, PublicSizesAreExportedByName) {
  Pi05Config c;
  c.size = "full";
  const nlohmann::json doc = nlohmann::json::parse(pi05_export_config(c, 7, 8, {"base_0_rgb"}));
  EXPECT_EQ(doc.at("paligemma_variant"), "gemma_2b");
  EXPECT_EQ(doc.at("action_expert_variant"), "gemma_300m");
  EXPECT_FALSE(doc.contains("text_config"));
  EXPECT_EQ(doc.at("tokenizer_max_length"), 200);
  const Pi05Sizes s = pi05_import_config(write_config("public", doc)).sizes();
  EXPECT_EQ(s.width, 2048);
  EXPECT_EQ(s.vision.depth, 27);
}

TEST(Pi05Config, OtherHeadCountsAreRefused) {
  nlohmann::json doc = golden_config("pi05/tiny_train");
  doc["paligemma_config"]["num_heads"] = 4;
  try {
    pi05_import_config(write_config("heads", doc));
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("8 query heads"), std::string::npos) << e.what();
  }
}

TEST(Pi05Config, UnknownVariantNamesTheKnownOnes) {
  nlohmann::json doc = golden_config("pi05/tiny_train");
  doc.erase("paligemma_config");
  doc["paligemma_variant"] = "gemma_7b";
  try {
    pi05_import_config(write_config("variant", doc));
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("gemma_7b"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("gemma_2b"), std::string::npos) << e.what();
  }
}

TEST(Pi05Config, WrongTypeNamesFileAndKey) {
  nlohmann::json doc = golden_config("pi05/tiny_train");
  doc["chunk_size"] = "five";
  try {
    pi05_import_config(write_config("type", doc));
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("'chunk_size' must be an integer"), std::string::npos)
        << e.what();
    EXPECT_NE(std::string(e.what()).find("config.json"), std::string::npos);
  }
}

TEST(Pi05Config, YamlOverridesSizes) {
  Pi05Config c;
  config::load(config::parse_yaml_text("{family: pi05, size: demo, freeze: [vision], "
                                       "paligemma_config: {width: 80, num_kv_heads: 2}, "
                                       "vision_config: {image_size: 64}, init: {gate: 0.5}}",
                                       "test.yaml"),
               c);
  const Pi05Sizes s = c.sizes();
  EXPECT_EQ(s.width, 80);
  EXPECT_EQ(s.num_kv_heads, 2);
  EXPECT_EQ(s.vision.image_size, 64);
  EXPECT_EQ(c.init.gate, 0.5);
  EXPECT_EQ(c.freeze, std::vector<std::string>{"vision"});
}

TEST(Pi05Config, ImpossibleSizesNameTheKey) {
  const auto message = [](const std::function<void(Pi05Config&)>& change) {
    Pi05Config c;
    change(c);
    try {
      c.check();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(message([](Pi05Config& c) { c.text.num_kv_heads = 3; }).find("num_kv_heads 3"),
            std::string::npos);
  EXPECT_NE(message([](Pi05Config& c) { c.text.head_dim = 5; }).find("head_dim 5"),
            std::string::npos);
  EXPECT_NE(message([](Pi05Config& c) {
              c.vision.num_attention_heads = 7;
            }).find("num_attention_heads 7"),
            std::string::npos);
  EXPECT_NE(message([](Pi05Config& c) { c.action_dim = 99; }).find("max_action_dim"),
            std::string::npos);
}

}  // namespace
}  // namespace longship::models
