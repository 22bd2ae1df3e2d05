#pragma once
// A recorded action head of GR00T with its weights and inputs, and how two results of it compare.

#include <ATen/core/Tensor.h>

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/groot/action_head.h"

namespace longship::models::testing {

using HeadTensors = std::map<std::string, at::Tensor>;

/// A file below tests/golden.
nlohmann::json read_golden_json(const std::string& file);

struct HeadCase {
  /// Weights from the folder `folder` of tests/golden, fp32 or, to work in fp64, fp64; every
  /// parameter and the features require grad.
  explicit HeadCase(const std::string& folder, const nn::Fused& fused = {},
                    at::ScalarType dtype = at::kFloat);

  const at::Tensor& in(const char* name) const { return inputs.at(name); }
  at::Tensor flag(const char* name) const { return in(name).to(at::kBool); }
  GrootVlContext context(const GrootHeadCall& call = {}) const;
  GrootFlowInputs flow_inputs() const;
  GrootFlow flow(const GrootHeadCall& call = {}) const;
  /// Loss, prediction and every gradient.
  HeadTensors outcome(const GrootHeadCall& call = {});
  /// The gradient, or zeros.
  static at::Tensor grad_of(const at::Tensor& t);

  GrootHeadSizes sizes;
  GrootActionHead head;
  HeadTensors inputs;
  at::Tensor features;
};

/// Biases of keys: they shift all scores of a query alike.
bool zero_in_exact_arithmetic(const std::string& name);

/// Largest difference over largest reference value.
double head_error(const at::Tensor& ours, const at::Tensor& ref);

/// Gradients whose own largest value is small are judged on the scale of the case's largest one, as
/// the parity runner does.
void expect_close(const HeadTensors& ours, const HeadTensors& ref, double tolerance);
void expect_equal(const HeadTensors& ours, const HeadTensors& ref);

/// Drops with multipliers of one site, from its number only.
at::Tensor drop_drawn(const at::Tensor& x, int64_t site);

}  // namespace longship::models::testing
