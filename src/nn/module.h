#pragma once
// A small module base: ordered parameters and children whose dotted names are the public checkpoint
// names.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longship::nn {

/// Whether a parameter has storage: not on the meta device, and not while its values are elsewhere
/// (a sharded unit that is not gathered).
inline bool has_memory(const at::Tensor& parameter) {
  return !parameter.is_meta() && parameter.storage().nbytes() > 0;
}

/// Owner of named parameters. Derived classes keep the tensors and child modules as members and
/// register them in the order in which they should be listed. Constructors create parameters on the
/// meta device: shapes only, no memory; `materialise` gives them storage. Not copyable or movable,
/// because the registry points at members.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// (dotted name, tensor) of every parameter, own ones first, then children in registration order.
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;

  /// Calls `visit(name, tensor)` for every parameter in the same order; the tensor may be replaced.
  void for_each_parameter(const std::function<void(const std::string&, at::Tensor&)>& visit);

  /// Number of elements over all parameters.
  int64_t num_elements() const;

  /// Replaces every (meta) parameter by uninitialised storage on `device` in the dtype that
  /// `dtype_of(name)` answers; with the meta device only the dtype changes. Parameters of one stack
  /// lie behind each other in one allocation when they have one dtype. Without `memory` they have
  /// shape, dtype and device, and an empty storage of their own: whoever shards the model replaces
  /// it.
  void materialise(at::Device device,
                   const std::function<at::ScalarType(std::string_view)>& dtype_of,
                   bool memory = true);

  /// Names of the members of every stack, in order.
  std::vector<std::vector<std::string>> stacks() const;

 protected:
  /// Registers `member` and makes it a meta tensor of `shape`, fp32.
  void register_parameter(std::string name, at::Tensor& member, std::vector<int64_t> shape);
  void register_child(std::string name, Module& child);
  /// Parameters, own or of descendants, that differ in the first dimension only and are multiplied
  /// with the same input: they get adjacent storage, so that one product serves all without a copy
  /// (nn::stacked_linear). A parameter belongs to one stack at most.
  void register_stack(std::vector<at::Tensor*> members);

 private:
  void walk(const std::string& prefix,
            const std::function<void(const std::string&, at::Tensor&)>& visit) const;
  void collect_stacks(std::vector<std::vector<at::Tensor*>>& out) const;

  std::vector<std::pair<std::string, at::Tensor*>> parameters_;
  std::vector<std::pair<std::string, Module*>> children_;
  std::vector<std::vector<at::Tensor*>> stacks_;
};

}  // namespace longship::nn
