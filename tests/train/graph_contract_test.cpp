// What must be as it was when a step was captured.
#include "train/graph_contract.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>

#include "plain_batch.h"

namespace longship::train {
namespace {

using testing::PlainBatch;

PlainBatch batch_of(std::vector<int64_t> shape, at::ScalarType dtype = at::kFloat) {
  PlainBatch out;
  out.values = {{"state", at::zeros({2, 3})}, {"actions", at::zeros(shape, dtype)}};
  return out;
}

struct Captured {
  Captured() {
    inputs.push_back(batch_of({2, 4}).clone());
    contract = GraphContract(inputs, {{"parameter w", weight}, {"average of w", at::Tensor()}});
  }
  std::vector<std::unique_ptr<models::Batch>> inputs;
  at::Tensor weight = at::zeros({4, 5});
  GraphContract contract;
};

TEST(GraphContract, AnEqualStepFits) {
  Captured c;
  PlainBatch batch = batch_of({2, 4});
  EXPECT_EQ(c.contract.input_mismatch(batch, 0), "");
  EXPECT_EQ(c.contract.memory_mismatch(), "");
  EXPECT_EQ(c.contract.num_tensors(), 3);  // two inputs and the weight
  c.weight.fill_(2);                       // other values in the same place
  EXPECT_EQ(c.contract.memory_mismatch(), "");
}

TEST(GraphContract, NamesTheInputThatDiffers) {
  Captured c;
  PlainBatch longer = batch_of({2, 5});
  EXPECT_EQ(c.contract.input_mismatch(longer, 0),
            "input 'actions' is [2, 5] Float, the graph was captured with [2, 4] Float");
  PlainBatch narrow = batch_of({2, 4}, at::kBFloat16);
  EXPECT_EQ(c.contract.input_mismatch(narrow, 0),
            "input 'actions' is [2, 4] BFloat16, the graph was captured with [2, 4] Float");
  PlainBatch other = batch_of({2, 4});
  other.values[1].first = "features";
  EXPECT_EQ(c.contract.input_mismatch(other, 0), "input 'features' where the graph has 'actions'");
  PlainBatch fewer = batch_of({2, 4});
  fewer.values.pop_back();
  EXPECT_EQ(c.contract.input_mismatch(fewer, 0), "the step has 1 inputs, the graph 2");
  PlainBatch path = batch_of({2, 4});
  path.mark = "two grids";
  EXPECT_EQ(c.contract.input_mismatch(path, 0),
            "the batch is 'two grids', the graph was captured with 'plain'");
  EXPECT_NE(c.contract.input_mismatch(path, 1), "");
}

TEST(GraphContract, NamesWhatHasMoved) {
  Captured c;
  const at::Tensor before = c.weight.detach();
  c.weight.set_data(at::zeros({4, 5}));
  EXPECT_EQ(c.contract.memory_mismatch().find("parameter w has moved from"), 0U)
      << c.contract.memory_mismatch();
  c.weight.set_data(before);
  EXPECT_EQ(c.contract.memory_mismatch(), "");
  c.weight.set_data(before.view({5, 4}));
  EXPECT_EQ(c.contract.memory_mismatch(),
            "parameter w is [5, 4] with strides [4, 1], at the capture [4, 5] with [5, 1]");
  *c.inputs[0]->tensors()[0].second = at::zeros({2, 3});
  c.weight.set_data(before);
  EXPECT_EQ(c.contract.memory_mismatch(), "") << "the contract holds the graph's own input";
}

}  // namespace
}  // namespace longship::train
