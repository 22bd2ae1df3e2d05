#pragma once
// Training runs of the small GR00T models of configs/groot_n1?/pusht_demo.yaml.

#include <filesystem>
#include <string>
#include <vector>

#include "runs.h"
#include "support/paths.h"

namespace longship::train::testing {

/// `family`: groot_n16 or groot_n17. Dropout and left-out states are on: what is drawn for a sample
/// must not depend on the process that has it.
inline RunRequest groot_run(const std::string& family, const std::filesystem::path& output_dir,
                            int64_t world_size, const std::vector<std::string>& overrides) {
  const std::filesystem::path source = longship::testing::source_root();
  std::vector<std::string> all = {
      "output_dir=" + output_dir.string(),
      "data.datasets.0.path=" + longship::testing::dataset_path("pusht_v30").string(),
      "model.tokenizer=" + (source / "data/tokenizers/groot_demo.json").string(),
      "model.dropout=true",
      "model.tune_llm=true",
      "model.tune_visual=true",
      "perf.feature_cache=0",
      "model.state_dropout_prob=0.2",
      "optim.schedule.warmup_steps=2",
      "train.device=cpu",
      "train.threads=1",
      "data.workers=1",
      "log.every=1",
      "log.tensorboard=false",
      "eval.open_loop=false"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  RunRequest request;
  request.world_size = world_size;
  request.recipe = [all, file = source / "configs" / family / "pusht_demo.yaml"](int64_t) {
    return load_recipe(file, all, &models::find_family);
  };
  return request;
}

}  // namespace longship::train::testing
