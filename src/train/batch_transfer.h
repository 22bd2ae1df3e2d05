#pragma once
// Batches on their way to the device and into the inputs of graphs. The many small tensors of a
// batch (states, keys, tables) lie in one block, so that one copy moves them all: a step of small
// kernels would spend more on twenty copies than on what they hold.

#include <memory>
#include <vector>

#include "models/spec.h"

namespace longship::train {

using Batches = std::vector<std::unique_ptr<models::Batch>>;

/// Copies every tensor of `batch` that is not there yet to `device`, non-blocking from pinned
/// memory. On a CUDA device the small ones become views of one block.
void send(models::Batch& batch, at::Device device);

/// Batches like the first `count` of `micro`, with memory of their own that a graph reads; tensors
/// that lie in one block there do so here.
Batches graph_inputs(const Batches& micro, size_t count);

/// Copies the values of `source`, a batch of equal signature, into the tensors of `target`, without
/// waiting where the device allows it: block by block where both lie alike, else tensor by tensor.
void take_values(models::Batch& target, models::Batch& source);

}  // namespace longship::train
