// Batches keep their values on the way to the device and into the inputs of graphs.
#include "train/batch_transfer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "plain_batch.h"
#include "runtime/device.h"

namespace longship::train {
namespace {

using testing::PlainBatch;

/// "a" [2, 3] fp32 and "b" [4] int64 in one block, "c" [5] fp32 in memory of its own.
PlainBatch in_block(float value) {
  const at::Tensor block = at::empty({512}, at::kByte);
  PlainBatch out;
  out.values = {{"a", block.narrow(0, 0, 24).view(at::kFloat).view({2, 3})},
                {"b", block.narrow(0, 256, 32).view(at::kLong)},
                {"c", at::full({5}, value + 2)}};
  out.values[0].second.fill_(value);
  out.values[1].second.fill_(static_cast<int64_t>(value) + 1);
  return out;
}

bool one_block(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

void expect_values(PlainBatch& batch, float value) {
  EXPECT_TRUE(batch.values[0].second.equal(at::full({2, 3}, value)));
  EXPECT_TRUE(batch.values[1].second.equal(at::full({4}, static_cast<int64_t>(value) + 1)));
  EXPECT_TRUE(batch.values[2].second.equal(at::full({5}, value + 2)));
}

TEST(BatchTransfer, InputsLieAsTheBatchDoes) {
  Batches micro;
  micro.push_back(in_block(1).clone());
  const Batches inputs = graph_inputs(micro, 1);
  auto& own = static_cast<PlainBatch&>(*inputs[0]);
  const auto& given = static_cast<PlainBatch&>(*micro[0]);
  EXPECT_TRUE(one_block(own.values[0].second, own.values[1].second));
  EXPECT_FALSE(one_block(own.values[0].second, own.values[2].second));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(one_block(own.values[i].second, given.values[i].second));
    EXPECT_EQ(own.values[i].second.storage_offset(), given.values[i].second.storage_offset());
    EXPECT_EQ(own.values[i].second.scalar_type(), given.values[i].second.scalar_type());
  }
  take_values(own, *micro[0]);
  expect_values(own, 1);
  PlainBatch next = in_block(7);
  take_values(own, next);
  expect_values(own, 7);
}

TEST(BatchTransfer, BatchesThatLieDifferentlyKeepTheirValues) {
  PlainBatch apart = in_block(3);
  for (auto& [name, tensor] : apart.values) tensor = tensor.clone();
  PlainBatch target = in_block(0);
  take_values(target, apart);
  expect_values(target, 3);
  PlainBatch source = in_block(5);
  take_values(apart, source);
  expect_values(apart, 5);
}

// A block copied as a whole must not overwrite what came into it on its own.
TEST(BatchTransfer, AnotherTensorInTheBlockKeepsItsValue) {
  const at::Tensor block = at::empty({1024}, at::kByte);
  PlainBatch target = in_block(0);
  const auto place = [&](int64_t at, const at::Tensor& like) {
    return block.narrow(0, at, like.numel() * static_cast<int64_t>(like.element_size()))
        .view(like.scalar_type())
        .view(like.sizes());
  };
  target.values[0].second = place(0, target.values[0].second);
  target.values[1].second = place(256, target.values[1].second);
  target.values[2].second = place(512, target.values[2].second);
  const at::Tensor other = at::full({1024}, 9, at::kByte);
  PlainBatch source = in_block(4);
  source.values[0].second = other.narrow(0, 0, 24).view(at::kFloat).view({2, 3}).fill_(4);
  source.values[1].second = other.narrow(0, 256, 32).view(at::kLong).fill_(5);
  take_values(target, source);
  expect_values(target, 4);
}

TEST(BatchTransferGpu, TheSmallTensorsOfABatchLieInOneBlock) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  PlainBatch batch;
  batch.values = {{"scalar", at::full({}, 3.5F)},
                  {"empty", at::empty({0, 4})},
                  {"odd", at::arange(7, at::kByte)},
                  {"ids", at::arange(33, at::kLong).view({3, 11})},
                  {"half", at::arange(5, at::kFloat).to(at::kBFloat16)},
                  {"strided", at::arange(12, at::kFloat).view({3, 4}).t()},
                  {"large", at::arange(1 << 18, at::kFloat)}};
  const PlainBatch host = batch;
  send(batch, at::Device(at::kCUDA, 0));
  for (size_t i = 0; i < batch.values.size(); ++i) {
    const at::Tensor& there = batch.values[i].second;
    EXPECT_TRUE(there.is_cuda()) << host.values[i].first;
    EXPECT_EQ(there.scalar_type(), host.values[i].second.scalar_type());
    EXPECT_TRUE(there.cpu().equal(host.values[i].second)) << host.values[i].first;
    EXPECT_EQ(one_block(there, batch.values[0].second), host.values[i].first != "large");
  }
}

}  // namespace
}  // namespace longship::train
