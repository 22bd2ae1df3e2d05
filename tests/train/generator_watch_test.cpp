// Work that draws from a generator with a state is named and not captured.
#include "train/generator_watch.h"

#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "fake_family.h"
#include "runtime/device.h"
#include "train/assembly.h"
#include "train/session.h"

namespace longship::train {
namespace {

TEST(GeneratorWatch, NamesTheGeneratorThatMoved) {
  const GeneratorWatch watch(at::kCPU);
  at::zeros({3}).add_(1);
  EXPECT_EQ(watch.moved(), "");
  at::rand({3});
  EXPECT_EQ(watch.moved(), "it draws from the library's default generator of 'cpu'");
  EXPECT_EQ(GeneratorWatch(at::kCPU).moved(), "");
}

EngineFacts run(bool draws) {
  const Recipe recipe =
      testing::fake_recipe("unused", {"train.device=cuda", "train.cuda_graph=full_iteration",
                                      std::string("model.draws=") + (draws ? "true" : "false")});
  apply_library_settings(recipe);
  const Assembly assembly = assemble(recipe, runtime::parse_device("cuda"));
  for (int64_t step = 0; step < 6; ++step) {
    std::vector<std::unique_ptr<models::Batch>> micro;
    micro.push_back(recipe.family->synthetic_batch(*recipe.model, {4, 0, 0}, 7));
    assembly.policy->prepare(*micro.back(), {42, static_cast<uint64_t>(step)});
    const UpdateScalars scalars{1e-3, 0.01};
    assembly.engine->submit(step, std::move(micro), step, scalars, scalars);
    EXPECT_TRUE(assembly.engine->take_report().updated) << "step " << step;
  }
  return assembly.engine->facts();
}

TEST(GeneratorWatchGpu, AStepThatDrawsRunsEagerly) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const EngineFacts captured = run(false), eager = run(true);
  EXPECT_EQ(captured.captures, 1);
  EXPECT_EQ(captured.eager_steps, 0);
  EXPECT_EQ(eager.captures, 0);
  EXPECT_EQ(eager.eager_steps, 5) << "all but the first, which would have been captured";
}

}  // namespace
}  // namespace longship::train
