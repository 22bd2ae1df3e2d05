// Layers with a weight per category: all of them, or those that are used.
#include "nn/category_linear.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "nn/tensor_math.h"
#include "support/expect_error.h"

namespace longship::nn {
namespace {

using testing::expect_error;

constexpr int64_t kIn = 3, kOut = 4, kAll = 6;

at::Tensor numbers(std::vector<int64_t> shape, uint64_t seed) {
  at::Tensor out = at::zeros(shape);
  fill_normal(make_key(seed, RngStream::kTest),
              std::span(out.mutable_data_ptr<float>(), static_cast<size_t>(out.numel())));
  return out;
}

at::Tensor ids_of(const std::vector<int64_t>& values) {
  at::Tensor out = at::zeros({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<int64_t>());
  return out;
}

/// With the rows of one table, whichever are used.
void fill(CategoryLinear& layer, const std::vector<int64_t>& used) {
  layer.materialise(at::kCPU, [](std::string_view) { return at::kFloat; });
  const at::Tensor weight = numbers({kAll, kIn, kOut}, 1), bias = numbers({kAll, kOut}, 2);
  for (auto& [name, tensor] : layer.named_parameters()) {
    const at::Tensor& table = name.starts_with("W") ? weight : bias;
    const bool rest = name.ends_with(kUnusedCategories);
    const std::vector<int64_t> rows = used.empty() || rest ? unused_categories(used, kAll) : used;
    ASSERT_EQ(tensor.size(0), static_cast<int64_t>(rows.size())) << name;
    for (size_t i = 0; i < rows.size(); ++i) tensor[static_cast<int64_t>(i)].copy_(table[rows[i]]);
    tensor.set_requires_grad(!rest);
  }
}

struct Result {
  at::Tensor y, weight_grad, bias_grad;
};

Result pass(const std::vector<int64_t>& used, const std::vector<int64_t>& ids, bool same) {
  CategoryLinear layer(kAll, kIn, kOut, used);
  fill(layer, used);
  const auto count = static_cast<int64_t>(ids.size());
  const at::Tensor x = numbers({count, 2, kIn}, 3), seed = numbers({count, 2, kOut}, 4);
  const at::Tensor y = layer.forward(x, {local_categories(ids_of(ids), used), same}, at::kFloat);
  (y * seed).sum().backward();
  return {y.detach(), layer.weight.grad(), layer.bias.grad()};
}

void expect_same(const std::vector<int64_t>& used, const std::vector<int64_t>& ids, bool same) {
  const Result all = pass({}, ids, same), some = pass(used, ids, same);
  EXPECT_TRUE(at::equal(all.y, some.y));
  ASSERT_EQ(some.weight_grad.size(0), static_cast<int64_t>(used.size()));
  for (size_t i = 0; i < used.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    EXPECT_TRUE(at::equal(some.weight_grad[row], all.weight_grad[used[i]])) << used[i];
    EXPECT_TRUE(at::equal(some.bias_grad[row], all.bias_grad[used[i]])) << used[i];
  }
}

TEST(CategoryLinearUsed, GivesTheBitsOfAll) {
  expect_same({4}, {4, 4, 4}, true);
  expect_same({1, 4}, {4, 4, 4}, true);
  expect_same({1, 4}, {4, 1, 4}, false);
  expect_same({0, 2, 5}, {5, 0, 5}, false);
}

TEST(CategoryLinearUsed, OneCategoryNeedsNoIds) {
  const Result plain = pass({4}, {4, 4, 4}, true), unknown = pass({4}, {4, 4, 4}, false);
  EXPECT_TRUE(at::equal(plain.y, unknown.y));
  EXPECT_TRUE(at::equal(plain.weight_grad, unknown.weight_grad));
}

TEST(CategoryLinearUsed, NamesAndShapes) {
  const CategoryLinear some(kAll, kIn, kOut, {1, 4}), all(kAll, kIn, kOut),
      every(kAll, kIn, kOut, {0, 1, 2, 3, 4, 5});
  std::vector<std::string> names;
  for (const auto& [name, tensor] : some.named_parameters()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"W", "b", "W#unused", "b#unused"}));
  EXPECT_EQ(some.num_elements(), all.num_elements());
  for (const CategoryLinear* layer : {&all, &every}) {
    EXPECT_EQ(layer->named_parameters().size(), 2U);
    EXPECT_EQ(layer->weight.size(0), kAll);
  }
}

TEST(CategoryLinearUsed, PlacesOfIds) {
  const std::vector<int64_t> used{1, 4, 5};
  EXPECT_TRUE(at::equal(local_categories(ids_of({4, 1, 5, 4}), used), ids_of({1, 0, 2, 1})));
  const at::Tensor ids = ids_of({3, 2});
  EXPECT_TRUE(local_categories(ids, {}).is_same(ids));
  EXPECT_EQ(unused_categories(used, kAll), (std::vector<int64_t>{0, 2, 3}));
}

TEST(CategoryLinearUsed, OtherNumbersAreRefused) {
  for (const std::vector<int64_t>& used :
       {std::vector<int64_t>{4, 1}, {1, 1}, {-1, 2}, {2, kAll}}) {
    expect_error<ConfigError>([&] { const CategoryLinear layer(kAll, kIn, kOut, used); },
                              {"ascending", "0 to 5"});
  }
}

}  // namespace
}  // namespace longship::nn
