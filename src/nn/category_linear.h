#pragma once
// Affine layers with one weight per category; every sample of a batch names its category.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/module.h"

namespace longship::nn {

/// The categories of a batch. The ids are read on the device only, so a captured pass serves
/// whatever they become.
struct Categories {
  at::Tensor ids;  // [B] int64 on the device of the weights, each below the number of categories
  /// Known on the host: all ids are equal. Then one product serves the whole batch and one weight
  /// is read; else every sample gets a copy of its own.
  bool same = false;
};

/// Rows of `table` [E, ...] by `index` [M] -> [M, ...]. The gradient adds the samples in their
/// order, so it repeats bit for bit; rows that no sample names get exact zeros.
at::Tensor select_categories(const at::Tensor& table, const at::Tensor& index);

/// y_b = x_b W[id_b] + b[id_b]. Weights are stored [E, in, out], transposed with respect to
/// nn::Linear. Source: Isaac-GR00T CategorySpecificLinear.
class CategoryLinear : public Module {
 public:
  CategoryLinear(int64_t categories, int64_t in, int64_t out);
  /// x [B, T, in] -> [B, T, out]. The product runs in `gemm`; the bias is added in its own dtype,
  /// to which the result is promoted. Throws ShapeError.
  at::Tensor forward(const at::Tensor& x, const Categories& categories, at::ScalarType gemm) const;

  at::Tensor weight;  // "W" [E, in, out]
  at::Tensor bias;    // "b" [E, out]
};

/// layer2(relu(layer1(x))).
class CategoryMlp : public Module {
 public:
  CategoryMlp(int64_t categories, int64_t in, int64_t hidden, int64_t out);
  at::Tensor forward(const at::Tensor& x, const Categories& categories, at::ScalarType gemm) const;

  CategoryLinear layer1, layer2;
};

}  // namespace longship::nn
