#include "dist/row_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/error.h"
#include "ops/row_lists.h"

namespace longship::dist {
namespace {

// No collective knows int32: its bytes are as good.
at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.flatten().view(at::kByte);
}

}  // namespace

RowExchange::RowExchange(Communicator& communicator, at::Tensor grad, at::Tensor flags,
                         int64_t most_rows)
    : communicator_(communicator), grad_(std::move(grad)), flags_(std::move(flags)) {
  LS_CHECK(grad_.dim() == 2 && flags_.numel() == grad_.size(0) && most_rows > 0, InternalError,
           "row exchange: {} dimensions of a table, {} flags, lists of {} rows", grad_.dim(),
           flags_.numel(), most_rows);
  const int64_t world = communicator_.world_size();
  values_ = at::zeros({world, most_rows, grad_.size(1)}, grad_.options().requires_grad(false));
  const at::TensorOptions ints = values_.options().dtype(at::kInt);
  numbers_ = at::full({world, most_rows + 1}, -1, ints);
  places_ = at::empty({world, grad_.size(0)}, ints);
}

void RowExchange::send(const std::string& detail) {
  const int64_t rank = communicator_.rank();
  const at::Tensor values = values_[rank], numbers = numbers_[rank];
  ops::pack_rows(grad_, flags_, numbers, values, /*clear=*/true);
  values_handle_ =
      communicator_.all_gather(values_.flatten(), values.flatten(), "grad", detail + " rows");
  numbers_handle_ = communicator_.all_gather(as_bytes(numbers_), as_bytes(numbers), "grad",
                                             detail + " row numbers");
}

void RowExchange::wait() {
  values_handle_.wait();
  numbers_handle_.wait();
}

RowExchange::Part RowExchange::in_table(const at::Tensor& out, int64_t begin) const {
  const int64_t first = std::min(begin, grad_.numel());
  return {out.narrow(0, 0, std::min(out.numel(), grad_.numel() - first)), first};
}

void RowExchange::clear(const at::Tensor& out, int64_t begin) const {
  const Part part = in_table(out, begin);
  ops::clear_row_lists(part.out, part.begin, numbers_, grad_.size(0), grad_.size(1));
}

void RowExchange::add_up(const at::Tensor& out, int64_t begin) const {
  const Part part = in_table(out, begin);
  ops::sum_row_lists(part.out, part.begin, numbers_, values_, places_,
                     static_cast<double>(communicator_.world_size()), flags_);
}

int64_t RowExchange::bytes() const {
  return static_cast<int64_t>(values_.nbytes() + numbers_.nbytes() + places_.nbytes());
}

}  // namespace longship::dist
