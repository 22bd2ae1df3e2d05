// CPU implementations of dropout_mask and dropout: the oracles of the CUDA kernels.
#include "ops/dropout.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

#include "base/rng.h"
#include "ops/cpu/float_types.h"
#include "ops/dropout_check.h"

namespace longship::ops {
namespace {

constexpr int64_t kWords = 4;  // of a Philox block
constexpr int64_t kGrain = 1024;

/// Calls write(place, kept) for every element of every sample; each place is written by one thread.
template <class Write>
void for_each_element(const DropoutPlan& plan, const int64_t* keys, Write write) {
  const int64_t blocks = (plan.sample_size + kWords - 1) / kWords;
  at::parallel_for(0, plan.num_samples * blocks, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t flat = begin; flat < end; ++flat) {
      const int64_t sample = flat / blocks;
      const auto block = static_cast<uint64_t>(flat % blocks);
      const auto key = static_cast<uint64_t>(keys[sample]);
      const std::array<uint32_t, 4> words =
          philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), plan.site,
                      kDropoutPurpose},
                     {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
      const int64_t first = static_cast<int64_t>(block) * kWords;
      const int64_t count = std::min(kWords, plan.sample_size - first);
      for (int64_t i = 0; i < count; ++i) {
        write(sample * plan.sample_size + first + i,
              words[static_cast<size_t>(i)] >= plan.threshold);
      }
    }
  });
}

at::Tensor dropout_mask_cpu(const at::Tensor& keys, int64_t site, at::IntArrayRef shape, double p,
                            at::ScalarType dtype) {
  const DropoutPlan plan = check_dropout_mask("dropout_mask", keys, site, shape, p, dtype);
  at::Tensor mask = at::empty(shape, keys.options().dtype(dtype));
  dispatch_float("dropout_mask", dtype, [&]<class T, class Acc>(T, Acc) {
    T* out = mask.mutable_data_ptr<T>();
    const T multiplier = static_cast<T>(static_cast<Acc>(plan.multiplier));
    for_each_element(plan, keys.const_data_ptr<int64_t>(),
                     [&](int64_t at, bool kept) { out[at] = kept ? multiplier : T(0); });
  });
  return mask;
}

at::Tensor dropout_cpu(const at::Tensor& x, const at::Tensor& keys, int64_t site, double p) {
  const DropoutPlan plan = check_dropout(x, keys, site, p);
  at::Tensor y = at::empty_like(x);
  dispatch_float("dropout", x.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    const T* in = x.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    const Acc multiplier = static_cast<Acc>(plan.multiplier);
    for_each_element(plan, keys.const_data_ptr<int64_t>(), [&](int64_t at, bool kept) {
      out[at] = static_cast<T>(static_cast<Acc>(in[at]) * (kept ? multiplier : Acc(0)));
    });
  });
  return y;
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("dropout_mask", dropout_mask_cpu);
  m.impl("dropout", dropout_cpu);
}

}  // namespace
}  // namespace longship::ops
