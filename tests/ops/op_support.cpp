#include "op_support.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include <cmath>

namespace longship::ops::testing {

at::Tensor random(std::vector<int64_t> sizes, at::ScalarType type, at::Device device) {
  return at::randn(sizes, at::TensorOptions().dtype(at::kDouble)).to(device, type);
}

at::Tensor misaligned(const at::Tensor& x) {
  at::Tensor view = at::empty({x.numel() + 1}, x.options()).narrow(0, 1, x.numel()).view(x.sizes());
  view.copy_(x);
  return view;
}

at::Tensor leaf_on(const at::Tensor& x, at::Device device) {
  return x.detach().to(device, x.scalar_type(), false, true).set_requires_grad(true);
}

::testing::AssertionResult close(const at::Tensor& a, const at::Tensor& b, double atol,
                                 double rtol) {
  if (a.sizes() != b.sizes()) {
    return ::testing::AssertionFailure() << "sizes " << a.sizes() << " and " << b.sizes();
  }
  const bool bf16 = a.scalar_type() == at::kBFloat16;
  const bool fp64 = a.scalar_type() == at::kDouble;
  if (atol == 0) atol = bf16 ? 1e-2 : fp64 ? 1e-10 : 1e-5;
  if (rtol == 0) rtol = bf16 ? 1.6e-2 : fp64 ? 1e-10 : 1e-5;
  const at::Tensor x = a.detach().cpu().to(at::kDouble).contiguous();
  const at::Tensor y = b.detach().cpu().to(at::kDouble).contiguous();
  const double* x_data = x.const_data_ptr<double>();
  const double* y_data = y.const_data_ptr<double>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    // Written so that NaN fails.
    if (!(std::abs(x_data[i] - y_data[i]) <= atol + rtol * std::abs(y_data[i]))) {
      return ::testing::AssertionFailure() << "element " << i << " of " << x.sizes() << ": "
                                           << x_data[i] << ", expected " << y_data[i];
    }
  }
  return ::testing::AssertionSuccess();
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && at::equal(a.detach().cpu(), b.detach().cpu());
}

void expect_numeric_gradients(const std::function<at::Tensor()>& value,
                              const std::vector<at::Tensor>& leaves) {
  value().backward();
  constexpr double kStep = 1e-6;
  for (size_t which = 0; which < leaves.size(); ++which) {
    ASSERT_TRUE(leaves[which].grad().defined()) << "argument " << which;
    const at::Tensor gradient = leaves[which].grad().contiguous();
    at::Tensor data = leaves[which].detach();
    for (int64_t i = 0; i < data.numel(); ++i) {
      double* element = data.mutable_data_ptr<double>() + i;
      const double saved = *element;
      *element = saved + kStep;
      const double up = value().item<double>();
      *element = saved - kStep;
      const double down = value().item<double>();
      *element = saved;
      const double numeric = (up - down) / (2 * kStep);
      EXPECT_NEAR(gradient.const_data_ptr<double>()[i], numeric, 1e-5 + 1e-3 * std::abs(numeric))
          << "argument " << which << ", element " << i;
    }
  }
}

std::vector<at::Device> cpu_and_gpu() {
  return {at::Device(at::kCPU), at::Device(at::kCUDA, 0)};
}

}  // namespace longship::ops::testing
