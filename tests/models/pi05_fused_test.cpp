// The same loss and gradients whatever operators, buckets and recomputed units are used. On the CPU
// the fused operators run as their oracles.
#include <ATen/ops/equal.h>

#include "base/error.h"
#include "support/paths.h"
#include "tiny_case.h"

namespace longship::models {
namespace {

using testing::relative;
using testing::tiny_inputs;
using testing::tiny_policy;

struct Outcome {
  at::Tensor loss;
  std::vector<std::pair<std::string, at::Tensor>> grads;
};

Outcome outcome(const BuildOptions& build, const std::string& golden = "pi05/tiny_train",
                const std::function<void(Pi05Config&)>& change = {}) {
  const auto policy = tiny_policy(golden, change, at::kFloat, build);
  Outcome out;
  at::Tensor loss = policy->loss(tiny_inputs(golden).pack_batch(), {}).loss;
  loss.backward();
  out.loss = loss.detach();
  for (const ParamInfo& info : policy->parameters()) {
    if (info.role != ParamRole::kTrainable) continue;
    out.grads.emplace_back(info.name, info.row_sparse ? info.row_sparse->grad : info.tensor.grad());
  }
  return out;
}

void expect_close(const Outcome& a, const Outcome& b, double tolerance) {
  EXPECT_LT(relative(a.loss, b.loss), tolerance);
  ASSERT_EQ(a.grads.size(), b.grads.size());
  for (size_t i = 0; i < a.grads.size(); ++i) {
    if (b.grads[i].first.ends_with("k_proj.bias")) continue;  // its true gradient is zero
    EXPECT_LT(relative(a.grads[i].second, b.grads[i].second), tolerance) << a.grads[i].first;
  }
}

void expect_equal(const Outcome& a, const Outcome& b) {
  EXPECT_TRUE(at::equal(a.loss, b.loss));
  for (size_t i = 0; i < a.grads.size(); ++i) {
    EXPECT_TRUE(at::equal(a.grads[i].second, b.grads[i].second)) << a.grads[i].first;
  }
}

nn::Fused everything() {
  return {.norms = true,
          .activations = true,
          .rope = true,
          .embedding = true,
          .loss = true,
          .stacked = true,
          .attention = false};
}

TEST(Pi05Fused, EveryOperatorAloneAndTogetherGivesTheSame) {
  const Outcome plain = outcome({});
  for (bool nn::Fused::*one : {&nn::Fused::norms, &nn::Fused::activations, &nn::Fused::rope,
                               &nn::Fused::embedding, &nn::Fused::loss, &nn::Fused::stacked}) {
    BuildOptions build;
    build.fused.*one = true;
    expect_close(outcome(build), plain, 2e-5);
  }
  expect_close(outcome({.fused = everything()}), plain, 2e-5);
}

TEST(Pi05Fused, LoongForgeLossAndPi0) {
  const auto loongforge = [](Pi05Config& c) { c.parity = "loongforge"; };
  // The golden cases' own tolerance for gradients.
  expect_close(outcome({.fused = everything()}, "pi05/tiny_train", loongforge),
               outcome({}, "pi05/tiny_train", loongforge), 5e-5);
  expect_close(outcome({.fused = everything()}, "pi05/pi0_tiny"), outcome({}, "pi05/pi0_tiny"),
               2e-5);
}

TEST(Pi05Fused, GoldenCaseThroughTheFusedOperators) {
  ParityOptions options;
  options.fused = everything();
  options.fused.embedding = false;  // the oracle optimizer here reads .grad only
  const ParityReport report =
      run_parity_case(::longship::testing::golden_path("pi05/tiny_train"), options,
                      [](std::vector<ParamInfo> parameters, const ParityRecipe& recipe) {
                        return testing::plain_optimizer(std::move(parameters), recipe);
                      });
  for (const ParityRow& row : report.rows) {
    EXPECT_TRUE(row.pass || !row.required) << row.kind << " " << row.name << " " << row.rel_error;
  }
  EXPECT_TRUE(report.pass());
}

TEST(Pi05Buckets, PaddingRowsChangeNothing) {
  const Outcome exact = outcome({});
  for (const nn::Fused& fused : {nn::Fused{}, everything()}) {
    expect_close(outcome({.fused = fused, .token_bucket = 64}), exact, 2e-5);
    expect_close(outcome({.fused = fused, .pad_text = true}), exact, 2e-5);
  }
}

TEST(Pi05Recompute, EveryChoiceGivesTheSameBits) {
  for (const nn::Fused& fused : {nn::Fused{}, everything()}) {
    const Outcome kept = outcome({.fused = fused});
    for (const std::vector<std::string>& units : std::vector<std::vector<std::string>>{
             {"vit"}, {"full"}, {"joint.*"}, {"vision.0", "joint.1"}}) {
      expect_equal(outcome({.fused = fused, .recompute = units}), kept);
    }
  }
}

TEST(Pi05Recompute, UnknownUnitIsRefused) {
  try {
    outcome({.recompute = {"vision.9"}});
    FAIL() << "no error";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("'vision.9' matches no unit"), std::string::npos);
  }
}

}  // namespace
}  // namespace longship::models
