#include "io/weights.h"

#include <fstream>

#include "base/error.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;
using longship::testing::expect_error;
using longship::testing::scratch_dir;

void write_values(const fs::path& path, const std::vector<std::pair<std::string, float>>& values) {
  std::vector<TensorView> views;
  for (const auto& [name, value] : values) views.push_back({name, DType::kF32, {1}, &value});
  write_safetensors(path, views, {{"format", "pt"}});
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

float value_of(const Weights& weights, std::string_view name) {
  return *reinterpret_cast<const float*>(weights.data(weights.at(name)));
}

TEST(Weights, OneFileAndAFolderWithOneFile) {
  const fs::path dir = scratch_dir("weights_single");
  write_values(dir / "model.safetensors", {{"a", 1.0F}, {"b", 2.0F}});
  for (const fs::path& path : {dir, dir / "model.safetensors"}) {
    const Weights weights = open_weights(path);
    EXPECT_EQ(weights.tensors().size(), 2U);
    EXPECT_EQ(value_of(weights, "b"), 2.0F);
    EXPECT_EQ(weights.metadata().at("format"), "pt");
    EXPECT_EQ(weights.total_bytes(), 8U);
  }
}

TEST(Weights, ShardsUnderOneSetOfNames) {
  const fs::path dir = scratch_dir("weights_shards");
  write_values(dir / "model-00001-of-00002.safetensors", {{"a", 1.0F}, {"b", 2.0F}});
  write_values(dir / "model-00002-of-00002.safetensors", {{"c", 3.0F}});
  write_text(dir / "model.safetensors.index.json",
             R"({"metadata":{"total_size":12},"weight_map":{"a":"model-00001-of-00002.safetensors",
                 "b":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors"}})");
  for (const fs::path& path : {dir, dir / "model.safetensors.index.json"}) {
    const Weights weights = open_weights(path);
    ASSERT_EQ(weights.tensors().size(), 3U);
    EXPECT_EQ(value_of(weights, "a"), 1.0F);
    EXPECT_EQ(value_of(weights, "c"), 3.0F);
    EXPECT_EQ(weights.file_of(weights.at("c")).filename(), "model-00002-of-00002.safetensors");
    EXPECT_EQ(weights.find("d"), nullptr);
  }
}

TEST(Weights, AllFaultsOfAnIndexAreListedAtOnce) {
  const fs::path dir = scratch_dir("weights_faults");
  write_values(dir / "one.safetensors", {{"a", 1.0F}, {"extra", 2.0F}, {"moved", 3.0F}});
  write_values(dir / "two.safetensors", {{"c", 3.0F}});
  write_text(dir / "model.safetensors.index.json",
             R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors",
                 "moved":"two.safetensors","z":"three.safetensors"}})");
  expect_error<CheckpointError>(
      [&] { open_weights(dir); },
      {"model.safetensors.index.json", "missing shard", "three.safetensors",
       "'b' is not in one.safetensors", "'extra' of one.safetensors is not in the index",
       "'moved' is in one.safetensors, the index says two.safetensors"});
}

TEST(Weights, AnIndexMustNotLeaveItsFolder) {
  const fs::path dir = scratch_dir("weights_escape");
  for (const char* shard : {"../secret.safetensors", "/etc/passwd", "", ".."}) {
    write_text(dir / "model.safetensors.index.json",
               std::string(R"({"weight_map":{"a":")") + shard + "\"}}");
    expect_error<CheckpointError>([&] { open_weights(dir); }, {"'a'", "same folder"});
  }
}

TEST(Weights, FoldersThatDoNotSayWhatHolds) {
  const fs::path dir = scratch_dir("weights_unclear");
  expect_error<CheckpointError>([&] { open_weights(dir); }, {dir.string(), "model.safetensors"});
  expect_error<CheckpointError>([&] { open_weights(dir / "absent"); }, {"absent", "no such file"});
  write_values(dir / "model.safetensors", {{"a", 1.0F}});
  write_text(dir / "model.safetensors.index.json", R"({"weight_map":{"a":"model.safetensors"}})");
  expect_error<CheckpointError>([&] { open_weights(dir); }, {"both", "remove one"});
}

TEST(Weights, MalformedIndex) {
  const fs::path dir = scratch_dir("weights_index");
  const fs::path index = dir / "model.safetensors.index.json";
  for (const char* text :
       {"{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})", "{"}) {
    write_text(index, text);
    expect_error<CheckpointError>([&] { open_weights(dir); }, {index.string()});
  }
}

TEST(Weights, UnknownTensorNamesTheNearest) {
  const fs::path dir = scratch_dir("weights_nearest");
  write_values(dir / "model.safetensors", {{"model.norm.weight", 1.0F}, {"lm_head.weight", 2.0F}});
  const Weights weights = open_weights(dir);
  expect_error<CheckpointError>([&] { weights.at("model.norm.weigth"); },
                                {dir.string(), "'model.norm.weigth'", "'model.norm.weight'"});
}

}  // namespace
}  // namespace longship::io
