// The step engines: the same losses from every way to run a step.
#include "train/step_engine.h"

#include <cmath>
#include <limits>

#include "models/spec.h"
#include "runtime/device.h"
#include "support/paths.h"
#include "train/assembly.h"
#include "train/session.h"

namespace longship::train {
namespace {

struct RunPlan {
  std::vector<std::string> overrides;
  int64_t steps = 6;
  int64_t poison = -1;  // this step's actions are NaN
  bool ragged = false;  // samples of different lengths, which change from step to step
};

std::vector<std::string> with(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Recipe recipe_of(const std::vector<std::string>& overrides) {
  return load_recipe(longship::testing::source_root() / "configs/pi05/tiny_test.yaml",
                     with({"model.action_dim=2"}, overrides), &models::find_family);
}

std::unique_ptr<models::Batch> batch_of(const Recipe& recipe, const RunPlan& plan, int64_t step,
                                        int64_t micro) {
  const int64_t size = recipe.train.global_batch / recipe.train.num_micro();
  const int64_t tokens = plan.ragged ? 9 + step % 3 : 10;
  auto batch = recipe.family->synthetic_batch(*recipe.model, {size, 2, tokens},
                                              static_cast<uint64_t>(100 * step + micro));
  for (int64_t& id : batch->sample_ids) id += size * (step * recipe.train.num_micro() + micro);
  return batch;
}

std::vector<StepReport> run(const RunPlan& plan, EngineFacts* facts = nullptr) {
  const Recipe recipe = recipe_of(plan.overrides);
  apply_library_settings(recipe);
  const at::Device device = runtime::parse_device(recipe.train.device);
  const Assembly assembly = assemble(recipe, device);
  std::vector<StepReport> out;
  int64_t updates = 0;
  for (int64_t step = 0; step < plan.steps; ++step) {
    std::vector<std::unique_ptr<models::Batch>> micro;
    for (int64_t m = 0; m < recipe.train.num_micro(); ++m) {
      micro.push_back(batch_of(recipe, plan, step, m));
      assembly.policy->prepare(*micro.back(), {42, static_cast<uint64_t>(step)});
      if (step != plan.poison) continue;
      for (auto& [name, tensor] : micro.back()->tensors()) {
        if (name == "actions") tensor->fill_(std::numeric_limits<float>::quiet_NaN());
      }
    }
    const UpdateScalars scalars{1e-3, 0.01};
    assembly.engine->submit(step, std::move(micro), updates, scalars, scalars);
    while (assembly.engine->in_flight() > assembly.engine->lag()) {
      out.push_back(assembly.engine->take_report());
      updates += out.back().updated ? 1 : 0;
    }
  }
  while (assembly.engine->in_flight() > 0) out.push_back(assembly.engine->take_report());
  if (facts != nullptr) *facts = assembly.engine->facts();
  return out;
}

void expect_same_bits(const std::vector<StepReport>& a, const std::vector<StepReport>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].loss, b[i].loss) << "step " << i;
    EXPECT_EQ(a[i].grad_norm, b[i].grad_norm) << "step " << i;
  }
}

TEST(StepEngine, HostReportsLossNormAndMetrics) {
  const auto reports = run({.overrides = {"optim.ema=null"}});
  ASSERT_EQ(reports.size(), 6u);
  for (const StepReport& r : reports) {
    EXPECT_TRUE(r.updated);
    EXPECT_TRUE(std::isfinite(r.loss) && r.loss > 0);
    EXPECT_GT(r.grad_norm, 0);
  }
  EXPECT_NE(reports[0].loss, reports[1].loss);
}

TEST(StepEngine, AFaultUpdatesNothingAndNamesTheSamples) {
  const auto reports = run({.overrides = {"train.micro_batch=4"}, .steps = 3, .poison = 1});
  EXPECT_TRUE(reports[0].updated);
  EXPECT_FALSE(reports[1].updated);
  EXPECT_NE(reports[1].fault.find("the loss is nan (micro-batch 1 of 2, samples 8, 9"),
            std::string::npos)
      << reports[1].fault;
  EXPECT_TRUE(reports[2].updated);
}

TEST(StepEngine, GradientsThatKeepTheirBuffersChangeNoBit) {
  const std::vector<std::string> two = {"train.micro_batch=4", "train.threads=1"};
  const auto handed_over = run({.overrides = two});
  expect_same_bits(run({.overrides = with(two, {"perf.hand_over_gradients=false"})}), handed_over);

  const Recipe recipe = recipe_of(with(two, {"perf.hand_over_gradients=false"}));
  const Assembly assembly = assemble(recipe, at::kCPU);
  std::vector<const void*> first, second;
  for (auto* places : {&first, &second}) {
    std::vector<std::unique_ptr<models::Batch>> micro;
    micro.push_back(batch_of(recipe, {}, 0, 0));
    micro.push_back(batch_of(recipe, {}, 0, 1));
    for (auto& batch : micro) assembly.policy->prepare(*batch, {42, 0});
    assembly.engine->submit(0, std::move(micro), 0, {1e-3, 0}, {1e-3, 0});
    assembly.engine->take_report();
    for (const models::ParamInfo& info : assembly.policy->parameters()) {
      if (info.role != models::ParamRole::kTrainable || info.row_sparse) continue;
      places->push_back(info.tensor.grad().const_data_ptr());
    }
  }
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(first, second);
}

TEST(StepEngine, UnknownGraphModeIsRefused) {
  EXPECT_THROW(parse_graph_mode("whole"), ConfigError);
  EXPECT_EQ(parse_graph_mode("full_iteration"), GraphMode::kFullIteration);
}

const std::vector<std::string> kGpu = {"train.device=cuda", "train.dtype=bf16",
                                       "train.deterministic=true", "model.parity=openpi"};

void skip_without_gpu() {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
}

TEST(StepEngineGpu, GraphsRepeatEagerStepsBitForBit) {
  skip_without_gpu();
  if (!runtime::cuda_available()) return;
  for (const bool ragged : {false, true}) {
    RunPlan plan{.overrides = kGpu, .steps = 20, .ragged = ragged};
    const auto eager = run(plan);
    for (const char* mode : {"per_microbatch", "full_iteration"}) {
      plan.overrides = with(kGpu, {std::string("train.cuda_graph=") + mode});
      EngineFacts facts;
      expect_same_bits(run(plan, &facts), eager);
      EXPECT_GE(facts.captures, 1) << mode;
      EXPECT_GT(facts.graph_nodes, 100) << mode;
    }
  }
}

TEST(StepEngineGpu, RecomputationAndCopyAheadChangeNoBit) {
  skip_without_gpu();
  if (!runtime::cuda_available()) return;
  RunPlan plan{.overrides = with(kGpu, {"train.cuda_graph=full_iteration"}), .steps = 20};
  const auto base = run(plan);
  for (const char* change :
       {"train.recompute=vit", "train.recompute=full", "train.recompute=joint.0,vision.1",
        "perf.copy_ahead=false", "perf.early_launch=false", "perf.hand_over_gradients=false"}) {
    plan.overrides = with(kGpu, {"train.cuda_graph=full_iteration", change});
    expect_same_bits(run(plan), base);
  }
}

TEST(StepEngineGpu, PlainOperatorsGiveTheSameLosses) {
  skip_without_gpu();
  if (!runtime::cuda_available()) return;
  for (const char* dtype : {"fp32", "bf16"}) {
    const std::vector<std::string> base = {"train.device=cuda", std::string("train.dtype=") + dtype,
                                           "train.tf32=false", "model.parity=openpi"};
    const auto fused = run({.overrides = base, .ragged = true});
    const auto plain =
        run({.overrides = with(base, {"perf.fused_norms=false", "perf.fused_activations=false",
                                      "perf.fused_rope=false", "perf.fused_loss=false",
                                      "perf.fused_optimizer=false", "perf.sparse_embedding=false",
                                      "perf.stacked_linears=false", "perf.flash_attention=false"}),
             .ragged = true});
    for (size_t i = 0; i < fused.size(); ++i) {
      EXPECT_NEAR(fused[i].loss / plain[i].loss, 1.0, dtype[0] == 'f' ? 2e-4 : 2e-2)
          << dtype << " step " << i;
    }
  }
}

TEST(StepEngineGpu, AFaultStopsUpdatesUntilReset) {
  skip_without_gpu();
  if (!runtime::cuda_available()) return;
  for (const char* mode : {"none", "full_iteration"}) {
    const auto reports = run({.overrides = with(kGpu, {std::string("train.cuda_graph=") + mode}),
                              .steps = 5,
                              .poison = 2});
    EXPECT_TRUE(reports[1].updated);
    EXPECT_FALSE(reports[2].updated);
    EXPECT_FALSE(reports[2].fault.empty());
    EXPECT_FALSE(reports[3].updated);
  }
}

}  // namespace
}  // namespace longship::train
