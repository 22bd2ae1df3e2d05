#pragma once
// The mean over the ranks of a gradient table of which each rank has touched few rows: every rank
// packs its rows into a list, all get all lists, and each adds them up in rank order. What moves
// goes by the rows, not by the table.
//
//   RowExchange rows(communicator, grad, flags, most_rows);
//   communicator.share(rows.exchanged());
//   for each step:
//     rows.clear(out, 0);                       // the means of the step before
//     (backward passes add to `grad` and set flags)
//     rows.send("bucket 7");                    // `grad` is zeros again
//     rows.wait();
//     rows.add_up(out, 0);                      // `out` may be `grad`
//
// All buffers are made in the constructor and stay where they are, so a step can be captured in a
// CUDA graph where the backend can.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace longship::dist {

class RowExchange {
 public:
  /// grad [V, C] fp32 or bf16 and flags [V] uint8, contiguous, on the device of the group: rows
  /// with flag 0 hold zeros, and at most `most_rows` of a rank hold anything else in a step. Should
  /// more do so, the sums are NaN. Ranks agree on V, C and most_rows.
  RowExchange(Communicator& communicator, at::Tensor grad, at::Tensor flags, int64_t most_rows);

  /// What is exchanged in every step, for Communicator::share().
  std::vector<at::Tensor> exchanged() const { return {values_, numbers_}; }
  /// Packs this rank's rows, which become zeros in the table, and begins to gather all lists
  /// ("grad").
  void send(const std::string& detail);
  void wait();
  /// The rows that the last add_up() has written in the same `out` become zeros, whoever has done
  /// what with them since.
  void clear(const at::Tensor& out, int64_t begin) const;
  /// After wait(). out [n] 1-D fp32 or bf16: elements [begin, begin + n) of the means, in the order
  /// of the table; those of rows that no rank has touched, and what is behind the table in a padded
  /// flat space, stay as they are. Sets the flags of all
  /// listed rows. A row that a rank has touched with zeros only is in no list; its flag may be set
  /// there alone, which changes nothing: its gradient and moments are zeros everywhere.
  void add_up(const at::Tensor& out, int64_t begin) const;

  /// Of the buffers.
  int64_t bytes() const;

 private:
  struct Part {
    at::Tensor out;
    int64_t begin = 0;
  };
  Part in_table(const at::Tensor& out, int64_t begin) const;

  Communicator& communicator_;
  at::Tensor grad_, flags_;
  at::Tensor values_;   // [W, K, C] as the table
  at::Tensor numbers_;  // [W, K + 1] int32: rows, and how many
  at::Tensor places_;   // [W, V] int32: where a row is in each list
  Handle values_handle_, numbers_handle_;
};

}  // namespace longship::dist
