#pragma once
// What a captured step relies on: shapes of its inputs, the path that they take through the model,
// and places in memory of everything it touches. Checked before every replay, because a replay with
// any of it changed computes something else without a word. Random numbers are inputs, drawn from
// keys in the batch; work that draws from a generator with a state is not captured at all
// (generator_watch.h).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/spec.h"

namespace longship::train {

class GraphContract {
 public:
  using Named = std::pair<std::string, at::Tensor>;

  GraphContract() = default;
  /// `inputs`: the batches that the graph reads, one per micro-batch of a replay. `touched`: what
  /// else it reads and writes in place (parameters, moments); undefined tensors are left out.
  GraphContract(const std::vector<std::unique_ptr<models::Batch>>& inputs,
                const std::vector<Named>& touched);

  /// Why the graph must not be replayed for a step of these micro-batches, "" when it may.
  /// `one_input`: the graph has one input, which takes the micro-batches one after another.
  std::string mismatch(const std::vector<std::unique_ptr<models::Batch>>& micro,
                       bool one_input) const;
  /// Why the graph must not be replayed for `batch` as micro-batch `index`, "" when it may: the
  /// first tensor whose name, shape, dtype or device is not that of its input.
  std::string input_mismatch(models::Batch& batch, size_t index) const;
  /// The first tensor that is no longer where it was, or no longer of its shape; "" when none is.
  std::string memory_mismatch() const;
  int64_t num_tensors() const { return static_cast<int64_t>(touched_.size()); }

 private:
  struct Input {
    std::string name;
    std::vector<int64_t> sizes;
    at::ScalarType dtype = at::kFloat;
    c10::Device device = at::kCPU;
  };
  struct Touched {
    std::string name;
    at::Tensor tensor;  // the handle that the model or the optimizer holds
    const void* address = nullptr;
    std::vector<int64_t> sizes, strides;
  };
  std::vector<std::string> signatures_;
  std::vector<std::vector<Input>> inputs_;
  std::vector<Touched> touched_;
};

/// What tells the graphs of steps apart: equal where one may serve the other.
std::string graph_key(const std::vector<std::unique_ptr<models::Batch>>& micro);
/// Graphs that are kept at most: each holds its own input buffers.
inline constexpr size_t kMaxGraphs = 16;
/// Says that the graphs of `what` are dropped because there are more shapes than kMaxGraphs.
void warn_graphs_dropped(std::string_view what);

}  // namespace longship::train
