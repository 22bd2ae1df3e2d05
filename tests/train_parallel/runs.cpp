#include "runs.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "../dist/ranks.h"
#include "../train/fake_family.h"
#include "io/sharded_state.h"
#include "io/tensor_io.h"
#include "support/paths.h"
#include "train/session.h"
#include "train/trainer.h"

namespace longship::train::testing {
namespace {

std::string pack(const TrainOutcome& outcome) {
  std::string out = fmt::format("{} {} ", outcome.step, outcome.interrupted ? 1 : 0);
  for (const double loss : outcome.losses) out += fmt::format("{:.17g} ", loss);
  return out;
}

std::string train_rank(const RunRequest& request, const dist::LaunchInfo& launch) {
  if (request.set_up) request.set_up(launch.rank);
  const Recipe recipe = request.recipe(launch.rank);
  const bool fake = recipe.family->name() == "fake";
  const auto parallel = Parallel::connect(recipe, launch);
  TrainOptions options;
  options.quiet = true;
  options.parallel = parallel.get();
  const FamilyLookup lookup = fake ? fake_families() : FamilyLookup(&models::find_family);
  const auto dataset = fake ? make_fake_dataset() : open_dataset(recipe);
  const TrainOutcome outcome = train(recipe, dataset, options, lookup);
  parallel->close();
  return pack(outcome);
}

}  // namespace

std::vector<RankOutcome> run_training(const RunRequest& request) {
  std::vector<RankOutcome> out;
  for (const dist::RankResult& rank : dist::run_world(
           request.world_size,
           [&](const dist::LaunchInfo& launch) { return train_rank(request, launch); },
           request.limit_s)) {
    RankOutcome outcome;
    outcome.exit_code = rank.exit_code;
    outcome.seconds = rank.seconds;
    if (rank.exit_code == 0) {
      std::istringstream in(rank.text);
      int interrupted = 0;
      in >> outcome.step >> interrupted;
      outcome.interrupted = interrupted != 0;
      for (std::string loss; in >> loss;) outcome.losses.push_back(std::stod(loss));  // also nan
    } else {
      outcome.error = rank.text;
    }
    out.push_back(std::move(outcome));
  }
  return out;
}

std::vector<double> losses_of(const RunRequest& request) {
  const std::vector<RankOutcome> ranks = run_training(request);
  for (size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(ranks[r].exit_code, 0) << "rank " << r << ": " << ranks[r].error;
    EXPECT_EQ(ranks[r].losses, ranks[0].losses) << "rank " << r;
  }
  return ranks[0].losses;
}

Recipe tiny_pi05(const std::filesystem::path& output_dir,
                 const std::vector<std::string>& overrides) {
  const std::filesystem::path source = longship::testing::source_root();
  std::vector<std::string> all = {
      "output_dir=" + output_dir.string(),
      "data.datasets.0.path=" + longship::testing::dataset_path("pusht_v30").string(),
      "model.tokenizer=" + (source / "data/tokenizers/pi05_demo.model").string(),
      "train.threads=1",
      "data.workers=1",
      "log.tensorboard=false"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_recipe(source / "configs/pi05/tiny_test.yaml", all, &models::find_family);
}

RunRequest pi05_run(const std::filesystem::path& output_dir, int64_t world_size,
                    const std::vector<std::string>& overrides) {
  RunRequest request;
  request.world_size = world_size;
  request.recipe = [=](int64_t) { return tiny_pi05(output_dir, overrides); };
  return request;
}

RunRequest fake_run(const std::filesystem::path& output_dir, int64_t world_size,
                    const std::vector<std::string>& overrides) {
  RunRequest request;
  request.world_size = world_size;
  request.recipe = [=](int64_t) { return fake_recipe(output_dir.string(), overrides); };
  return request;
}

std::map<std::string, at::Tensor> checkpoint_tensors(const std::filesystem::path& checkpoint,
                                                     const std::string& which) {
  at::set_num_threads(1);  // a thread pool of this process would not survive the next fork
  if (which == "model") return io::load_tensors(checkpoint / "model.safetensors");
  const io::ShardedState state = io::ShardedState::open(checkpoint / "state");
  std::map<std::string, at::Tensor> out;
  for (const io::ShardedTensor& tensor : state.tensors()) {
    at::Tensor whole = at::empty(tensor.shape, io::to_scalar_type(tensor.dtype));
    state.read(tensor, 0, tensor.numel(), whole.mutable_data_ptr());
    out.emplace(tensor.name, std::move(whole));
  }
  return out;
}

double worst_error(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]) / std::abs(b[i]);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

}  // namespace longship::train::testing
