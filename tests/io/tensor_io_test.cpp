#include "io/tensor_io.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace longship::io {
namespace {

using longship::testing::expect_error;
using longship::testing::scratch_dir;

TEST(TensorIo, EveryDTypeSurvivesARoundTrip) {
  const auto path = scratch_dir("tensor_io") / "a.safetensors";
  NamedTensors tensors;
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(to_dtype(to_scalar_type(dtype)), dtype);
    tensors.emplace_back(dtype_name(dtype),
                         at::arange(6).reshape({2, 3}).to(to_scalar_type(dtype)));
  }
  save_tensors(path, tensors, {{"step", "3"}});
  const std::map<std::string, at::Tensor> loaded = load_tensors(path);
  ASSERT_EQ(loaded.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor& other = loaded.at(name);
    EXPECT_EQ(other.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(other.to(at::kDouble), tensor.to(at::kDouble))) << name;
  }
  EXPECT_EQ(SafetensorsFile::open(path).metadata().at("step"), "3");
}

TEST(TensorIo, StridedTensorsAreStoredInTheirOrder) {
  const auto path = scratch_dir("tensor_io_strides") / "a.safetensors";
  const at::Tensor base = at::arange(12, at::kFloat).reshape({3, 4});
  save_tensors(path, {{"t", base.t()},
                      {"column", base.select(1, 2)},
                      {"scalar", at::arange(1, at::kFloat).squeeze()}});
  const auto loaded = load_tensors(path);
  EXPECT_TRUE(at::equal(loaded.at("t"), base.t()));
  EXPECT_TRUE(loaded.at("t").is_contiguous());
  EXPECT_TRUE(at::equal(loaded.at("column"), base.select(1, 2)));
  EXPECT_EQ(loaded.at("scalar").dim(), 0);
}

TEST(TensorIo, LoadedTensorsOwnTheirMemory) {
  const auto path = scratch_dir("tensor_io_own") / "a.safetensors";
  save_tensors(path, {{"w", at::arange(4, at::kFloat)}});
  at::Tensor tensor;
  {
    const SafetensorsFile file = SafetensorsFile::open(path);
    tensor = to_tensor(file, file.at("w"));
  }
  tensor.add_(1);
  EXPECT_TRUE(at::equal(tensor, at::arange(1, 5, at::kFloat)));
  EXPECT_TRUE(at::equal(load_tensors(path).at("w"), at::arange(4, at::kFloat)));
}

TEST(TensorIo, EmptyTensorsKeepTheirShape) {
  const auto path = scratch_dir("tensor_io_empty") / "a.safetensors";
  save_tensors(path, {{"none", at::zeros({0, 7}, at::kBFloat16)}});
  const at::Tensor loaded = load_tensors(path).at("none");
  EXPECT_EQ(loaded.sizes(), (at::IntArrayRef{0, 7}));
}

TEST(TensorIo, WhatCannotBeStoredIsNamed) {
  const auto path = scratch_dir("tensor_io_refuse") / "a.safetensors";
  expect_error<CheckpointError>(
      [&] {
        save_tensors(path, {{"w", at::Tensor()}});
      },
      {path.string(), "'w'", "undefined"});
  expect_error<CheckpointError>(
      [&] {
        save_tensors(path, {{"w", at::zeros({2}, at::kComplexFloat)}});
      },
      {"ComplexFloat"});
  expect_error<CheckpointError>(
      [&] {
        save_tensors(path, {{"w", at::empty({2}, at::TensorOptions().device(at::kMeta))}});
      },
      {"'w'", "meta"});
}

}  // namespace
}  // namespace longship::io
