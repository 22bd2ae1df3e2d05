// CPU implementations of geglu, swiglu and gelu_bias: the oracles of the CUDA kernels, written as
// the formulas stand.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "ops/activation_check.h"
#include "ops/cpu/float_types.h"

namespace longship::ops {
namespace {

template <class Acc>
constexpr Acc kSqrt2OverPi = Acc(0.7978845608028654);
template <class Acc>
constexpr Acc kCubic = Acc(0.044715);

/// f(x) and f'(x).
template <class Acc>
struct Activated {
  Acc value;
  Acc slope;
};

template <class Acc>
Activated<Acc> gelu(Acc x) {
  const Acc t = std::tanh(kSqrt2OverPi<Acc> * (x + kCubic<Acc> * x * x * x));
  const Acc inner = kSqrt2OverPi<Acc> * (Acc(1) + Acc(3) * kCubic<Acc> * x * x);
  return {Acc(0.5) * x * (Acc(1) + t),
          Acc(0.5) * (Acc(1) + t) + Acc(0.5) * x * (Acc(1) - t * t) * inner};
}

template <class Acc>
Activated<Acc> silu(Acc x) {
  const Acc s = Acc(1) / (Acc(1) + std::exp(-x));
  return {x * s, s * (Acc(1) + x * (Acc(1) - s))};
}

constexpr auto kGelu = [](auto x) { return gelu(x); };
constexpr auto kSilu = [](auto x) { return silu(x); };

template <class Activation>
at::Tensor gated(const char* op, const at::Tensor& gate_up, Activation activation) {
  const ActivationShape shape = check_gated(op, gate_up);
  at::Tensor y = at::empty(shape.out_sizes, gate_up.options());
  dispatch_float(op, gate_up.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    const T* in = gate_up.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    const int64_t width = shape.width;
    at::parallel_for(0, shape.num_rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* gate = in + row * 2 * width;
        for (int64_t i = 0; i < width; ++i) {
          out[row * width + i] = static_cast<T>(activation(static_cast<Acc>(gate[i])).value *
                                                static_cast<Acc>(gate[width + i]));
        }
      }
    });
  });
  return y;
}

/// Writes d_gate_up, and y unless it is undefined.
template <class Activation>
void gated_gradient(const char* op, const at::Tensor& dy, const at::Tensor& gate_up,
                    Activation activation, at::Tensor& d_gate_up, at::Tensor& y) {
  const ActivationShape shape = check_gated_backward(op, dy, gate_up);
  dispatch_float(op, gate_up.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    const T* in = gate_up.const_data_ptr<T>();
    const T* g = dy.const_data_ptr<T>();
    T* d = d_gate_up.mutable_data_ptr<T>();
    T* again = y.defined() ? y.mutable_data_ptr<T>() : nullptr;
    const int64_t width = shape.width;
    at::parallel_for(0, shape.num_rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t i = 0; i < width; ++i) {
          const int64_t at = row * 2 * width + i;
          const Activated<Acc> activated = activation(static_cast<Acc>(in[at]));
          const Acc up = static_cast<Acc>(in[at + width]);
          const Acc gradient = static_cast<Acc>(g[row * width + i]);
          d[at] = static_cast<T>(gradient * up * activated.slope);
          d[at + width] = static_cast<T>(gradient * activated.value);
          if (again != nullptr) again[row * width + i] = static_cast<T>(activated.value * up);
        }
      }
    });
  });
}

at::Tensor geglu_cpu(const at::Tensor& gate_up) {
  return gated("geglu", gate_up, kGelu);
}

at::Tensor geglu_backward_cpu(const at::Tensor& dy, const at::Tensor& gate_up) {
  at::Tensor d_gate_up = at::empty_like(gate_up);
  at::Tensor no_y;
  gated_gradient("geglu_backward", dy, gate_up, kGelu, d_gate_up, no_y);
  return d_gate_up;
}

std::tuple<at::Tensor, at::Tensor> geglu_backward_recompute_cpu(const at::Tensor& dy,
                                                                const at::Tensor& gate_up) {
  at::Tensor d_gate_up = at::empty_like(gate_up);
  at::Tensor y = at::empty_like(dy);
  gated_gradient("geglu_backward", dy, gate_up, kGelu, d_gate_up, y);
  return {d_gate_up, y};
}

at::Tensor swiglu_cpu(const at::Tensor& gate_up) {
  return gated("swiglu", gate_up, kSilu);
}

at::Tensor swiglu_backward_cpu(const at::Tensor& dy, const at::Tensor& gate_up) {
  at::Tensor d_gate_up = at::empty_like(gate_up);
  at::Tensor no_y;
  gated_gradient("swiglu_backward", dy, gate_up, kSilu, d_gate_up, no_y);
  return d_gate_up;
}

at::Tensor gelu_bias_cpu(const at::Tensor& x, const at::Tensor& bias) {
  const ActivationShape shape = check_gelu_bias(x, bias);
  at::Tensor y = at::empty_like(x);
  dispatch_float("gelu_bias", x.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    const at::Tensor bias_acc = bias.to(acc_type<Acc>());
    const Acc* b = bias_acc.const_data_ptr<Acc>();
    const T* in = x.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    const int64_t width = shape.width;
    at::parallel_for(0, shape.num_rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t i = 0; i < width; ++i) {
          const int64_t at = row * width + i;
          out[at] = static_cast<T>(gelu(static_cast<Acc>(in[at]) + b[i]).value);
        }
      }
    });
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> gelu_bias_backward_cpu(const at::Tensor& dy, const at::Tensor& x,
                                                          const at::Tensor& bias) {
  const ActivationShape shape = check_gelu_bias_backward(dy, x, bias);
  at::Tensor dx = at::empty_like(x);
  at::Tensor dbias = at::empty({shape.width}, x.options().dtype(at::kDouble));
  dispatch_float("gelu_bias_backward", x.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    const at::Tensor bias_acc = bias.to(acc_type<Acc>());
    const Acc* b = bias_acc.const_data_ptr<Acc>();
    const T* in = x.const_data_ptr<T>();
    const T* g = dy.const_data_ptr<T>();
    T* out = dx.mutable_data_ptr<T>();
    double* sums = dbias.mutable_data_ptr<double>();
    const int64_t width = shape.width;
    // Shared out by columns, so that the order of the sums does not depend on the threads.
    at::parallel_for(0, width, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sums[i] = 0;
      for (int64_t row = 0; row < shape.num_rows; ++row) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t at = row * width + i;
          const Acc gradient =
              static_cast<Acc>(g[at]) * gelu(static_cast<Acc>(in[at]) + b[i]).slope;
          out[at] = static_cast<T>(gradient);
          sums[i] += gradient;
        }
      }
    });
  });
  return {dx, dbias.to(bias.scalar_type())};
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("geglu", geglu_cpu);
  m.impl("geglu_backward", geglu_backward_cpu);
  m.impl("geglu_backward_recompute", geglu_backward_recompute_cpu);
  m.impl("swiglu", swiglu_cpu);
  m.impl("swiglu_backward", swiglu_backward_cpu);
  m.impl("gelu_bias", gelu_bias_cpu);
  m.impl("gelu_bias_backward", gelu_bias_backward_cpu);
}

}  // namespace
}  // namespace longship::ops
