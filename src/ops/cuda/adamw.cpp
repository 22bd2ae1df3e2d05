// FusedAdamW on CUDA: tables on the device, and the launches of a step.
#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "kernels/optimizer/adamw.h"
#include "ops/adamw_internal.h"

namespace longship::ops {
namespace {

using kernels::AdamWChunk;
using kernels::AdamWGrad;
using kernels::AdamWGroupScalars;
using kernels::ElementType;

// Elements of a unit of work: 64 KiB of fp32, a quarter of a percent of an update's time per
// multiprocessor for the last ones to end.
constexpr int64_t kChunk = 16384;
// Units of row-sparse tensors are larger, because most of their rows are skipped.
constexpr int64_t kSparseChunk = 65536;

// The scalar buffer: the two rows' numbers of updates, then [2, num_groups] scalars.
constexpr size_t kScalarHeader = 2 * sizeof(int64_t);
static_assert(kScalarHeader % sizeof(AdamWGroupScalars) == 0);

void check(cudaError_t status, const char* what) {
  LS_CHECK(status == cudaSuccess, DeviceError, "AdamW {}: {} ({})", what,
           cudaGetErrorString(status), cudaGetErrorName(status));
}

ElementType type_of(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 ? ElementType::kBFloat16 : ElementType::kFloat32;
}

float* fp32_or_null(const at::Tensor& t) {
  return t.defined() ? t.mutable_data_ptr<float>() : nullptr;
}

bool is_capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

/// A copy of `bytes` bytes in pinned memory. Its allocator hands the memory out again only after
/// the copies from it have run, and never when it was taken during a capture.
at::Tensor pinned_copy(const void* data, size_t bytes) {
  // A first allocation of its size calls the driver, which other modes forbid while capturing.
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  at::Tensor host = at::empty({static_cast<int64_t>(bytes)},
                              at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  std::memcpy(host.mutable_data_ptr(), data, bytes);
  return host;
}

template <class T>
at::Tensor to_device(const std::vector<T>& values, c10::Device device) {
  at::Tensor out = at::empty({static_cast<int64_t>(values.size() * sizeof(T))},
                             at::TensorOptions().dtype(at::kByte).device(device));
  if (!values.empty()) out.copy_(pinned_copy(values.data(), values.size() * sizeof(T)), true);
  return out;
}

template <class T>
const T* table(const at::Tensor& bytes) {
  return static_cast<const T*>(bytes.const_data_ptr());
}

void append_chunks(std::vector<AdamWChunk>& chunks, const AdamWTensor& t, int32_t index) {
  const int64_t n = t.master.numel();
  int64_t step = kChunk;
  if (t.row_flags.defined() && n > 0) {
    const int64_t length = n / t.row_flags.numel();
    const int64_t rows =
        std::clamp<int64_t>(kSparseChunk / length, 1, int64_t{kernels::kAdamWMaxRows});
    step = rows * length;
    LS_CHECK(step <= std::numeric_limits<int32_t>::max() / 8, InternalError,
             "AdamW: rows of {} elements are too long", length);
  }
  for (int64_t begin = 0; begin < n; begin += step) {
    chunks.push_back({begin, index, static_cast<int32_t>(std::min(step, n - begin))});
  }
}

kernels::AdamWTensor to_table_entry(const AdamWTensor& t) {
  kernels::AdamWTensor e;
  if (t.param.defined()) {
    e.param = t.param.mutable_data_ptr();
    e.param_type = type_of(t.param);
  }
  e.master = t.master.mutable_data_ptr<float>();
  e.exp_avg = fp32_or_null(t.exp_avg);
  e.exp_avg_sq = fp32_or_null(t.exp_avg_sq);
  e.ema = fp32_or_null(t.ema);
  if (t.row_flags.defined()) {
    e.row_flags = t.row_flags.mutable_data_ptr<uint8_t>();
    const int64_t rows = t.row_flags.numel();
    e.row_length = static_cast<int32_t>(rows == 0 ? 0 : t.master.numel() / rows);
  }
  e.group = static_cast<int32_t>(t.group);
  return e;
}

class CudaAdamW final : public FusedAdamW {
 public:
  CudaAdamW(std::vector<AdamWTensor> tensors, const AdamWHyper& hyper)
      : FusedAdamW(std::move(tensors), hyper),
        device_(tensors_.front().master.device()),
        constants_(to_constants(hyper)) {
    const c10::cuda::CUDAGuard guard(device_);
    make_tables();
    const auto options = at::TensorOptions().device(device_);
    decision_ = at::empty({1}, options.dtype(at::kInt)).fill_(-1);
    // No row of scalars fits any counter yet.
    scalars_ = at::empty(
        {static_cast<int64_t>(kScalarHeader + 2 * num_groups_ * sizeof(AdamWGroupScalars))},
        options.dtype(at::kByte));
    scalars_.fill_(0xff);
    grads_ = at::empty({static_cast<int64_t>(tensors_.size() * sizeof(AdamWGrad))},
                       options.dtype(at::kByte));
    upload_grads(std::vector<at::Tensor>(tensors_.size()));
    c10::cuda::getCurrentCUDAStream().synchronize();
  }

  void wait() override {
    const c10::cuda::CUDAGuard guard(device_);
    c10::cuda::getCurrentCUDAStream().synchronize();
  }

  void bind_grads(at::TensorList grads) override {
    check_adamw_grads(tensors_, grads);
    const c10::cuda::CUDAGuard guard(device_);
    upload_grads(grads);
  }

  void upload_scalars(const AdamWRates& now, const AdamWRates& next) override {
    const c10::cuda::CUDAGuard guard(device_);
    LS_CHECK(!is_capturing(), InternalError,
             "AdamW: scalars belong to one step and cannot be part of a captured graph");
    std::vector<uint8_t> bytes(static_cast<size_t>(scalars_.numel()));
    size_t row = 0;
    for (const AdamWRates* rates : {&now, &next}) {
      const AdamWScalarRow values = to_scalars(*rates, hyper_, num_groups_);
      const size_t row_bytes = num_groups_ * sizeof(AdamWGroupScalars);
      std::memcpy(bytes.data() + row * sizeof(int64_t), &values.num_updates, sizeof(int64_t));
      std::memcpy(bytes.data() + kScalarHeader + row * row_bytes, values.groups.data(), row_bytes);
      ++row;
    }
    scalars_.copy_(pinned_copy(bytes.data(), bytes.size()), true);
  }

  void norm() override {
    const c10::cuda::CUDAGuard guard(device_);
    launch_norm();
    launch_finish(true, false);
  }

  void update() override {
    const c10::cuda::CUDAGuard guard(device_);
    launch_finish(false, true);
    launch_update();
  }

  void step() override {
    const c10::cuda::CUDAGuard guard(device_);
    launch_norm();
    launch_finish(true, true);
    launch_update();
  }

  void zero_rows() override {
    const c10::cuda::CUDAGuard guard(device_);
    check(kernels::adamw_zero_rows(table<kernels::AdamWTensor>(table_), table<AdamWGrad>(grads_),
                                   table<AdamWChunk>(chunks_), num_sparse_chunks_,
                                   c10::cuda::getCurrentCUDAStream()),
          "zero_rows");
  }

 private:
  /// Chunks in the order row-sparse (longest, so that they do not come last), dense, decay-only
  /// (which the norm does not read).
  void make_tables() {
    std::vector<kernels::AdamWTensor> entries;
    for (const AdamWTensor& t : tensors_) entries.push_back(to_table_entry(t));
    std::vector<AdamWChunk> chunks;
    for (const int pass : {0, 1, 2}) {
      for (size_t i = 0; i < tensors_.size(); ++i) {
        const AdamWTensor& t = tensors_[i];
        const int kind = t.row_flags.defined() ? 0 : t.exp_avg.defined() ? 1 : 2;
        if (kind == pass) append_chunks(chunks, t, static_cast<int32_t>(i));
      }
      if (pass == 0) num_sparse_chunks_ = static_cast<int64_t>(chunks.size());
      if (pass == 1) num_norm_chunks_ = static_cast<int64_t>(chunks.size());
    }
    num_chunks_ = static_cast<int64_t>(chunks.size());
    LS_CHECK(num_chunks_ <= std::numeric_limits<int32_t>::max(), InternalError,
             "AdamW: {} units of work are too many for one launch", num_chunks_);
    table_ = to_device(entries, device_);
    chunks_ = to_device(chunks, device_);
    num_norm_blocks_ = kernels::adamw_norm_blocks(
        num_norm_chunks_, at::cuda::getDeviceProperties(device_.index())->multiProcessorCount);
    partials_ =
        at::empty({num_norm_blocks_}, at::TensorOptions().dtype(at::kDouble).device(device_));
  }

  void upload_grads(at::TensorList grads) {
    std::vector<AdamWGrad> entries(tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const AdamWTensor& t = tensors_[i];
      const at::Tensor& grad = t.row_grad.defined() ? t.row_grad : grads[i];
      if (!grad.defined() || !t.exp_avg.defined()) continue;
      entries[i] = {grad.mutable_data_ptr(), type_of(grad)};
    }
    const at::Tensor host = pinned_copy(entries.data(), entries.size() * sizeof(AdamWGrad));
    grads_.copy_(host, true);
    // A graph copies from it in every replay.
    if (is_capturing()) captured_tables_.push_back(host);
  }

  void launch_norm() {
    kernels::AdamWNormArgs args;
    args.tensors = table<kernels::AdamWTensor>(table_);
    args.grads = table<AdamWGrad>(grads_);
    args.chunks = table<AdamWChunk>(chunks_);
    args.num_chunks = num_norm_chunks_;
    args.partials = partials_.mutable_data_ptr<double>();
    args.num_blocks = num_norm_blocks_;
    check(kernels::adamw_norm(args, c10::cuda::getCurrentCUDAStream()), "norm");
  }

  void launch_finish(bool with_norm, bool with_decision) {
    kernels::AdamWFinishArgs args;
    args.partials = partials_.const_data_ptr<double>();
    args.num_partials = num_norm_blocks_;
    args.with_norm = with_norm;
    args.with_decision = with_decision;
    args.row_updates = table<int64_t>(scalars_);
    args.max_norm = constants_.max_norm;
    args.num_updates = num_updates_.mutable_data_ptr<int64_t>();
    args.fault = fault_.mutable_data_ptr<int32_t>();
    args.decision = decision_.mutable_data_ptr<int32_t>();
    args.report = report_.mutable_data_ptr<double>();
    check(kernels::adamw_finish(args, c10::cuda::getCurrentCUDAStream()), "finish");
  }

  void launch_update() {
    kernels::AdamWUpdateArgs args;
    args.tensors = table<kernels::AdamWTensor>(table_);
    args.grads = table<AdamWGrad>(grads_);
    args.chunks = table<AdamWChunk>(chunks_);
    args.num_chunks = num_chunks_;
    args.scalars =
        reinterpret_cast<const AdamWGroupScalars*>(table<char>(scalars_) + kScalarHeader);
    args.num_groups = static_cast<int32_t>(num_groups_);
    args.decision = decision_.const_data_ptr<int32_t>();
    args.report = report_.const_data_ptr<double>();
    args.constants = constants_;
    check(kernels::adamw_update(args, c10::cuda::getCurrentCUDAStream()), "update");
  }

  c10::Device device_;
  kernels::AdamWConstants constants_;
  at::Tensor table_, chunks_, grads_, scalars_;  // bytes
  at::Tensor partials_, decision_;
  int64_t num_sparse_chunks_ = 0, num_norm_chunks_ = 0, num_chunks_ = 0;
  int32_t num_norm_blocks_ = 0;
  std::vector<at::Tensor> captured_tables_;
};

[[maybe_unused]] const bool registered = register_adamw(
    c10::DeviceType::CUDA,
    [](std::vector<AdamWTensor> tensors, const AdamWHyper& hyper) -> std::unique_ptr<FusedAdamW> {
      return std::make_unique<CudaAdamW>(std::move(tensors), hyper);
    });

}  // namespace
}  // namespace longship::ops
