#include "nn/init.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace longship::nn {
namespace {

constexpr double kTruncation = 3.0;

}  // namespace

void init_normal(at::Tensor& parameter, std::string_view name, uint64_t seed, double std) {
  if (parameter.is_meta()) return;
  at::Tensor host = at::empty(parameter.sizes(), at::kFloat);
  const std::span<float> values(host.mutable_data_ptr<float>(), static_cast<size_t>(host.numel()));
  RngKey key{seed, static_cast<uint64_t>(RngStream::kInit), 0, hash_name(name)};
  fill_normal(key, values);
  std::vector<size_t> outside;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::abs(values[i]) > kTruncation) outside.push_back(i);
  }
  while (!outside.empty()) {
    ++key.step;  // a fresh stream for the values drawn again
    std::vector<float> again(outside.size());
    fill_normal(key, std::span<float>(again));
    std::vector<size_t> still;
    for (size_t i = 0; i < outside.size(); ++i) {
      values[outside[i]] = again[i];
      if (std::abs(again[i]) > kTruncation) still.push_back(outside[i]);
    }
    outside = std::move(still);
  }
  for (float& v : values) v = static_cast<float>(v * std);
  parameter.detach().copy_(host);
}

void init_constant(at::Tensor& parameter, double value) {
  if (!parameter.is_meta()) parameter.detach().fill_(value);
}

}  // namespace longship::nn
