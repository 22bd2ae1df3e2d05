// Tensors of the weights file that are several parameters of the state, row by row.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "io/tensor_io.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/checkpoint_state.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;
using longship::testing::expect_error;

at::Tensor numbers(std::vector<int64_t> shape, double first) {
  int64_t numel = 1;
  for (const int64_t dim : shape) numel *= dim;
  return at::arange(numel, at::TensorOptions().dtype(at::kFloat)).add_(first).reshape(shape);
}

at::Tensor row_numbers(const std::vector<int64_t>& rows) {
  at::Tensor out = at::full({static_cast<int64_t>(rows.size())}, 0, at::kLong);
  std::copy(rows.begin(), rows.end(), out.mutable_data_ptr<int64_t>());
  return out;
}

ExportRows rows_of_state(const std::string& source, std::vector<int64_t> rows) {
  ExportRows out;
  out.part.source = source;
  out.rows = std::move(rows);
  return out;
}

TEST(ExportRows, TableOfTwoShardedParts) {
  const fs::path folder = longship::testing::scratch_dir("export_rows");
  fs::create_directories(folder / "state");
  const at::Tensor used = numbers({2, 3, 5}, 100), rest = numbers({3, 3, 5}, 200);
  const std::vector<StateSlice> all = whole_slices({{"weights.t", used}, {"param.t#unused", rest}});
  for (int64_t rank = 0; rank < 3; ++rank) write_shard(folder, rank, 3, even_share(all, rank, 3));
  write_shard_index(folder, 3, "fsdp");
  const io::ShardedState state = io::ShardedState::open(folder / "state");

  ExportTensor both;
  both.spec = {"t", io::DType::kF32, {5, 3, 5}};
  both.pieces = pieces_of(
      "t", both.spec.shape,
      std::vector{rows_of_state("weights.t", {1, 4}), rows_of_state("param.t#unused", {0, 2, 3})});
  EXPECT_EQ(both.pieces.size(), 4U);  // rows 2 and 3 lie behind each other
  ExportTensor half;                  // the unused rows are a tensor in memory
  half.spec = {"u", io::DType::kBF16, {5, 3, 5}};
  ExportRows kept;
  kept.part.literal = rest;
  kept.rows = {0, 2, 3};
  half.pieces =
      pieces_of("u", half.spec.shape, std::vector{rows_of_state("weights.t", {1, 4}), kept});
  write_model(folder / "model.safetensors", std::vector{both, half}, state);

  const auto written = io::load_tensors(folder / "model.safetensors");
  const at::Tensor table = written.at("t");
  const std::vector<at::Tensor> expected{rest[0], used[0], rest[1], rest[2], used[1]};
  for (int64_t row = 0; row < 5; ++row) {
    const at::Tensor& own = expected[static_cast<size_t>(row)];
    EXPECT_TRUE(at::equal(table[row], own)) << row;
    EXPECT_TRUE(at::equal(written.at("u")[row], own.to(at::kBFloat16))) << row;
  }

  both.spec.shape = {6, 3, 5};
  expect_error<CheckpointError>(
      [&] { write_model(folder / "m.safetensors", std::vector{both}, state); }, {"'t'", "75"});
  fs::remove_all(folder);
}

TEST(ExportRows, EveryRowIsInOnePart) {
  const std::vector<int64_t> shape{3, 2};
  const auto pieces = [&](std::vector<int64_t> a, std::vector<int64_t> b) {
    return pieces_of("t", shape, std::vector{rows_of_state("a", a), rows_of_state("b", b)});
  };
  EXPECT_EQ(pieces({0, 1}, {2}).size(), 2U);
  expect_error<CheckpointError>([&] { pieces({0}, {2}); }, {"'t'", "row 1 is in no part"});
  expect_error<CheckpointError>([&] { pieces({0, 1}, {1, 2}); }, {"'t'", "row 1"});
  expect_error<CheckpointError>([&] { pieces({0, 1}, {2, 3}); }, {"'t'", "row 3"});
}

TEST(ExportRows, TablesOfATrainingState) {
  const io::NamedTensors state{{"rows.t", row_numbers({1})},
                               {"rows.t#unused", row_numbers({0, 2})},
                               {"scale", numbers({1}, 0)}};
  const auto tables = tables_of(state);
  ASSERT_EQ(tables.size(), 1U);
  const TableParts expected{{"t", {1}}, {"t#unused", {0, 2}}};
  EXPECT_EQ(tables.at("t"), expected);
  const io::NamedTensors broken{{"rows.t", numbers({1}, 0)}};
  expect_error<CheckpointError>([&] { tables_of(broken); }, {"rows.t"});
}

}  // namespace
}  // namespace longship::train
