// Delayed scaling: histories over several steps, export and import.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <deque>

#include "base/error.h"
#include "fp8_test_util.h"
#include "ops/fp8.h"

namespace longship::ops {
namespace {

constexpr at::ScalarType kE4M3 = at::kFloat8_e4m3fn;
constexpr at::ScalarType kE5M2 = at::kFloat8_e5m2;

/// A matrix whose largest absolute value is `amax`.
at::Tensor with_amax(float amax) {
  at::Tensor x = random_matrix({16, 16}, at::kFloat);
  x = x / x.abs().max() * 0.5 * amax;
  x[2][3] = -amax;
  return x;
}

Fp8Matrix use(const Fp8State& state, int64_t index, const at::Tensor& x, bool record = true) {
  return fp8_quantize(x, state.format(index),
                      {.states = state.tensor(), .index = index, .record = record});
}

float scale_used(const Fp8Matrix& m) {
  return 1.0f / m.inv_scale.item<float>();
}

TEST(Fp8State, ScalesFollowTheLargestOfTheHistory) {
  for (const int64_t length : {1, 4, 7}) {
    Fp8State state(length);
    EXPECT_EQ(state.add(kE4M3), 0);
    EXPECT_EQ(state.add(kE5M2, 2.0), 1);
    state.create(at::kCPU);
    std::deque<float> history;
    const std::vector<float> steps{1.0f, 2.0f, 1.5f,  100.0f, 1.0f, 1.25f, 0.5f,
                                   2.0f, 3.0f, 0.25f, 0.25f,  0.5f, 0.25f};
    for (const float amax : steps) {
      const float reference =
          history.empty() ? amax : *std::max_element(history.begin(), history.end());
      const Fp8Matrix first = use(state, 0, with_amax(amax));
      const Fp8Matrix second = use(state, 1, with_amax(amax));
      EXPECT_FLOAT_EQ(scale_used(first), 448.0f / reference);
      EXPECT_FLOAT_EQ(scale_used(second), 57344.0f / 4.0f / reference);
      // A spike beyond the history is saturated, in this step only.
      const float largest = values(first.q, first.inv_scale).abs().max().item<float>();
      EXPECT_NEAR(largest, std::min(amax, reference), 0.07f * std::min(amax, reference));
      state.update();
      history.push_back(amax);
      if (static_cast<int64_t>(history.size()) > length) history.pop_front();
    }
  }
}

TEST(Fp8State, MicroBatchesShareTheScaleAndJoinTheirMaxima) {
  Fp8State state(4);
  state.add(kE4M3);
  state.create(at::kCPU);
  use(state, 0, with_amax(1.0f));
  state.update();
  for (const float amax : {2.0f, 8.0f, 4.0f}) {
    EXPECT_FLOAT_EQ(scale_used(use(state, 0, with_amax(amax))), 448.0f);
  }
  EXPECT_EQ(state.tensor()[0][2].item<float>(), 8.0f);
  state.update();
  EXPECT_FLOAT_EQ(state.tensor()[0][0].item<float>(), 56.0f);
}

TEST(Fp8State, WithoutHistoryEveryUseHasItsOwnScale) {
  Fp8State state(4);
  state.add(kE4M3);
  state.create(at::kCPU);
  EXPECT_FLOAT_EQ(scale_used(use(state, 0, with_amax(4.0f))), 112.0f);
  EXPECT_FLOAT_EQ(scale_used(use(state, 0, with_amax(2.0f))), 224.0f);
  state.update();
  // Zeros only (a gate that is still closed): the history counts as empty.
  Fp8State zeros(2);
  zeros.add(kE4M3);
  zeros.create(at::kCPU);
  for (int step = 0; step < 3; ++step) {
    use(zeros, 0, at::zeros({16, 16}));
    zeros.update();
  }
  EXPECT_FLOAT_EQ(scale_used(use(zeros, 0, with_amax(1e-6f))), 448e6f);
}

TEST(Fp8State, ReadingOnlyLeavesNoTrace) {
  Fp8State state(4);
  state.add(kE4M3);
  state.create(at::kCPU);
  use(state, 0, with_amax(1.0f));
  state.update();
  const at::Tensor before = state.tensor().clone();
  use(state, 0, with_amax(50.0f), false);
  EXPECT_TRUE(at::equal(state.tensor(), before));
}

TEST(Fp8State, NonFiniteMaximaDoNotEnterTheScale) {
  Fp8State state(3);
  state.add(kE4M3);
  state.create(at::kCPU);
  use(state, 0, with_amax(2.0f));
  state.update();
  for (const float bad : {INFINITY, NAN}) {
    at::Tensor x = with_amax(1.0f);
    x[0][0] = bad;
    use(state, 0, x);
    state.update();
    EXPECT_FLOAT_EQ(state.tensor()[0][0].item<float>(), 224.0f);
  }
}

TEST(Fp8State, ContinuesBitForBitAfterExportAndImport) {
  const auto make = [] {
    auto state = std::make_unique<Fp8State>(5);
    state->add(kE4M3);
    state->add(kE5M2, 1.0);
    state->create(at::kCPU);
    return state;
  };
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < 12; ++i) inputs.push_back(random_matrix({32, 16}, at::kFloat, 1.0 + i % 5));
  const auto run = [&](Fp8State& state, int begin, int end) {
    std::vector<at::Tensor> out;
    for (int i = begin; i < end; ++i) {
      for (const int64_t index : {0, 1}) out.push_back(use(state, index, inputs[i]).q);
      state.update();
    }
    return out;
  };
  const auto whole = make();
  run(*whole, 0, 6);
  const at::Tensor saved = whole->tensor().clone();
  const auto expected = run(*whole, 6, 12);
  const auto resumed = make();
  const void* address = resumed->tensor().const_data_ptr();
  resumed->load(saved);
  EXPECT_EQ(resumed->tensor().const_data_ptr(), address);
  const auto got = run(*resumed, 6, 12);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_codes(got[i], expected[i]));
  EXPECT_TRUE(at::equal(resumed->tensor(), whole->tensor()));
}

TEST(Fp8State, AnotherLayoutIsRefused) {
  Fp8State state(4), longer(8), other_format(4);
  for (Fp8State* s : {&state, &longer}) s->add(kE4M3);
  other_format.add(kE5M2);
  for (Fp8State* s : {&state, &longer, &other_format}) s->create(at::kCPU);
  EXPECT_THROW(state.load(longer.tensor()), CheckpointError);
  EXPECT_THROW(state.load(other_format.tensor()), CheckpointError);
  EXPECT_THROW(state.add(kE4M3), InternalError);
  EXPECT_THROW(Fp8State(0), ShapeError);
  Fp8State never_made(4);
  EXPECT_THROW(never_made.update(), InternalError);
}

}  // namespace
}  // namespace longship::ops
