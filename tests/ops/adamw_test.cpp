// FusedAdamW: the CPU oracle against the formula in double and its own rules, and the CUDA kernels
// against the oracle.
#include "ops/adamw.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "runtime/device.h"

#ifdef LS_CUDA_ENABLED
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace longship::ops {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

at::Tensor normal(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
}

enum class Kind { kDense, kDecayOnly, kRows };

struct Spec {
  std::vector<int64_t> sizes;
  std::optional<at::ScalarType> param = std::nullopt;  // of a copy of the master
  at::ScalarType grad = at::kFloat;
  Kind kind = Kind::kDense;
  int64_t group = 0;
  bool shifted = false;   // every part starts one element after an aligned address
  bool few_rows = false;  // dense, but with the gradients that kRows would get
};

/// Tensors with their gradients on one device, the same values for the same specs and seed.
class Model {
 public:
  Model(std::vector<Spec> specs, const AdamWHyper& hyper, at::Device device = at::kCPU,
        uint64_t seed = 1)
      : specs_(std::move(specs)), seed_(seed), device_(device) {
    for (size_t i = 0; i < specs_.size(); ++i) {
      tensors_.push_back(make(specs_[i], normal(specs_[i].sizes, seed_ * 1000 + i), hyper));
      grads_.push_back(specs_[i].kind == Kind::kDense
                           ? place(at::zeros(specs_[i].sizes), specs_[i].grad, specs_[i].shifted)
                           : at::Tensor());
      num_groups_ = std::max(num_groups_, specs_[i].group + 1);
    }
    optimizer_ = FusedAdamW::create(tensors_, hyper);
  }

  FusedAdamW& optimizer() { return *optimizer_; }
  std::vector<AdamWTensor>& tensors() { return tensors_; }
  std::vector<at::Tensor>& grads() { return grads_; }

  /// Gradients of step n, written in place.
  void set_grads(int64_t n) {
    for (size_t i = 0; i < specs_.size(); ++i) {
      const Spec& spec = specs_[i];
      if (spec.kind == Kind::kDecayOnly) continue;
      at::Tensor values = normal(spec.sizes, seed_ * 7777 + static_cast<uint64_t>(n) * 100 + i);
      if (spec.kind == Kind::kRows || spec.few_rows) {
        const at::Tensor rows = at::arange(spec.sizes[0]);
        const at::Tensor touched = rows.mul(7).add(n).remainder(11).lt(3);
        std::vector<int64_t> shape(spec.sizes.size(), 1);
        shape[0] = spec.sizes[0];
        values = values.mul(touched.to(at::kFloat).view(shape));
        if (spec.kind == Kind::kRows) {
          tensors_[i].row_flags.logical_or_(touched.to(device_));
          tensors_[i].row_grad.copy_(values);
          continue;
        }
      }
      grads_[i].copy_(values);
    }
  }

  /// Scalars of update n: rates that change from step to step and from group to group.
  AdamWRates rates(int64_t n) const {
    AdamWRates r;
    r.num_updates = n;
    for (int64_t g = 0; g < num_groups_; ++g) {
      const double lr = 1e-2 / static_cast<double>(1 + g) / static_cast<double>(1 + n);
      r.groups.push_back({lr, decay_ * static_cast<double>(1 + g)});
    }
    return r;
  }
  void set_decay(double decay) { decay_ = decay; }

  AdamWReport step(int64_t n) {
    set_grads(n);
    optimizer_->bind_grads(grads_);
    optimizer_->upload_scalars(rates(n), rates(n + 1));
    optimizer_->step();
    return read_report(optimizer_->report());
  }

  /// Everything that a step may change, on the host.
  std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> out;
    for (const AdamWTensor& t : tensors_) {
      for (const at::Tensor& part :
           {t.master, t.param, t.exp_avg, t.exp_avg_sq, t.ema, t.row_grad}) {
        if (part.defined()) out.push_back(part.to(at::kCPU, part.scalar_type(), false, true));
      }
    }
    return out;
  }

 private:
  at::Tensor place(const at::Tensor& values, at::ScalarType type, bool shifted) const {
    const int64_t n = values.numel();
    const auto options = at::TensorOptions().dtype(type).device(device_);
    const int64_t offset = shifted ? 1 : 0;
    at::Tensor out = at::empty({n + offset}, options).narrow(0, offset, n).view(values.sizes());
    return out.copy_(values);
  }

  AdamWTensor make(const Spec& spec, const at::Tensor& values, const AdamWHyper& hyper) const {
    AdamWTensor t;
    t.master = place(values, at::kFloat, spec.shifted);
    if (spec.param) t.param = place(values, *spec.param, spec.shifted);
    const at::Tensor zeros = at::zeros(spec.sizes);
    if (spec.kind != Kind::kDecayOnly) {
      t.exp_avg = place(zeros, at::kFloat, spec.shifted);
      t.exp_avg_sq = place(zeros, at::kFloat, spec.shifted);
    }
    if (hyper.ema) t.ema = place(values, at::kFloat, spec.shifted);
    if (spec.kind == Kind::kRows) {
      t.row_grad = place(zeros, spec.grad, spec.shifted);
      t.row_flags =
          at::zeros({spec.sizes[0]}, at::TensorOptions().dtype(at::kByte).device(device_));
    }
    t.group = spec.group;
    return t;
  }

  std::vector<Spec> specs_;
  uint64_t seed_;
  at::Device device_;
  std::vector<AdamWTensor> tensors_;
  std::vector<at::Tensor> grads_;
  std::unique_ptr<FusedAdamW> optimizer_;
  int64_t num_groups_ = 1;
  double decay_ = 0.1;
};

bool all_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return true;
}

AdamWHyper clipped(std::optional<double> ema = std::nullopt) {
  AdamWHyper hyper;
  hyper.max_norm = 1.0;
  hyper.ema = ema;
  return hyper;
}

/// Every combination of types and kinds, in sizes around those of vectors and chunks.
std::vector<Spec> mixed_specs(bool shifted) {
  std::vector<Spec> specs;
  for (const int64_t n : {1, 3, 7, 1023, 16384, 16385, 40001}) {
    specs.push_back({{n}, {}, at::kFloat, Kind::kDense, 0, shifted});
    specs.push_back({{n}, at::kBFloat16, at::kBFloat16, Kind::kDense, 1, shifted});
    specs.push_back({{n}, at::kBFloat16, at::kFloat, Kind::kDense, 0, shifted});
    specs.push_back({{n}, at::kFloat, at::kBFloat16, Kind::kDense, 1, shifted});
    specs.push_back({{n}, at::kBFloat16, at::kFloat, Kind::kDecayOnly, 2, shifted});
  }
  specs.push_back({{0}});
  specs.push_back({{70, 2048}, at::kBFloat16, at::kBFloat16, Kind::kRows, 2, shifted});
  specs.push_back({{3000, 33}, {}, at::kFloat, Kind::kRows, 0, shifted});
  specs.push_back({{5, 7}, at::kBFloat16, at::kFloat, Kind::kRows, 1, shifted});
  specs.push_back({{9}, {}, at::kFloat, Kind::kRows, 1, shifted});
  return specs;
}

TEST(FusedAdamW, FollowsTheFormulaInDouble) {
  const AdamWHyper hyper = clipped(0.9);
  Model model({{{50, 3}, at::kBFloat16}}, hyper);
  const AdamWTensor& t = model.tensors()[0];
  at::Tensor p = t.master.to(at::kDouble), ema = p.clone();
  at::Tensor m = at::zeros_like(p), v = at::zeros_like(p);
  for (int64_t n = 0; n < 10; ++n) {
    const AdamWReport report = model.step(n);
    const at::Tensor g = model.grads()[0].to(at::kDouble);
    const double norm = g.norm().item<double>();
    const double clip = std::min(1.0, 1.0 / (norm + 1e-6));
    EXPECT_NEAR(report.norm, norm, 1e-12 * norm);
    EXPECT_NEAR(report.clip, clip, 1e-12);
    EXPECT_EQ(report.num_updates, n + 1);
    EXPECT_TRUE(report.updated && report.finite);
    const double lr = 1e-2 / static_cast<double>(1 + n), step = static_cast<double>(n + 1);
    m = m + (1 - 0.9) * (g * clip - m);
    v = 0.95 * v + (1 - 0.95) * (g * clip).square();
    const double c1 = 1 - std::pow(0.9, step), c2 = 1 - std::pow(0.95, step);
    p = p * (1 - lr * 0.1) - lr / c1 * m / (v.sqrt() / std::sqrt(c2) + 1e-8);
    ema = 0.9 * ema + (1 - 0.9) * p;
  }
  EXPECT_LT((t.master - p).abs().max().item<double>(), 2e-6);
  EXPECT_LT((t.ema - ema).abs().max().item<double>(), 2e-6);
  EXPECT_TRUE(at::equal(t.param, t.master.to(at::kBFloat16)));
}

TEST(FusedAdamW, ClipsOnlyLargeNorms) {
  AdamWHyper hyper;
  hyper.max_norm = 2.5;
  Model model({{{2}}, {{1}}}, hyper);
  model.grads()[0].fill_(2.0);
  model.grads()[1].fill_(1.0);
  model.optimizer().bind_grads(model.grads());
  model.optimizer().norm();
  EXPECT_EQ(read_report(model.optimizer().report()).norm, 3.0);
  model.optimizer().upload_scalars(model.rates(0), model.rates(1));
  model.optimizer().update();
  EXPECT_EQ(read_report(model.optimizer().report()).clip, 2.5 / (3.0 + 1e-6));
  model.optimizer().set_norm(2.0);
  model.optimizer().update();
  EXPECT_EQ(read_report(model.optimizer().report()).clip, 1.0);
}

TEST(FusedAdamW, DecayOnlyTensorsDecayOrRest) {
  for (const double decay : {0.0, 0.5}) {
    Model model({{{4}}, {{5}, at::kBFloat16, at::kFloat, Kind::kDecayOnly}}, clipped());
    model.set_decay(decay);
    const at::Tensor before = model.tensors()[1].master.clone();
    model.step(0);
    const at::Tensor& after = model.tensors()[1].master;
    EXPECT_TRUE(at::equal(after, before * static_cast<float>(1.0 - 1e-2 * decay)));
    EXPECT_TRUE(at::equal(model.tensors()[1].param, after.to(at::kBFloat16)));
  }
}

TEST(FusedAdamW, RowSparseEqualsDenseBitwise) {
  for (const std::optional<double> ema : {std::optional<double>(), std::optional<double>(0.9)}) {
    for (const double decay : {0.0, 1e-10, 0.1}) {
      const Spec other{{40}};
      Model dense({{{60, 5}, at::kBFloat16, at::kBFloat16, Kind::kDense, 0, false, true}, other},
                  clipped(ema));
      Model sparse({{{60, 5}, at::kBFloat16, at::kBFloat16, Kind::kRows}, other}, clipped(ema));
      dense.set_decay(decay);
      sparse.set_decay(decay);
      for (int64_t n = 0; n < 5; ++n) {
        const AdamWReport a = dense.step(n), b = sparse.step(n);
        EXPECT_EQ(a.norm, b.norm);
        EXPECT_EQ(sparse.tensors()[0].row_grad.count_nonzero().item<int64_t>(), 0);
      }
      for (size_t i = 0; i < 2; ++i) {
        const AdamWTensor &a = dense.tensors()[i], &b = sparse.tensors()[i];
        EXPECT_TRUE(at::equal(a.master, b.master)) << decay;
        EXPECT_TRUE(at::equal(a.exp_avg, b.exp_avg));
        EXPECT_TRUE(at::equal(a.exp_avg_sq, b.exp_avg_sq));
        EXPECT_TRUE(!ema || at::equal(a.ema, b.ema));
      }
      EXPECT_TRUE(at::equal(dense.tensors()[0].param, sparse.tensors()[0].param));
    }
  }
}

TEST(FusedAdamW, UntouchedRowsRestWithoutDecay) {
  Model model({{{60, 5}, at::kBFloat16, at::kFloat, Kind::kRows}}, clipped());
  model.set_decay(0);
  const at::Tensor before = model.tensors()[0].master.clone();
  for (int64_t n = 0; n < 3; ++n) model.step(n);
  const at::Tensor& flags = model.tensors()[0].row_flags;
  const at::Tensor changed = model.tensors()[0].master.ne(before).all(1);
  EXPECT_TRUE(at::equal(changed, flags.ne(0)));
  EXPECT_GT(flags.sum().item<int64_t>(), 10);
  EXPECT_LT(flags.sum().item<int64_t>(), 50);
}

TEST(FusedAdamW, NonFiniteGradientsChangeNothingUntilTheFaultIsCleared) {
  for (const double bad : {kInf, std::nan("")}) {
    Model model({{{30}, at::kBFloat16}, {{20, 4}, {}, at::kFloat, Kind::kRows}}, clipped(0.9));
    EXPECT_TRUE(model.step(0).updated);
    model.tensors()[1].row_grad.zero_();
    const auto before = model.state();
    model.set_grads(1);
    model.grads()[0][7] = bad;
    model.optimizer().bind_grads(model.grads());
    model.optimizer().upload_scalars(model.rates(1), model.rates(2));
    model.optimizer().step();
    const AdamWReport first = read_report(model.optimizer().report());
    EXPECT_FALSE(first.finite);
    EXPECT_FALSE(first.updated);
    EXPECT_EQ(first.num_updates, 1);
    EXPECT_EQ(first.fault, kernels::kAdamWFaultNonFinite);
    // The row-sparse gradient was consumed all the same.
    EXPECT_TRUE(all_equal(before, model.state()));
    const AdamWReport second = model.step(1);
    EXPECT_TRUE(second.finite);
    EXPECT_FALSE(second.updated);
    EXPECT_TRUE(all_equal(before, model.state()));
    model.optimizer().clear_fault();
    const AdamWReport third = model.step(1);
    EXPECT_TRUE(third.updated);
    EXPECT_EQ(third.num_updates, 2);
    EXPECT_EQ(third.fault, 0);
    EXPECT_FALSE(all_equal(before, model.state()));
  }
}

TEST(FusedAdamW, FaultsOfOthersStopUpdatesToo) {
  Model model({{{30}}}, clipped());
  model.optimizer().fault_flag().fill_(64);
  const auto before = model.state();
  const AdamWReport report = model.step(0);
  EXPECT_TRUE(report.finite);
  EXPECT_FALSE(report.updated);
  EXPECT_EQ(report.fault, 64);
  EXPECT_TRUE(all_equal(before, model.state()));
}

TEST(FusedAdamW, TheCounterChoosesTheRowOfScalars) {
  Model one({{{30}}}, clipped()), other({{{30}}}, clipped());
  one.step(0);
  other.step(0);
  // The same update, once from the first row and once from the second.
  for (Model* model : {&one, &other}) {
    model->set_grads(1);
    model->optimizer().bind_grads(model->grads());
  }
  one.optimizer().upload_scalars(one.rates(1), one.rates(2));
  other.optimizer().upload_scalars(other.rates(0), other.rates(1));
  one.optimizer().step();
  other.optimizer().step();
  EXPECT_EQ(read_report(other.optimizer().report()).num_updates, 2);
  EXPECT_TRUE(all_equal(one.state(), other.state()));
  // Rows for other updates are a fault.
  other.optimizer().upload_scalars(other.rates(5), other.rates(6));
  other.optimizer().step();
  const AdamWReport report = read_report(other.optimizer().report());
  EXPECT_FALSE(report.updated);
  EXPECT_EQ(report.fault, kernels::kAdamWFaultScalars);
  EXPECT_TRUE(all_equal(one.state(), other.state()));
  other.optimizer().clear_fault();
  other.optimizer().set_num_updates(6);
  other.optimizer().step();
  EXPECT_EQ(read_report(other.optimizer().report()).num_updates, 7);
}

TEST(FusedAdamW, UndefinedGradientsAreZeros) {
  Model zeros({{{30}}, {{9}}}, clipped()), undefined({{{30}}, {{9}}}, clipped());
  for (int64_t n = 0; n < 3; ++n) {
    for (Model* model : {&zeros, &undefined}) {
      model->set_grads(n);
      if (n > 0) model->grads()[1].zero_();
      std::vector<at::Tensor> grads = model->grads();
      if (n > 0 && model == &undefined) grads[1] = at::Tensor();
      model->optimizer().bind_grads(grads);
      model->optimizer().upload_scalars(model->rates(n), model->rates(n + 1));
      model->optimizer().step();
    }
  }
  EXPECT_TRUE(all_equal(zeros.state(), undefined.state()));
}

TEST(FusedAdamW, AlignmentDoesNotMatter) {
  Model straight(mixed_specs(false), clipped(0.9)), shifted(mixed_specs(true), clipped(0.9));
  for (int64_t n = 0; n < 2; ++n) EXPECT_EQ(straight.step(n).norm, shifted.step(n).norm);
  EXPECT_TRUE(all_equal(straight.state(), shifted.state()));
}

TEST(FusedAdamW, GroupsHaveTheirOwnRates) {
  Model model({{{8}}, {{8}, {}, at::kFloat, Kind::kDense, 1}}, AdamWHyper());
  model.tensors()[1].master.copy_(model.tensors()[0].master);
  const at::Tensor before = model.tensors()[0].master.clone();
  AdamWRates rates;
  rates.groups = {{0.1, 0.0}, {0.0, 0.0}};
  model.set_grads(0);
  model.optimizer().bind_grads(model.grads());
  model.optimizer().upload_scalars(rates, rates);
  model.optimizer().step();
  EXPECT_FALSE(at::equal(model.tensors()[0].master, before));
  EXPECT_TRUE(at::equal(model.tensors()[1].master, before));
}

TEST(FusedAdamW, TensorsThatDoNotFitAreRefused) {
  AdamWTensor t;
  t.master = at::zeros({4, 3});
  t.exp_avg = at::zeros({4, 3});
  EXPECT_THROW(FusedAdamW::create({t}, {}), InternalError);  // one moment only
  t.exp_avg_sq = at::zeros({4, 3});
  EXPECT_NO_THROW(FusedAdamW::create({t}, {}));
  EXPECT_THROW(FusedAdamW::create({t}, clipped(0.9)), InternalError);  // no average
  t.row_grad = at::zeros({4, 3});
  t.row_flags = at::zeros({3}, at::kByte);
  EXPECT_THROW(FusedAdamW::create({t}, {}), InternalError);  // flags of three rows
  t.row_flags = at::zeros({4}, at::kByte);
  const auto optimizer = FusedAdamW::create({t}, {});
  EXPECT_THROW(optimizer->upload_scalars({}, {}), InternalError);  // no groups
  EXPECT_THROW(optimizer->bind_grads({}), InternalError);
  EXPECT_FALSE(FusedAdamW::available(c10::DeviceType::Meta));
}

// ---------------------------------------------------------------------------------------------
// CUDA

/// |a - b| <= 1e-7 + 1e-6 |a|, one unit of rounding for bf16.
void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].numel() == 0) continue;
    const double relative = a[i].scalar_type() == at::kBFloat16 ? 8e-3 : 1e-6;
    const at::Tensor reference = a[i].to(at::kDouble);
    const at::Tensor excess =
        (reference - b[i].to(at::kDouble)).abs() - (1e-7 + relative * reference.abs());
    EXPECT_LE(excess.max().item<double>(), 0) << "part " << i << " of shape " << a[i].sizes();
  }
}

TEST(FusedAdamWGpu, MatchesTheOracle) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const bool shifted : {false, true}) {
    for (const std::optional<double> ema : {std::optional<double>(), std::optional<double>(0.9)}) {
      for (const double decay : {0.0, 0.1}) {
        Model cpu(mixed_specs(shifted), clipped(ema));
        Model gpu(mixed_specs(shifted), clipped(ema), at::Device(at::kCUDA, 0));
        cpu.set_decay(decay);
        gpu.set_decay(decay);
        for (int64_t n = 0; n < 5; ++n) {
          const AdamWReport a = cpu.step(n), b = gpu.step(n);
          EXPECT_NEAR(a.norm, b.norm, 1e-8 * a.norm);
          EXPECT_NEAR(a.clip, b.clip, 1e-8);
          EXPECT_EQ(a.num_updates, b.num_updates);
          EXPECT_TRUE(b.updated && b.finite && b.fault == 0);
        }
        expect_close(cpu.state(), gpu.state());
        for (const AdamWTensor& t : gpu.tensors()) {
          if (!t.param.defined()) continue;
          EXPECT_TRUE(at::equal(t.param, t.master.to(t.param.scalar_type())));
        }
      }
    }
  }
}

TEST(FusedAdamWGpu, NormOfManyChunksAndExtremeValues) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Device cuda(at::kCUDA, 0);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    Model model({{{8001, 2048}, at::kBFloat16, type}, {{513}, {}, type}}, clipped(), cuda);
    for (const double scale : {1.0, 1e-25, 1e25}) {
      model.set_grads(0);
      for (at::Tensor& g : model.grads()) g.mul_(scale);
      model.optimizer().bind_grads(model.grads());
      model.optimizer().norm();
      double squares = 0;
      for (const at::Tensor& g : model.grads()) {
        squares += g.to(at::kDouble).square().sum().item<double>();
      }
      const double norm = std::sqrt(squares);
      EXPECT_NEAR(read_report(model.optimizer().report()).norm, norm, 1e-8 * norm);
    }
    for (at::Tensor& g : model.grads()) g.zero_();
    model.optimizer().norm();
    EXPECT_EQ(read_report(model.optimizer().report()).norm, 0.0);
  }
}

TEST(FusedAdamWGpu, LargeTensorMatchesTheOracle) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const std::vector<Spec> specs = {{{8001, 1024}, at::kBFloat16, at::kBFloat16},
                                   {{4000, 1024}, at::kBFloat16, at::kBFloat16, Kind::kRows}};
  Model cpu(specs, clipped()), gpu(specs, clipped(), at::Device(at::kCUDA, 0));
  for (int64_t n = 0; n < 2; ++n) {
    cpu.step(n);
    gpu.step(n);
  }
  expect_close(cpu.state(), gpu.state());
}

TEST(FusedAdamWGpu, TwoRunsGiveTheSameBits) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  std::vector<at::Tensor> first;
  for (int run = 0; run < 2; ++run) {
    Model model(mixed_specs(false), clipped(0.9), at::Device(at::kCUDA, 0));
    for (int64_t n = 0; n < 3; ++n) model.step(n);
    std::vector<at::Tensor> state = model.state();
    state.push_back(model.optimizer().report().cpu());
    if (run == 0) {
      first = state;
    } else {
      EXPECT_TRUE(all_equal(first, state));
    }
  }
}

TEST(FusedAdamWGpu, FaultsAndRowsOfScalarsAsOnTheCpu) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  Model model({{{30000}, at::kBFloat16, at::kBFloat16},
               {{20, 40}, at::kBFloat16, at::kBFloat16, Kind::kRows}},
              clipped(0.9), at::Device(at::kCUDA, 0));
  EXPECT_TRUE(model.step(0).updated);
  const auto before = model.state();
  for (const double bad : {kInf, std::nan("")}) {
    model.set_grads(1);
    model.grads()[0][29999] = bad;
    model.optimizer().bind_grads(model.grads());
    model.optimizer().upload_scalars(model.rates(1), model.rates(2));
    model.optimizer().step();
    const AdamWReport report = read_report(model.optimizer().report());
    EXPECT_FALSE(report.finite || report.updated);
    EXPECT_EQ(report.num_updates, 1);
    EXPECT_EQ(report.fault, kernels::kAdamWFaultNonFinite);
    EXPECT_TRUE(all_equal(before, model.state()));
    EXPECT_FALSE(model.step(1).updated);
    EXPECT_TRUE(all_equal(before, model.state()));
    model.optimizer().clear_fault();
  }
  model.set_grads(1);
  model.optimizer().zero_rows();
  EXPECT_TRUE(all_equal(before, model.state()));
  model.optimizer().upload_scalars(model.rates(7), model.rates(8));
  model.optimizer().step();
  EXPECT_EQ(read_report(model.optimizer().report()).fault, kernels::kAdamWFaultScalars);
  EXPECT_TRUE(all_equal(before, model.state()));
  model.optimizer().clear_fault();
  model.optimizer().upload_scalars(model.rates(0), model.rates(1));
  model.optimizer().step();
  EXPECT_EQ(read_report(model.optimizer().report()).num_updates, 2);
  EXPECT_FALSE(all_equal(before, model.state()));
}

TEST(FusedAdamWGpu, ReplayedGraphEqualsEagerSteps) {
#ifdef LS_CUDA_ENABLED
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Device cuda(at::kCUDA, 0);
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, 0));
  Model eager(mixed_specs(false), clipped(0.9), cuda),
      graphed(mixed_specs(false), clipped(0.9), cuda);
  eager.step(0);
  graphed.step(0);
  at::cuda::CUDAGraph graph;
  graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  graphed.optimizer().bind_grads(graphed.grads());
  graphed.optimizer().step();
  graph.capture_end();
  for (int64_t n = 1; n <= 5; ++n) {
    const AdamWReport a = eager.step(n);
    graphed.set_grads(n);
    graphed.optimizer().upload_scalars(graphed.rates(n), graphed.rates(n + 1));
    graph.replay();
    const AdamWReport b = read_report(graphed.optimizer().report());
    EXPECT_EQ(a.norm, b.norm);
    EXPECT_EQ(b.num_updates, n + 1);
    EXPECT_TRUE(all_equal(eager.state(), graphed.state())) << n;
    // Gradients bound between replays are not those of the graph.
    std::vector<at::Tensor> others(graphed.grads().size());
    graphed.optimizer().bind_grads(others);
  }
#else
  GTEST_SKIP() << "a CPU build";
#endif
}

}  // namespace
}  // namespace longship::ops
