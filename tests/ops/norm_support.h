#pragma once
// Helpers of the tests of normalisations: runs of an operator with given output gradients,
// numerical gradients, and comparison of the CUDA kernels with the CPU oracle.

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <vector>

namespace longship::ops::test {

using Tensors = std::vector<at::Tensor>;
/// From inputs to outputs; an absent input is undefined.
using Op = std::function<Tensors(const Tensors&)>;

inline at::Tensor random(std::vector<int64_t> sizes, at::ScalarType type = at::kDouble) {
  return at::randn(sizes, at::TensorOptions().dtype(at::kDouble)).to(type);
}

inline std::optional<at::Tensor> optional(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

/// A contiguous copy on `device`; `offset`: one element behind an aligned address.
inline at::Tensor copy_to(const at::Tensor& t, at::Device device, bool offset) {
  if (!t.defined()) return t;
  const int64_t shift = offset ? 1 : 0;
  at::Tensor copy = at::empty({t.numel() + shift}, t.options().device(device))
                        .narrow(0, shift, t.numel())
                        .view(t.sizes());
  copy.copy_(t);
  return copy.detach();
}

struct OpRun {
  Tensors outputs, gradients;  // on the CPU; gradients of the inputs, undefined where there is none
};

/// Runs `op` on copies of the inputs on `device`, and its backward pass with the given gradients of
/// its outputs (undefined: the output is not used).
inline OpRun run_op(const Op& op, const Tensors& inputs, const Tensors& output_gradients,
                    at::Device device = at::kCPU, bool offset = false) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(copy_to(input, device, offset));
    if (leaves.back().defined()) leaves.back().set_requires_grad(true);
  }
  const Tensors outputs = op(leaves);
  Tensors roots, gradients;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!output_gradients[i].defined()) continue;
    roots.push_back(outputs[i]);
    gradients.push_back(copy_to(output_gradients[i], device, offset));
  }
  torch::autograd::backward(roots, gradients);
  OpRun run;
  for (const at::Tensor& t : outputs) run.outputs.push_back(t.detach().cpu());
  for (const at::Tensor& t : leaves) {
    const bool has_gradient = t.defined() && t.grad().defined();
    run.gradients.push_back(has_gradient ? t.grad().cpu() : at::Tensor());
  }
  return run;
}

/// Central differences of sum(outputs * output_gradients) against the gradients of `op`; float64.
inline void expect_numerical_gradients(const Op& op, const Tensors& inputs,
                                       const Tensors& output_gradients) {
  const OpRun run = run_op(op, inputs, output_gradients);
  const auto value = [&](const Tensors& at_inputs) {
    const Tensors outputs = op(at_inputs);
    double sum = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (output_gradients[i].defined())
        sum += (outputs[i] * output_gradients[i]).sum().item<double>();
    }
    return sum;
  };
  constexpr double kStep = 1e-6;
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k].defined()) continue;
    Tensors moved = inputs;
    moved[k] = inputs[k].clone();
    double* data = moved[k].mutable_data_ptr<double>();
    const at::Tensor gradient =
        run.gradients[k].defined() ? run.gradients[k].contiguous() : inputs[k] * 0;
    for (int64_t i = 0; i < moved[k].numel(); ++i) {
      const double saved = data[i];
      data[i] = saved + kStep;
      const double up = value(moved);
      data[i] = saved - kStep;
      const double down = value(moved);
      data[i] = saved;
      const double numeric = (up - down) / (2 * kStep);
      EXPECT_NEAR(gradient.const_data_ptr<double>()[i], numeric, 1e-5 + 1e-3 * std::abs(numeric))
          << "input " << k << " element " << i;
    }
  }
}

/// Two implementations that round at the same points: fp32 differs by the order of sums, bf16 by
/// few results that fall to the other side of a rounding boundary. `absolute`: further error that
/// every element may have. With it an element may well fall to the other side of a boundary, which
/// is up to 2^-7 of a bf16 element and of the 2-norm of few. `roundings`: how often a bf16 element
/// was rounded on its way; each may add such a step.
inline void expect_same_arithmetic(const at::Tensor& expected, const at::Tensor& got,
                                   const std::string& what, double absolute = 0.0,
                                   int roundings = 1) {
  ASSERT_EQ(expected.defined(), got.defined()) << what;
  if (!expected.defined()) return;
  ASSERT_EQ(expected.sizes(), got.sizes()) << what;
  ASSERT_EQ(expected.scalar_type(), got.scalar_type()) << what;
  if (expected.numel() == 0) return;
  const at::Tensor a = expected.to(at::kDouble);
  const at::Tensor b = got.to(at::kDouble);
  const double size = std::sqrt(static_cast<double>(a.numel()));
  const double norm = at::linalg_vector_norm(a).item<double>();
  const double error = at::linalg_vector_norm(a - b).item<double>();
  const bool wide = expected.scalar_type() == at::kFloat;
  const double in_norm = wide ? 1e-5 : absolute > 0 ? 1.0 / 128 : 2e-3;
  EXPECT_LE(error, in_norm * norm + (1e-6 + absolute) * size) << what << ", in the 2-norm";
  const double scale = norm / size + 1e-3;
  const at::Tensor excess = ((a - b).abs() - absolute).clamp_min(0.0);
  EXPECT_LE((excess / (a.abs() + scale)).max().item<double>(), wide ? 1e-4 : roundings / 128.0)
      << what << ", per element";
}

/// The CUDA implementation against the oracle, and against a second run of itself, bitwise.
/// `absolute` and `roundings`: see expect_same_arithmetic, for the gradients of the first inputs
/// and for all of them.
inline void expect_gpu_matches_cpu(const Op& op, const Tensors& inputs,
                                   const Tensors& output_gradients, bool offset,
                                   const std::string& what,
                                   const std::vector<double>& absolute = {}, int roundings = 1) {
  const OpRun cpu = run_op(op, inputs, output_gradients);
  const OpRun gpu = run_op(op, inputs, output_gradients, at::Device(at::kCUDA, 0), offset);
  const OpRun again = run_op(op, inputs, output_gradients, at::Device(at::kCUDA, 0), offset);
  for (size_t i = 0; i < cpu.outputs.size(); ++i) {
    const std::string name = what + ": output " + std::to_string(i);
    expect_same_arithmetic(cpu.outputs[i], gpu.outputs[i], name);
    EXPECT_TRUE(at::equal(gpu.outputs[i], again.outputs[i])) << name << " differs between runs";
  }
  for (size_t i = 0; i < cpu.gradients.size(); ++i) {
    const std::string name = what + ": gradient " + std::to_string(i);
    expect_same_arithmetic(cpu.gradients[i], gpu.gradients[i], name,
                           i < absolute.size() ? absolute[i] : 0.0, roundings);
    if (!gpu.gradients[i].defined() || !again.gradients[i].defined()) continue;
    EXPECT_TRUE(at::equal(gpu.gradients[i], again.gradients[i])) << name << " differs between runs";
  }
}

/// Gradients of both runs agree to `tolerance`, absolute and relative.
inline void expect_close_gradients(const OpRun& expected, const OpRun& got, double tolerance) {
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    const at::Tensor& a = expected.gradients[i];
    const at::Tensor& b = got.gradients[i];
    ASSERT_EQ(a.defined(), b.defined()) << "input " << i;
    if (!a.defined() || a.numel() == 0) continue;
    EXPECT_LE((a - b).abs().max().item<double>(),
              tolerance * std::max(1.0, a.abs().max().item<double>()))
        << "input " << i;
  }
}

}  // namespace longship::ops::test
