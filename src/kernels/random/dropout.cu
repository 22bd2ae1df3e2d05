// One thread per run of 8 elements of a sample, flat over all samples: two Philox blocks, whose
// rounds are independent of each other. One 16-byte access for bf16, two for fp32; one element at a
// time where addresses or the sample's size do not allow that. At most 40 registers, no shared
// memory. Forty wide multiplications a run: a mask alone should be bound by them, with x in fp32
// memory should be the bound.
#include <limits>

#include "kernels/activation/pack.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/random/dropout.cuh"

namespace longship::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kRun = kDropoutRun;
static_assert(kRun == pack::kWide);

/// kScale: there is an x. kAligned: every run is whole and begins at a multiple of 16 bytes.
template <class T, bool kScale, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(DropoutArgs a, int64_t num_runs, uint32_t runs_per_sample) {
  await_previous_kernel();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads;
  const pack::RowWalk walk(first, runs_per_sample);
  if (first + threadIdx.x >= num_runs) return;
  const auto [sample, run] = walk.at(threadIdx.x);
  const int64_t begin = static_cast<int64_t>(run) * kRun;  // in the sample
  const int64_t place = sample * a.sample_size + begin;
  const T* x = static_cast<const T*>(a.x);
  T* y = static_cast<T*>(a.y);
  float m[kRun];
  if constexpr (kAligned) {
    pack::Raw<T, kRun> raw;
    if constexpr (kScale)
      raw = pack::fetch<kRun>(x + place);  // on its way while the words are drawn
    dropout_run(a.site, a.keys[sample], run, m);
    if constexpr (kScale) {
      float v[kRun];
      pack::expand(raw, v);
#pragma unroll
      for (int i = 0; i < kRun; ++i) m[i] *= v[i];
    }
    pack::store<kRun>(y + place, m);
  } else {
    dropout_run(a.site, a.keys[sample], run, m);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if (begin + i >= a.sample_size) break;
      if constexpr (kScale) m[i] *= static_cast<float>(x[place + i]);
      y[place + i] = static_cast<T>(m[i]);
    }
  }
}

template <class T, bool kScale>
cudaError_t launch(const DropoutArgs& a, cudaStream_t stream) {
  const int64_t per_sample = pack::ceil_div(a.sample_size, kRun);
  const int64_t num_runs = a.num_samples * per_sample;
  const int64_t blocks = pack::ceil_div(num_runs, kThreads);
  constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();
  // Runs of a sample are counted in 31 bits (pack::RowWalk), all runs and elements in 64.
  if (per_sample > (int64_t{1} << 30) || blocks > kMaxBlocks) return cudaErrorInvalidValue;
  const bool aligned = a.sample_size % kRun == 0 && pack::aligned16(a.x, a.y);
  const auto kernel = aligned ? dropout_kernel<T, kScale, true> : dropout_kernel<T, kScale, false>;
  launch_kernel(kernel, static_cast<unsigned>(blocks), kThreads, 0, stream, a, num_runs,
                static_cast<uint32_t>(per_sample));
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_any(const DropoutArgs& a, cudaStream_t stream) {
  return a.x != nullptr ? launch<T, true>(a, stream) : launch<T, false>(a, stream);
}

}  // namespace

cudaError_t dropout(const DropoutArgs& args, cudaStream_t stream) {
  if (args.num_samples == 0 || args.sample_size == 0) return cudaSuccess;
  return args.element == ElementType::kFloat32 ? launch_any<float>(args, stream)
                                               : launch_any<__nv_bfloat16>(args, stream);
}

}  // namespace longship::kernels
