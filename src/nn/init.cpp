#include "nn/init.h"

#include <ATen/ops/empty.h>

#include "base/rng.h"
#include "ops/random.h"

namespace longship::nn {
namespace {

constexpr double kTruncation = 3.0;

}  // namespace

void init_normal(at::Tensor& parameter, std::string_view name, uint64_t seed, double std) {
  if (parameter.is_meta()) return;
  const RngKey key{seed, static_cast<uint64_t>(RngStream::kInit), 0, hash_name(name)};
  at::Tensor target = parameter.detach();
  if (target.scalar_type() == at::kFloat && target.is_contiguous()) {
    ops::fill_truncated_normal_(target, key, std, kTruncation);
    return;
  }
  at::Tensor precise = at::empty(parameter.sizes(), parameter.options().dtype(at::kFloat));
  ops::fill_truncated_normal_(precise, key, std, kTruncation);
  target.copy_(precise);
}

void init_constant(at::Tensor& parameter, double value) {
  if (!parameter.is_meta()) parameter.detach().fill_(value);
}

}  // namespace longship::nn
