// GR00T batches that one graph serves: pictures in another order, texts of other lengths. Which
// shapes there are, and that a batch's numbers do not depend on them.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <span>

#include "base/log.h"
#include "base/rng.h"
#include "models/groot/batch.h"
#include "models/groot/policy.h"
#include "models/groot/spec.h"
#include "runtime/device.h"
#include "support/paths.h"
#include "train/assembly.h"
#include "train/batch_transfer.h"
#include "train/graph_contract.h"
#include "train/session.h"

namespace longship::train {
namespace {

using models::GrootBatch;
using models::GrootConfig;
using models::GrootGrids;
using models::GrootPolicy;
using models::GrootVersion;
using ::testing::HasSubstr;
using ::testing::Not;

struct Sample {
  GrootGrids grids;
  int64_t words = 0;
};

/// Random pictures, texts and actions.
std::unique_ptr<models::Batch> batch_of(const GrootConfig& config,
                                        const std::vector<Sample>& samples, uint64_t seed) {
  const models::ModelFamily& family = config.version == GrootVersion::kN17
                                          ? models::groot_n17_family()
                                          : models::groot_n16_family();
  const models::GrootSizes sizes = config.sizes();
  std::unique_ptr<models::Batch> given = family.synthetic_batch(
      config, {static_cast<int64_t>(samples.size()), /*images=*/1, /*tokens=*/1}, seed);
  GrootBatch& out = models::groot_batch(*given);
  out.grids.clear();
  out.pictures.clear();
  out.lengths.clear();
  std::vector<int64_t> ids;
  int64_t patches = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const size_t begin = ids.size();
    for (const auto& [rows, columns] : samples[i].grids) {
      out.grids.push_back({rows, columns});
      patches += rows * columns;
      ids.insert(ids.end(), static_cast<size_t>(rows * columns / 4), sizes.text.image_token);
    }
    for (int64_t word = 0; word < samples[i].words; ++word) {
      const uint64_t at = 1000 * i + static_cast<uint64_t>(word);
      ids.push_back(
          16 + static_cast<int64_t>(random_bits(make_key(seed, RngStream::kTest, 7), at) % 200));
    }
    out.pictures.push_back(static_cast<int64_t>(samples[i].grids.size()));
    out.lengths.push_back(static_cast<int64_t>(ids.size() - begin));
  }
  out.token_ids = at::tensor(ids, at::kLong);
  out.patches = at::empty({patches, sizes.patch_values()}, at::kFloat);
  fill_normal(make_key(seed, RngStream::kTest, 8),
              std::span<float>(out.patches.mutable_data_ptr<float>(),
                               static_cast<size_t>(out.patches.numel())));
  out.patches.clamp_(-1, 1);
  return given;
}

GrootConfig config_of(GrootVersion version) {
  GrootConfig config(version);
  config.size = "demo";
  config.data.horizon = 16;
  config.action_dim = config.state_dim = 2;
  config.state_dropout_prob = 0.2;
  config.tune_llm = config.tune_visual = true;
  return config;
}

const std::vector<Sample>& three_samples() {
  static const std::vector<Sample> samples = {
      {{{6, 10}, {4, 8}}, 7}, {{{4, 4}}, 12}, {{{6, 10}, {4, 8}}, 3}};
  return samples;
}

GrootPolicy policy_of(const GrootConfig& config, int64_t token_bucket,
                      at::ScalarType dtype = at::kFloat) {
  models::BuildOptions options;
  options.dtype = dtype;
  options.seed = 3;
  options.initialise = true;
  options.token_bucket = token_bucket;
  options.fused.stacked = true;
  return GrootPolicy(config, options);
}

using Named = std::map<std::string, at::Tensor>;

/// The loss and the gradient of every parameter that has one.
Named outcome(GrootPolicy& policy, const models::Batch& given) {
  const std::unique_ptr<models::Batch> batch = given.clone();
  policy.prepare(*batch, {.seed = 1, .step = 5});
  const at::Tensor loss = policy.loss(*batch).loss;
  loss.backward();
  Named out = {{"loss", loss.detach()}};
  for (const models::ParamInfo& info : policy.parameters()) {
    at::Tensor tensor = info.tensor;
    if (!tensor.grad().defined()) continue;
    out[info.name] = tensor.grad();
    tensor.mutable_grad() = at::Tensor();
  }
  return out;
}

class GrootShapes : public ::testing::TestWithParam<GrootVersion> {};

// Loss and gradients, dropout included: what fills the table up is read by nobody.
TEST_P(GrootShapes, BucketsChangeNoNumber) {
  const GrootConfig config = config_of(GetParam());
  const auto batch = batch_of(config, three_samples(), 11);
  GrootPolicy plain = policy_of(config, 1, at::kDouble);
  const Named expected = outcome(plain, *batch);
  EXPECT_GT(expected.size(), 100U);
  for (const int64_t bucket : {16, 64, 256}) {
    GrootPolicy policy = policy_of(config, bucket, at::kDouble);
    const Named got = outcome(policy, *batch);
    ASSERT_EQ(got.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      const double scale = tensor.abs().max().item<double>() + 1e-6;
      EXPECT_LE((got.at(name) - tensor).abs().max().item<double>(), 1e-9 * scale) << name;
    }
  }
}

// The rows are there: a multiple of the bucket, or of the next number that all samples share.
TEST_P(GrootShapes, TextRowsReachTheBucket) {
  const GrootConfig config = config_of(GetParam());
  for (const auto& [bucket, columns] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 30}, {16, 30}, {64, 44}, {256, 86}}) {
    const GrootPolicy policy = policy_of(config, bucket);
    const auto batch = batch_of(config, three_samples(), 11);
    policy.prepare(*batch, {.seed = 1, .step = 0});
    const models::GrootLayout& layout = models::groot_batch(*batch).layout;
    EXPECT_EQ(layout.longest_text, columns) << bucket;
    EXPECT_EQ(layout.valid.sizes(), (std::vector<int64_t>{3, columns}));
    EXPECT_EQ(policy.num_feature_rows(*batch), 3 * columns);
    EXPECT_EQ(layout.valid.sum().item<int64_t>(), 30 + 16 + 26);
    // Tokens stand where they stand without: the padding of the reference left of them.
    EXPECT_TRUE(layout.valid.narrow(1, 30, columns - 30).logical_not().all().item<bool>());
    EXPECT_TRUE(layout.valid.select(1, 29).all().item<bool>());
  }
}

// Texts of other lengths have one shape where both are filled up to it.
TEST_P(GrootShapes, TextsOfOtherLengthsShareAShape) {
  const GrootConfig config = config_of(GetParam());
  std::vector<Sample> longer = three_samples();
  longer[0].words += 2;
  for (const int64_t bucket : {1, 128}) {
    const GrootPolicy policy = policy_of(config, bucket);
    Batches first, second;
    first.push_back(batch_of(config, three_samples(), 11));
    second.push_back(batch_of(config, longer, 12));
    policy.prepare(*first.front(), {.seed = 1, .step = 0});
    policy.prepare(*second.front(), {.seed = 1, .step = 0});
    EXPECT_EQ(graph_key(first) == graph_key(second), bucket > 1);
    const GraphContract contract(first, {});
    EXPECT_EQ(contract.mismatch(second, /*one_input=*/true).empty(), bucket > 1);
  }
}

// With features in place of pictures and text the loss is the same, filled up or not.
TEST_P(GrootShapes, TheFrozenPartIsFilledUpToo) {
  GrootConfig config = config_of(GetParam());
  config.tune_llm = config.tune_visual = false;
  config.tune_top_llm_layers = 1;
  GrootPolicy policy = policy_of(config, 64);
  ASSERT_TRUE(policy.has_frozen_part());
  const auto batch = batch_of(config, three_samples(), 11);
  policy.prepare(*batch, {.seed = 1, .step = 0});
  const auto behind = policy.behind_frozen_part(*batch, policy.frozen_features(*batch));
  const at::NoGradGuard no_grad;
  EXPECT_EQ(policy.loss(*behind).loss.item<float>(), policy.loss(*batch).loss.item<float>());
}

// A head that reads every row of the table would read what fills it up.
TEST_P(GrootShapes, NothingIsFilledUpForAHeadThatReadsEverything) {
  GrootConfig config = config_of(GetParam());
  models::GrootSizes sizes = config.sizes();
  sizes.alternate_vl = false;
  config.imported = sizes;
  const GrootPolicy policy = policy_of(config, 256);
  const auto batch = batch_of(config, three_samples(), 11);
  policy.prepare(*batch, {.seed = 1, .step = 0});
  EXPECT_EQ(models::groot_batch(*batch).layout.longest_text, 30);
}

const std::vector<Sample>& wide_first() {
  static const std::vector<Sample> samples = {{{{6, 10}}, 4}, {{{4, 8}}, 6}};
  return samples;
}
const std::vector<Sample>& wide_last() {
  static const std::vector<Sample> samples = {{{{4, 8}}, 11}, {{{6, 10}}, 4}};
  return samples;
}

// The same pictures in another order, with as long a text: one key, and only tensors differ, so
// that the first batch with the tensors of the second gives the loss of the second.
TEST_P(GrootShapes, TheOrderOfPicturesIsNoShape) {
  const GrootConfig config = config_of(GetParam());
  for (const int64_t bucket : {1, 64}) {
    GrootPolicy policy = policy_of(config, bucket);
    Batches first, second;
    first.push_back(batch_of(config, wide_first(), 21));
    second.push_back(batch_of(config, wide_last(), 22));
    policy.prepare(*first.front(), {.seed = 1, .step = 0});
    policy.prepare(*second.front(), {.seed = 1, .step = 1});
    EXPECT_EQ(graph_key(first), graph_key(second));
    const Batches inputs = graph_inputs(first, 1);
    EXPECT_EQ(GraphContract(inputs, {}).mismatch(second, false), "");
    const at::NoGradGuard no_grad;
    const auto loss = [&](const Batches& of) {
      return policy.loss(*of.front()).loss.item<float>();
    };
    take_values(*inputs.front(), *first.front());
    EXPECT_EQ(loss(inputs), loss(first));
    take_values(*inputs.front(), *second.front());
    EXPECT_EQ(loss(inputs), loss(second));
    EXPECT_NE(loss(first), loss(second));
  }
}

// What does decide a shape: rows of patches, the largest picture, whether all are alike.
TEST_P(GrootShapes, OtherPicturesAreOtherShapes) {
  const GrootConfig config = config_of(GetParam());
  const GrootPolicy policy = policy_of(config, 1);
  const auto key = [&](const std::vector<Sample>& samples) {
    Batches out;
    out.push_back(batch_of(config, samples, 31));
    policy.prepare(*out.front(), {.seed = 1, .step = 0});
    return graph_key(out);
  };
  const std::string base = key({{{{6, 8}}, 4}, {{{4, 12}}, 4}});  // 48 patches each
  EXPECT_EQ(base, key({{{{4, 12}}, 4}, {{{6, 8}}, 4}}));
  EXPECT_NE(base, key({{{{6, 8}}, 4}, {{{6, 8}}, 4}}));      // dense
  EXPECT_NE(base, key({{{{6, 8}}, 4}, {{{4, 10}}, 6}}));     // fewer rows of patches
  EXPECT_NE(base, key({{{{8, 8}}, 0}, {{{4, 8}}, 8}}));      // as many, a larger picture
  EXPECT_NE(base, key({{{{6, 8}, {4, 12}}, 4}, {{}, 28}}));  // a sample without
}

INSTANTIATE_TEST_SUITE_P(Both, GrootShapes,
                         ::testing::Values(GrootVersion::kN16, GrootVersion::kN17));

// ---- The engine on a GPU --------------------------------------------------------------------

struct Ran {
  std::vector<double> losses, norms;
  EngineFacts facts;
  std::string log;
};

class GrootShapesGpu : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  }

  /// Steps without a change of weights over the batches that `samples_of` names.
  static Ran run(const std::vector<std::string>& overrides, int64_t steps,
                 const std::function<std::vector<Sample>(int64_t)>& samples_of, double lr = 0) {
    std::vector<std::string> all = {"model.action_dim=2",
                                    "model.state_dim=2",
                                    "perf.feature_cache=0",
                                    "model.dropout=true",
                                    "model.state_dropout_prob=0.2",
                                    "train.device=cuda",
                                    "train.dtype=bf16",
                                    "train.deterministic=true"};
    const size_t size = samples_of(0).size();
    all.push_back("train.global_batch=" + std::to_string(size));
    all.push_back("train.micro_batch=" + std::to_string(size));
    all.insert(all.end(), overrides.begin(), overrides.end());
    const Recipe recipe =
        load_recipe(longship::testing::source_root() / "configs" / GetParam() / "pusht_demo.yaml",
                    all, &models::find_family);
    const auto& config = dynamic_cast<const GrootConfig&>(*recipe.model);
    apply_library_settings(recipe);
    log::init();
    ::testing::internal::CaptureStderr();
    Ran out;
    const Assembly assembly = assemble(recipe, runtime::parse_device("cuda"));
    for (int64_t step = 0; step < steps; ++step) {
      Batches micro;
      micro.push_back(batch_of(config, samples_of(step), static_cast<uint64_t>(100 + step)));
      assembly.policy->prepare(*micro.back(), {42, static_cast<uint64_t>(step)});
      const UpdateScalars scalars{lr, 0.01};
      assembly.engine->submit(step, std::move(micro), step, scalars, scalars);
      const StepReport report = assembly.engine->take_report();
      out.losses.push_back(report.loss);
      out.norms.push_back(report.grad_norm);
    }
    out.facts = assembly.engine->facts();
    log::flush();
    out.log = ::testing::internal::GetCapturedStderr();
    return out;
  }

  static void expect_close(const std::vector<double>& got, const std::vector<double>& want,
                           double bound) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(std::isfinite(got[i]));
      EXPECT_NEAR(got[i], want[i], bound * std::abs(want[i])) << "step " << i;
    }
  }
};

// Pictures change their order from step to step, and one graph gives what every step gives alone.
TEST_P(GrootShapesGpu, OneGraphServesPicturesInEveryOrder) {
  const auto orders = [](int64_t step) { return step % 2 == 0 ? wide_first() : wide_last(); };
  for (const bool trained : {false, true}) {
    const std::string tune = trained ? "true" : "false";
    const auto with = [&](const std::string& graph, const std::string& two) {
      return run({"model.tune_llm=" + tune, "model.tune_visual=" + tune,
                  "train.cuda_graph=" + graph, "perf.two_graphs=" + two},
                 8, orders, 1e-3);
    };
    const Ran eager = with("none", "false");
    const Ran one = with("full_iteration", "false");
    const Ran two = with("full_iteration", "true");
    const Ran each = with("per_microbatch", "false");
    EXPECT_EQ(one.facts.captures, 1);
    EXPECT_EQ(two.facts.captures, trained ? 1 : 2);
    EXPECT_EQ(each.facts.captures, 1);
    for (const Ran* ran : {&one, &two, &each}) {
      EXPECT_EQ(ran->losses, eager.losses);
      EXPECT_EQ(ran->norms, eager.norms);
      EXPECT_EQ(ran->facts.eager_steps, 0);
    }
    EXPECT_NE(eager.losses[6], eager.losses[7]);
  }
}

// Eighteen lengths of text are too many shapes, and are said to be; in buckets they are few. The
// losses are the same.
TEST_P(GrootShapesGpu, BucketsMakeShapesFew) {
  const auto texts = [](int64_t step) {
    const int64_t words = 4 + step % 18;
    return std::vector<Sample>{{{{6, 6}}, words}, {{{6, 6}}, 3}, {{{6, 6}}, 4}, {{{6, 6}}, 2}};
  };
  for (const auto& [dtype, bound] :
       std::vector<std::pair<std::string, double>>{{"fp32", 1e-4}, {"bf16", 2e-2}}) {
    const auto with = [&](const std::string& graph, const std::string& bucket) {
      return run(
          {"model.tune_llm=false", "model.tune_visual=false", "model.tune_top_llm_layers=0",
           "train.dtype=" + dtype, "train.cuda_graph=" + graph, "perf.token_bucket=" + bucket},
          36, texts);
    };
    const Ran plain = with("none", "1");
    const Ran many = with("full_iteration", "1");
    const Ran few = with("full_iteration", "128");
    EXPECT_EQ(many.losses, plain.losses);
    expect_close(few.losses, plain.losses, bound);
    EXPECT_THAT(many.log, HasSubstr("more than 16 shapes of steps: their graphs are dropped"));
    EXPECT_THAT(many.log, HasSubstr("more than 16 shapes of the frozen part: their graphs"));
    EXPECT_THAT(few.log, Not(HasSubstr("more than 16 shapes")));
    EXPECT_EQ(few.facts.captures, 2);
    EXPECT_EQ(few.facts.eager_steps, 0);
    EXPECT_EQ(few.log.find("flash kernels are for bf16") != std::string::npos, dtype == "fp32");
  }
}

std::atomic<int64_t> g_varlen_calls{0};

/// Counts calls of the library's flash kernels for packed rows.
class VarlenCalls {
 public:
  VarlenCalls() {
    g_varlen_calls = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
              const std::string_view name = call.name();
              if (name == "aten::_flash_attention_forward" && call.inputs().size() > 3 &&
                  call.inputs()[3].isTensor() && call.inputs()[3].toTensor().defined()) {
                ++g_varlen_calls;
              }
              return nullptr;
            })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~VarlenCalls() { at::removeCallback(handle_); }
  int64_t count() const { return g_varlen_calls; }

 private:
  at::CallbackHandle handle_ = 0;
};

// The switch reaches vision tower, text layers and head, with and without filled up texts.
TEST_P(GrootShapesGpu, FlashAttentionCanBeTurnedOffEverywhere) {
  const auto samples = [](int64_t) { return three_samples(); };
  for (const std::string bucket : {"1", "128"}) {
    const auto with = [&](const std::string& flash) {
      const VarlenCalls calls;
      const Ran ran = run({"model.tune_llm=true", "model.tune_visual=true",
                           "perf.token_bucket=" + bucket, "perf.flash_attention=" + flash},
                          3, samples);
      return std::pair(ran, calls.count());
    };
    const auto [on, calls_on] = with("true");
    const auto [off, calls_off] = with("false");
    EXPECT_GT(calls_on, 0);
    EXPECT_EQ(calls_off, 0);
    expect_close(off.losses, on.losses, 2e-2);
    expect_close(off.norms, on.norms, 5e-2);
    EXPECT_THAT(off.log, Not(HasSubstr("perf.flash_attention")));
  }
}

INSTANTIATE_TEST_SUITE_P(Both, GrootShapesGpu, ::testing::Values("groot_n16", "groot_n17"));

}  // namespace
}  // namespace longship::train
