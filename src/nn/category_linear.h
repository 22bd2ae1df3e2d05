#pragma once
// Affine layers with one weight per category; every sample of a batch names its category.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "nn/module.h"

namespace longship::nn {

/// Behind the name of a parameter: the categories of it that no pass reads.
inline constexpr std::string_view kUnusedCategories = "#unused";

/// The categories of 0 .. total - 1 that are not in `used`, ascending.
std::vector<int64_t> unused_categories(std::span<const int64_t> used, int64_t total);
/// ids [B] int64, each one of `used` -> their places in it, on the device, whatever the ids become.
/// The ids themselves where `used` is empty (all), and where it is one, which nobody looks up.
at::Tensor local_categories(const at::Tensor& ids, std::span<const int64_t> used);

/// The categories of a batch. The ids are read on the device only, so a captured pass serves
/// whatever they become.
struct Categories {
  /// [B] int64 on the device of the weights: rows of a layer's weights, so local_categories() where
  /// it has some categories only. Not read where it has one.
  at::Tensor ids;
  /// Known on the host: all ids are equal. Then one product serves the whole batch and one weight
  /// is read; else every sample gets a copy of its own.
  bool same = false;
};

/// Rows of `table` [E, ...] by `index` [M] -> [M, ...]. The gradient adds the samples in their
/// order, so it repeats bit for bit; rows that no sample names get exact zeros.
at::Tensor select_categories(const at::Tensor& table, const at::Tensor& index);

/// y_b = x_b W[id_b] + b[id_b]. Weights are stored [E, in, out], transposed with respect to
/// nn::Linear. Source: Isaac-GR00T CategorySpecificLinear.
///
/// Where only the categories `used` are read, "W" and "b" hold these, k rows in ascending order, so
/// that gradients and whatever else a trained parameter costs are of that size; the rest are
/// parameters of their own, "W#unused" and "b#unused", [E - k, ...], which are only kept.
class CategoryLinear : public Module {
 public:
  /// `used`: ascending; empty: all, and nothing is unused. Throws ConfigError for other numbers.
  CategoryLinear(int64_t categories, int64_t in, int64_t out,
                 const std::vector<int64_t>& used = {});
  /// x [B, T, in] -> [B, T, out]. The product runs in `gemm`; the bias is added in its own dtype,
  /// to which the result is promoted. Throws ShapeError.
  at::Tensor forward(const at::Tensor& x, const Categories& categories, at::ScalarType gemm) const;

  at::Tensor weight;  // "W" [E or k, in, out]
  at::Tensor bias;    // "b" [E or k, out]

 private:
  at::Tensor unused_weight_, unused_bias_;  // undefined where all categories are used
};

/// layer2(relu(layer1(x))).
class CategoryMlp : public Module {
 public:
  CategoryMlp(int64_t categories, int64_t in, int64_t hidden, int64_t out,
              const std::vector<int64_t>& used = {});
  at::Tensor forward(const at::Tensor& x, const Categories& categories, at::ScalarType gemm) const;

  CategoryLinear layer1, layer2;
};

}  // namespace longship::nn
