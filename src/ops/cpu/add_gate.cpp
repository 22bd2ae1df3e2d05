// CPU implementation of add_gate: the oracle of the CUDA kernels and the fast path of a laptop run.
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "ops/cpu/norm_rows.h"

namespace longship::ops {
namespace {

using cpu::ChunkSums;
using cpu::GroupRows;
using cpu::RowChunks;
using Tensor = at::Tensor;
using OptionalTensor = std::optional<at::Tensor>;

constexpr int64_t kGrain = 16;

template <class T, class Acc>
void forward(const GroupedRows& rows, const Tensor& h, const Tensor& branch,
             const OptionalTensor& gate, Tensor& out) {
  const GroupRows<Acc> gate_rows(gate);
  const T* h_data = h.const_data_ptr<T>();
  const T* branch_data = branch.const_data_ptr<T>();
  T* out_data = out.mutable_data_ptr<T>();
  at::parallel_for(0, rows.num_rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Acc* g = gate_rows.row(row / (rows.num_rows / rows.num_groups));
      for (int64_t i = 0; i < rows.width; ++i) {
        const int64_t at = row * rows.width + i;
        const Acc b = static_cast<Acc>(branch_data[at]);
        out_data[at] = static_cast<T>(static_cast<Acc>(h_data[at]) + (g ? b * g[i] : b));
      }
    }
  });
}

template <class T, class Acc>
Tensor backward(const GroupedRows& rows, const Tensor& dout, const Tensor& branch,
                const Tensor& gate, Tensor& dbranch) {
  const GroupRows<Acc> gate_rows(gate);
  const RowChunks chunks(rows);
  ChunkSums<Acc> sums(chunks, rows.width);
  const T* dout_data = dout.const_data_ptr<T>();
  const T* branch_data = branch.const_data_ptr<T>();
  T* dbranch_data = dbranch.mutable_data_ptr<T>();
  at::parallel_for(0, chunks.num_chunks, 1, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const Acc* g = gate_rows.row(chunks.group(chunk));
      Acc* sum = sums.row(chunk);
      for (int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row) {
        for (int64_t i = 0; i < rows.width; ++i) {
          const int64_t at = row * rows.width + i;
          const Acc d = static_cast<Acc>(dout_data[at]);
          sum[i] += d * static_cast<Acc>(branch_data[at]);
          dbranch_data[at] = static_cast<T>(d * g[i]);
        }
      }
    }
  });
  return sums.total(gate, gate);
}

Tensor add_gate_cpu(const Tensor& h, const Tensor& branch, const OptionalTensor& gate) {
  const GroupedRows rows = check_grouped_rows("add_gate", h, {{"gate", gate}});
  check_like("add_gate", "branch", branch, h);
  Tensor out = at::empty_like(h);
  dispatch_float("add_gate", h.scalar_type(), [&](auto element, auto acc) {
    forward<decltype(element), decltype(acc)>(rows, h, branch, gate, out);
  });
  return out;
}

std::tuple<Tensor, Tensor> add_gate_backward_cpu(const Tensor& dout, const Tensor& branch,
                                                 const Tensor& gate) {
  const GroupedRows rows = check_grouped_rows("add_gate_backward", dout, {{"gate", gate}});
  check_like("add_gate_backward", "branch", branch, dout);
  Tensor dbranch = at::empty_like(branch);
  Tensor dgate;
  dispatch_float("add_gate_backward", dout.scalar_type(), [&](auto element, auto acc) {
    dgate = backward<decltype(element), decltype(acc)>(rows, dout, branch, gate, dbranch);
  });
  return {dbranch, dgate};
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("add_gate", add_gate_cpu);
  m.impl("add_gate_backward", add_gate_backward_cpu);
}

}  // namespace
}  // namespace longship::ops
