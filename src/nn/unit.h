#pragma once
// Units of a model: parts that run one after another, each through one call. What is done to a unit
// from outside (activations computed again, weights gathered from other ranks) is attached here, so
// that models stay single-device code.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace longship::nn {

/// Tensors in, tensors out; reads parameters of its own unit and of the root only.
using UnitFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// The unit of parameters that are read outside every run_unit() call, or in several of them.
inline constexpr std::string_view kRootUnit = "";
/// The unit of parameters that no pass reads. Nobody runs it.
inline constexpr std::string_view kUnreadUnit = "unread";

/// Watches the units of one model. Calls come from the thread that runs the pass: for the backward
/// pass one of autograd's, never two at a time. Exceptions leave the pass.
class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  /// The unit's parameters are about to be read. For the root: those of the whole pass.
  virtual void before_forward(std::string_view unit) = 0;
  /// They are not read again in the forward pass. `needs_backward`: autograd recorded the unit, so
  /// before_backward() follows when a gradient reaches its outputs; `inputs_need_grad`:
  /// after_backward() follows too.
  virtual void after_forward(std::string_view unit, bool needs_backward, bool inputs_need_grad) = 0;
  /// Gradients of the outputs are complete; the unit's backward pass, and its forward pass when it
  /// is recomputed, read the parameters from now on. Not called for the root.
  virtual void before_backward(std::string_view unit) = 0;
  /// Gradients of the inputs are complete. Those of the unit's parameters may still be under way.
  virtual void after_backward(std::string_view unit) = 0;
};

/// Runs `function(inputs)` as unit `unit`, through nn::recompute() when `recomputed`. Without hooks
/// that is all. With them, outputs and inputs that need gradients pass through nodes that only
/// report; values and gradients keep their bits.
std::vector<at::Tensor> run_unit(UnitHooks* hooks, const std::string& unit, bool recomputed,
                                 UnitFunction function, const std::vector<at::Tensor>& inputs);

/// Runs a whole forward pass, everything between the first and the last read of a parameter.
template <class Function>
auto run_root(UnitHooks* hooks, Function&& function) {
  if (hooks == nullptr) return function();
  hooks->before_forward(kRootUnit);
  auto out = function();
  hooks->after_forward(kRootUnit, false, false);
  return out;
}

}  // namespace longship::nn
