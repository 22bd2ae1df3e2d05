#include "ops/flow.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "base/error.h"
#include "op_support.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(FlowMix, MatchesDefinition) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor actions = random({3, 5, 7}, type), noise = random({3, 5, 7}, type);
    const at::Tensor time = at::rand({3}, type == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor t = time.view({3, 1, 1}).to(at::kDouble);
    const at::Tensor expected = t * noise.to(at::kDouble) + (1 - t) * actions.to(at::kDouble);
    const at::Tensor x_t = flow_mix(actions, noise, time);
    EXPECT_EQ(x_t.scalar_type(), type);
    EXPECT_TRUE(close(x_t, expected));
  }
}

TEST(FlowMix, NeverRequiresGrad) {
  const at::Tensor actions = random({1, 2, 3}, at::kFloat).set_requires_grad(true);
  EXPECT_FALSE(flow_mix(actions, random({1, 2, 3}, at::kFloat), at::rand({1})).requires_grad());
}

TEST(FlowMix, FaultsAndMeta) {
  EXPECT_THROW(flow_mix(at::zeros({2, 3, 4}), at::zeros({2, 3, 5}), at::zeros({2})), ShapeError);
  EXPECT_THROW(flow_mix(at::zeros({2, 3, 4}), at::zeros({2, 3, 4}), at::zeros({3})), ShapeError);
  const auto meta = at::TensorOptions(at::kMeta);
  const at::Tensor x = at::empty({2, 3, 4}, meta);
  EXPECT_EQ(flow_mix(x, x, at::empty({2}, meta)).sizes(), x.sizes());
}

/// The definition, written with the tensor library; padded steps by multiplication with zero.
at::Tensor composite(const at::Tensor& v, const at::Tensor& actions, const at::Tensor& noise,
                     int64_t dims, const std::optional<at::Tensor>& is_pad) {
  const at::Tensor square = (v - (noise - actions)).pow(2).narrow(-1, 0, dims);
  if (!is_pad.has_value()) return square.mean();
  const at::Tensor valid = is_pad->logical_not().to(v.scalar_type());
  return (square * valid.unsqueeze(-1)).sum() / (valid.sum().clamp_min(1) * dims);
}

at::Tensor some_padding(int64_t samples, int64_t steps) {
  at::Tensor pad = at::zeros({samples, steps}, at::TensorOptions(at::kBool));
  for (int64_t b = 0; b < samples; ++b) pad[b].narrow(0, steps - b % steps, b % steps).fill_(true);
  return pad;
}

TEST(FlowLoss, LossAndGradientMatchDefinition) {
  for (const int64_t dims : {1, 4, 7}) {
    for (const bool padded : {false, true}) {
      std::optional<at::Tensor> pad;
      if (padded) pad = some_padding(4, 6);
      const at::Tensor actions = random({4, 6, 7}), noise = random({4, 6, 7});
      const at::Tensor v = random({4, 6, 7}).set_requires_grad(true);
      const at::Tensor theirs = leaf_on(v, at::kCPU);
      const auto [loss, loss_all] = flow_loss(v, actions, noise, dims, pad);
      const at::Tensor expected = composite(theirs, actions, noise, dims, pad);
      EXPECT_TRUE(close(loss, expected));
      EXPECT_TRUE(close(loss_all, composite(theirs, actions, noise, 7, pad)));
      EXPECT_FALSE(loss_all.requires_grad());
      (loss * 3.0).backward();
      (expected * 3.0).backward();
      EXPECT_TRUE(close(v.grad(), theirs.grad()));
    }
  }
}

TEST(FlowLoss, NumericalGradientInFloat64) {
  const at::Tensor actions = random({2, 3, 4}), noise = random({2, 3, 4});
  const at::Tensor v = random({2, 3, 4}).set_requires_grad(true);
  const at::Tensor pad = some_padding(2, 3);
  expect_numeric_gradients([&] { return std::get<0>(flow_loss(v, actions, noise, 3, pad)); }, {v});
}

TEST(FlowLoss, DtypesOfVelocityAndActionsAreIndependent) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType action_type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor actions = random({2, 5, 8}, action_type);
      const at::Tensor noise = random({2, 5, 8}, action_type);
      const at::Tensor v = random({2, 5, 8}, type).set_requires_grad(true);
      const auto [loss, loss_all] = flow_loss(v, actions, noise, 8);
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      EXPECT_TRUE(close(loss, composite(v.to(at::kDouble), actions.to(at::kDouble),
                                        noise.to(at::kDouble), 8, {})));
      EXPECT_TRUE(same_bits(loss, loss_all));
      loss.backward();
      EXPECT_EQ(v.grad().scalar_type(), type);
    }
  }
}

/// NaN in padded steps reaches neither the losses nor the gradient.
void check_padding_on(at::Device device) {
  const at::Tensor actions = random({5, 6, 8}, at::kFloat), noise = random({5, 6, 8}, at::kFloat);
  const at::Tensor pad = some_padding(5, 6);
  const at::Tensor clean = random({5, 6, 8}, at::kFloat);
  const at::Tensor mask = pad.unsqueeze(-1);
  const auto poison = [&](const at::Tensor& x) { return x.masked_fill(mask, kNaN).to(device); };
  const at::Tensor v = poison(clean).set_requires_grad(true);
  const auto [loss, loss_all] = flow_loss(v, poison(actions), poison(noise), 5, pad.to(device));
  EXPECT_TRUE(close(loss, composite(clean, actions, noise, 5, pad)));
  EXPECT_TRUE(close(loss_all, composite(clean, actions, noise, 8, pad)));
  loss.backward();
  const at::Tensor gradient = v.grad().cpu();
  EXPECT_EQ(gradient.isnan().sum().item<int64_t>(), 0);
  EXPECT_EQ(gradient.masked_select(mask).count_nonzero().item<int64_t>(), 0);
  EXPECT_EQ(gradient.narrow(2, 5, 3).count_nonzero().item<int64_t>(), 0);
}

TEST(FlowLoss, PaddedStepsMayHoldNaN) {
  check_padding_on(at::kCPU);
}

TEST(FlowLoss, NothingButPaddingGivesZero) {
  const at::Tensor v = random({1, 2, 3}, at::kFloat).set_requires_grad(true);
  const at::Tensor pad = at::zeros({1, 2}, at::TensorOptions(at::kBool)).logical_not();
  const auto [loss, loss_all] =
      flow_loss(v, random({1, 2, 3}, at::kFloat), random({1, 2, 3}, at::kFloat), 3, pad);
  EXPECT_EQ(loss.item<float>(), 0.0f);
  EXPECT_EQ(loss_all.item<float>(), 0.0f);
  loss.backward();
  EXPECT_EQ(v.grad().count_nonzero().item<int64_t>(), 0);
  const at::Tensor none = at::zeros({0, 2, 3});
  EXPECT_EQ(std::get<0>(flow_loss(none, none, none, 2)).item<float>(), 0.0f);
}

TEST(FlowLoss, FaultsAndMeta) {
  const at::Tensor x = at::zeros({2, 3, 4});
  EXPECT_THROW(flow_loss(x, x, x, 0), ShapeError);
  EXPECT_THROW(flow_loss(x, x, x, 5), ShapeError);
  EXPECT_THROW(flow_loss(x, x, x, 4, at::zeros({2, 3})), ShapeError);
  const at::Tensor m = at::empty({2, 3, 4}, at::TensorOptions(at::kMeta)).set_requires_grad(true);
  const auto [loss, loss_all] = flow_loss(m, m.detach(), m.detach(), 4);
  EXPECT_EQ(loss.dim(), 0);
  loss.backward();
  EXPECT_EQ(m.grad().sizes(), m.sizes());
}

TEST(FlowGpu, MatchesCpuForwardAndBackward) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  struct Case {
    int64_t samples, steps, width, dims;
    bool padded, shifted;
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType action_type : {at::kFloat, at::kBFloat16}) {
      for (const Case& c :
           {Case{1, 1, 1, 1, false, false}, Case{32, 50, 32, 32, false, false},
            Case{32, 50, 32, 14, true, false}, Case{3, 7, 5, 2, true, true},
            Case{64, 50, 100, 99, false, true}, Case{0, 50, 32, 32, false, false}}) {
        const std::vector<int64_t> sizes{c.samples, c.steps, c.width};
        const at::Tensor actions = random(sizes, action_type), noise = random(sizes, action_type);
        const at::Tensor time = at::rand({c.samples});
        const at::Tensor v = random(sizes, type);
        const at::Tensor pad = some_padding(c.samples, c.steps);
        const auto run = [&](at::Device device) -> std::vector<at::Tensor> {
          at::Tensor leaf = leaf_on(v, device);
          if (c.shifted) leaf = misaligned(leaf.detach()).set_requires_grad(true);
          const at::Tensor a = actions.to(device), n = noise.to(device);
          std::optional<at::Tensor> is_pad;
          if (c.padded) is_pad = pad.to(device);
          const auto [loss, loss_all] = flow_loss(leaf, a, n, c.dims, is_pad);
          loss.backward();
          return {loss.detach(), loss_all, leaf.grad(), flow_mix(a, n, time.to(device))};
        };
        const auto expected = run(at::kCPU), got = run(at::kCUDA), again = run(at::kCUDA);
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_TRUE(close(got[i], expected[i])) << "result " << i << ", " << sizes;
          EXPECT_TRUE(same_bits(got[i], again[i])) << "result " << i << ", " << sizes;
        }
      }
    }
  }
}

TEST(FlowGpu, PaddedStepsMayHoldNaN) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  check_padding_on(at::kCUDA);
}

}  // namespace
}  // namespace longship::ops
