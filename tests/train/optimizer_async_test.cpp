// AdamW with row-sparse gradients, asynchronous steps, and on CUDA.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/adamw.h"
#include "runtime/device.h"
#include "train/optimizer.h"
#include "train/parameters.h"

#ifdef LS_CUDA_ENABLED
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace longship::train {
namespace {

using models::ParamInfo;
using models::ParamRole;

/// A model with a table that gets row-sparse gradients, masters, a dead parameter and two groups.
struct Small {
  explicit Small(AdamWConfig config = {}, at::Device device = at::kCPU, bool sparse_table = true)
      : sparse(sparse_table) {
    const auto to = [&](const at::Tensor& t, at::ScalarType type) { return t.to(device, type); };
    info.push_back(parameter("table", to(normal({30, 6}, 1), at::kBFloat16)));
    info.push_back(parameter("a.weight", to(normal({130, 150}, 2), at::kBFloat16)));
    info.push_back(parameter("b.bias", to(normal({13}, 3), at::kFloat)));
    info.push_back(parameter("dead", to(normal({7}, 4), at::kBFloat16), ParamRole::kDecayOnly));
    if (sparse) {
      const auto options = at::TensorOptions().device(device);
      info[0].row_sparse = {at::zeros({30, 6}, options.dtype(at::kBFloat16)),
                            at::zeros({30}, options.dtype(at::kByte))};
    }
    config.groups = {{"*.bias", 0.5, 0.0}};
    optimizer = std::make_unique<AdamW>(info, config);
  }

  /// Gradients of step n, in place where there are any. Rows 3n to 3n + 4 of the table.
  void set_grads(int64_t n) {
    const auto seed = static_cast<uint64_t>(n) * 10;
    at::Tensor rows = at::zeros({30, 6});
    rows.narrow(0, 3 * n, 5).copy_(normal({5, 6}, 100 + seed));
    if (sparse) {
      info[0].row_sparse->grad.copy_(rows);
      info[0].row_sparse->row_flags.narrow(0, 3 * n, 5).fill_(1);
    } else {
      assign(info[0], rows);
    }
    assign(info[1], normal({130, 150}, 101 + seed));
    assign(info[2], normal({13}, 102 + seed));
  }
  static void assign(ParamInfo& p, const at::Tensor& grad) {
    const at::NoGradGuard no_grad;
    if (p.tensor.grad().defined()) {
      p.tensor.grad().copy_(grad);
    } else {
      set_grad(p, grad);
    }
  }

  static double lr(int64_t n) { return 1e-2 / static_cast<double>(n + 1); }
  double step(int64_t n) {
    set_grads(n);
    const double norm = optimizer->step(lr(n));
    optimizer->zero_grad();
    return norm;
  }
  static StepScalars scalars(int64_t n) { return {n, lr(n), std::nullopt}; }
  ops::AdamWReport async_step(int64_t n) {
    set_grads(n);
    optimizer->upload_scalars(scalars(n), scalars(n + 1));
    optimizer->enqueue_step();
    return ops::read_report(optimizer->report());
  }

  /// State and weights on the host.
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> out;
    for (const auto& [name, tensor] : optimizer->state()) {
      out.push_back(tensor.detach().to(at::kCPU, tensor.scalar_type(), false, true));
    }
    for (const ParamInfo& p : info) {
      out.push_back(p.tensor.detach().to(at::kCPU, p.tensor.scalar_type(), false, true));
    }
    return out;
  }

  bool sparse;
  std::vector<ParamInfo> info;
  std::unique_ptr<AdamW> optimizer;
};

AdamWConfig small_config(double decay = 0.1, std::optional<double> ema = 0.9) {
  AdamWConfig c;
  c.weight_decay = decay;
  c.ema = ema;
  return c;
}

bool all_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  bool equal = a.size() == b.size();
  for (size_t i = 0; equal && i < a.size(); ++i) equal = a[i].equal(b[i]);
  return equal;
}

/// |a - b| <= 1e-7 + relative * |a|, one unit of rounding for bf16.
void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                  double relative = 1e-6) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const at::Tensor x = a[i].to(at::kDouble), y = b[i].to(at::kDouble);
    const double most = a[i].scalar_type() == at::kBFloat16 ? 8e-3 : relative;
    EXPECT_LE(((x - y).abs() - (1e-7 + most * x.abs())).max().item<double>(), 0) << i;
  }
}

TEST(AdamWRowSparse, EqualsDenseBitwise) {
  for (const double decay : {0.0, 1e-10, 0.1}) {
    for (const std::optional<double> ema : {std::optional<double>(), std::optional<double>(0.9)}) {
      const AdamWConfig config = small_config(decay, ema);
      Small dense(config, at::kCPU, false), sparse(config);
      for (int64_t n = 0; n < 5; ++n) {
        EXPECT_EQ(dense.step(n), sparse.step(n));
        EXPECT_EQ(sparse.info[0].row_sparse->grad.count_nonzero().item<int64_t>(), 0);
      }
      EXPECT_TRUE(all_equal(dense.values(), sparse.values())) << decay;
    }
  }
}

TEST(AdamWRowSparse, LibraryPathAgrees) {
  AdamWConfig library = small_config();
  library.fused = false;
  Small a(small_config()), b(library);
  for (int64_t n = 0; n < 5; ++n) {
    EXPECT_NEAR(a.step(n), b.step(n), 1e-6);
    EXPECT_EQ(b.info[0].row_sparse->grad.count_nonzero().item<int64_t>(), 0);
  }
  const auto x = a.values(), y = b.values();
  for (size_t i = 0; i < x.size(); ++i) {
    const double most = x[i].scalar_type() == at::kBFloat16 ? 2e-2 : 3e-6;
    EXPECT_LT((x[i].to(at::kFloat) - y[i].to(at::kFloat)).abs().max().item<float>(), most) << i;
  }
}

TEST(AdamWRowSparse, SkippedStepsLeaveNoGradientBehind) {
  Small small(small_config());
  small.set_grads(0);
  small.info[1].tensor.mutable_grad().fill_(std::nan(""));
  EXPECT_FALSE(std::isfinite(small.optimizer->step(1e-2)));
  small.optimizer->zero_grad();
  EXPECT_EQ(small.info[0].row_sparse->grad.count_nonzero().item<int64_t>(), 0);
}

TEST(AdamWRowSparse, StateRestoresFlagsAndBits) {
  Small first(small_config()), second(small_config());
  for (int64_t n = 0; n < 2; ++n) first.step(n);
  second.info[0].row_sparse->row_flags.fill_(1);
  second.optimizer->load_state(first.optimizer->state(), 2);
  EXPECT_TRUE(first.info[0].row_sparse->row_flags.equal(second.info[0].row_sparse->row_flags));
  EXPECT_EQ(second.info[0].row_sparse->row_flags.sum().item<int64_t>(), 8);
  first.step(2);
  second.step(2);
  EXPECT_TRUE(all_equal(first.values(), second.values()));
}

TEST(AdamWRowSparse, GradientsInBothPlacesAreAnError) {
  Small small(small_config());
  small.set_grads(0);
  set_grad(small.info[0], at::zeros({30, 6}));
  EXPECT_THROW(small.optimizer->grad_norm(), InternalError);
}

TEST(AdamWRowSparse, DescriptionsThatDoNotFitAreErrors) {
  ParamInfo p = parameter("table", at::zeros({4, 3}));
  p.row_sparse = {at::zeros({4, 3}), at::zeros({3}, at::kByte)};
  EXPECT_THROW(AdamW({p}, AdamWConfig{}), InternalError);
}

TEST(AdamWAsync, EqualsSynchronousSteps) {
  Small a(small_config()), b(small_config());
  for (int64_t n = 0; n < 5; ++n) {
    const double norm = a.step(n);
    const ops::AdamWReport report = b.async_step(n);
    EXPECT_NEAR(report.norm, norm, 1e-12 * norm);
    EXPECT_EQ(report.num_updates, n + 1);
    EXPECT_TRUE(report.updated);
  }
  expect_close(a.values(), b.values(), 1e-7);
}

TEST(AdamWAsync, NonFiniteStepsWaitForTheFaultToBeCleared) {
  Small a(small_config()), b(small_config());
  a.step(0);
  b.async_step(0);
  b.set_grads(1);
  b.info[2].tensor.mutable_grad().fill_(std::numeric_limits<float>::infinity());
  b.optimizer->upload_scalars(Small::scalars(1), Small::scalars(2));
  b.optimizer->enqueue_step();
  const ops::AdamWReport bad = ops::read_report(b.optimizer->report());
  EXPECT_FALSE(bad.finite || bad.updated);
  EXPECT_NE(b.optimizer->fault_flag().item<int>(), 0);
  EXPECT_FALSE(b.async_step(1).updated);
  b.optimizer->clear_fault();
  // Sent before the host knew that update 1 had not happened.
  b.set_grads(1);
  b.optimizer->upload_scalars(Small::scalars(1), Small::scalars(2));
  b.optimizer->enqueue_step();
  EXPECT_EQ(ops::read_report(b.optimizer->report()).num_updates, 2);
  a.step(1);
  expect_close(a.values(), b.values(), 1e-7);
}

TEST(AdamWAsync, ResumesAtAnyCount) {
  Small a(small_config()), b(small_config());
  for (int64_t n = 0; n < 3; ++n) a.async_step(n);
  b.optimizer->load_state(a.optimizer->state(), 3);
  a.async_step(3);
  b.async_step(3);
  EXPECT_TRUE(all_equal(a.values(), b.values()));
}

TEST(AdamWAsync, WeightDecayOfAStepAndOfAGroup) {
  Small a(small_config()), b(small_config());
  a.set_grads(0);
  a.optimizer->apply(1e-2, a.optimizer->grad_norm(), 0.3);
  b.set_grads(0);
  b.optimizer->upload_scalars({0, 1e-2, 0.3}, {1, 1e-2, 0.3});
  b.optimizer->enqueue_step();
  expect_close(a.values(), b.values(), 1e-7);
}

TEST(AdamW, ZeroGradKeepsOrDropsBuffers) {
  Small small(small_config());
  small.set_grads(0);
  const void* before = small.info[1].tensor.grad().data_ptr();
  small.optimizer->zero_grad(GradReset::kZero);
  EXPECT_EQ(small.info[1].tensor.grad().data_ptr(), before);
  EXPECT_EQ(small.info[1].tensor.grad().count_nonzero().item<int64_t>(), 0);
  EXPECT_EQ(small.info[0].row_sparse->grad.count_nonzero().item<int64_t>(), 0);
  small.optimizer->zero_grad();
  EXPECT_FALSE(small.info[1].tensor.grad().defined());
}

TEST(AdamWGpu, SynchronousAndAsynchronousStepsMatchTheCpu) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Device cuda(at::kCUDA, 0);
  for (const double decay : {0.0, 0.1}) {
    for (const std::optional<double> ema : {std::optional<double>(), std::optional<double>(0.9)}) {
      const AdamWConfig config = small_config(decay, ema);
      Small cpu(config), gpu(config, cuda), async(config, cuda), dense(config, cuda, false);
      for (int64_t n = 0; n < 5; ++n) {
        const double norm = cpu.step(n);
        EXPECT_NEAR(gpu.step(n), norm, 1e-8 * norm);
        EXPECT_NEAR(dense.step(n), norm, 1e-8 * norm);
        EXPECT_NEAR(async.async_step(n).norm, norm, 1e-8 * norm);
      }
      expect_close(cpu.values(), gpu.values());
      expect_close(cpu.values(), dense.values());
      EXPECT_TRUE(all_equal(gpu.values(), async.values()));
    }
  }
}

TEST(AdamWGpu, LibraryPathAgrees) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  AdamWConfig library = small_config();
  library.fused = false;
  Small a(small_config(), at::Device(at::kCUDA, 0)), b(library, at::Device(at::kCUDA, 0));
  for (int64_t n = 0; n < 5; ++n) EXPECT_NEAR(a.step(n), b.step(n), 1e-4);
  const auto x = a.values(), y = b.values();
  for (size_t i = 0; i < x.size(); ++i) {
    const double most = x[i].scalar_type() == at::kBFloat16 ? 2e-2 : 5e-6;
    EXPECT_LT((x[i].to(at::kFloat) - y[i].to(at::kFloat)).abs().max().item<float>(), most) << i;
  }
}

TEST(AdamWGpu, StateMovesBetweenDevices) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  Small cpu(small_config()), gpu(small_config(), at::Device(at::kCUDA, 0));
  for (int64_t n = 0; n < 2; ++n) cpu.step(n);
  gpu.optimizer->load_state(cpu.optimizer->state(), 2);
  EXPECT_EQ(gpu.info[0].row_sparse->row_flags.sum().item<int64_t>(), 8);
  cpu.step(2);
  gpu.async_step(2);
  expect_close(cpu.values(), gpu.values());
}

TEST(AdamWGpu, CapturedStepsEqualEagerSteps) {
#ifdef LS_CUDA_ENABLED
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Device cuda(at::kCUDA, 0);
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, 0));
  Small eager(small_config(), cuda), graphed(small_config(), cuda);
  eager.async_step(0);
  graphed.async_step(0);
  at::cuda::CUDAGraph graph;
  graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  graphed.optimizer->enqueue_step();
  graphed.optimizer->zero_grad(GradReset::kZero);
  graph.capture_end();
  for (int64_t n = 1; n <= 5; ++n) {
    eager.async_step(n);
    graphed.set_grads(n);
    graphed.optimizer->upload_scalars(Small::scalars(n), Small::scalars(n + 1));
    graph.replay();
    EXPECT_EQ(ops::read_report(graphed.optimizer->report()).num_updates, n + 1);
    EXPECT_TRUE(all_equal(eager.values(), graphed.values())) << n;
  }
#else
  GTEST_SKIP() << "a CPU build";
#endif
}

}  // namespace
}  // namespace longship::train
