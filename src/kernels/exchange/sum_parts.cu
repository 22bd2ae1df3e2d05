// Few blocks of many threads, each over a stretch of its own of every round: what bounds the kernel
// is the number of bytes in flight on the multiprocessors that it is given, so a thread asks for
// the runs of all parts before it adds up the first. 8 elements a run, kPerThread runs at once for
// few parts; one element at a time where addresses do not allow 16-byte accesses.
#include <algorithm>

#include "kernels/activation/pack.cuh"
#include "kernels/exchange/scaled.cuh"
#include "kernels/exchange/sum_parts.h"

namespace longship::kernels {
namespace {

constexpr int kThreads = 512;

template <class T, class Out>
struct Pointers {
  Out* out;
  const T* parts[kMaxParts];
};

template <class T, class Out, int kParts, int N, bool kDivide>
__global__ void __launch_bounds__(kThreads)
    sum_parts_kernel(Pointers<T, Out> at, float scale, int64_t begin, int64_t num_runs) {
  // 64 registers of loads in flight at most, so that two blocks fit a multiprocessor.
  constexpr int kBytes = N * static_cast<int>(sizeof(T)) * kParts;
  constexpr int kPerThread = N == 1 ? 4 : kBytes <= 64 ? 4 : kBytes <= 128 ? 2 : 1;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kPerThread;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kPerThread + threadIdx.x;
       first < num_runs; first += stride) {
    pack::Raw<T, N> raw[kPerThread][kParts];
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      const int64_t run = first + k * kThreads;
      if (run >= num_runs) break;
#pragma unroll
      for (int p = 0; p < kParts; ++p) raw[k][p] = pack::fetch<N>(at.parts[p] + begin + run * N);
    }
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      const int64_t run = first + k * kThreads;
      if (run >= num_runs) break;
      float sum[N];
      pack::expand(raw[k][0], sum);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] = scaled<kDivide>(sum[i], scale);
#pragma unroll
      for (int p = 1; p < kParts; ++p) {
        float v[N];
        pack::expand(raw[k][p], v);
        // Not fused into one rounding: the same bits whatever the divisor's path.
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] = __fadd_rn(sum[i], scaled<kDivide>(v[i], scale));
      }
      pack::store<N>(at.out + begin + run * N, sum);
    }
  }
}

template <class T, class Out, int kParts, int N, bool kDivide>
void launch(const Pointers<T, Out>& at, const SumPartsArgs& args, int64_t begin, int64_t num_runs,
            cudaStream_t stream) {
  if (num_runs == 0) return;
  const int64_t blocks = std::min<int64_t>(args.max_blocks, pack::ceil_div(num_runs, kThreads));
  const float scale = kDivide ? args.divisor : 1 / args.divisor;
  sum_parts_kernel<T, Out, kParts, N, kDivide>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(at, scale, begin, num_runs);
}

template <class T, class Out, int kParts, bool kDivide>
void sum(const SumPartsArgs& args, cudaStream_t stream) {
  Pointers<T, Out> at{static_cast<Out*>(args.out), {}};
  bool wide = pack::aligned16(args.out);
  for (int p = 0; p < kParts; ++p) {
    at.parts[p] = static_cast<const T*>(args.parts[p]);
    wide = wide && pack::aligned16(args.parts[p]);
  }
  const int64_t runs = wide ? args.count / pack::kWide : 0;
  launch<T, Out, kParts, pack::kWide, kDivide>(at, args, 0, runs, stream);
  launch<T, Out, kParts, 1, kDivide>(at, args, runs * pack::kWide, args.count - runs * pack::kWide,
                                     stream);
}

template <class T, class Out, int kParts>
void sum_of(const SumPartsArgs& args, cudaStream_t stream) {
  if constexpr (kParts > kMaxParts) {
    return;
  } else {
    if (args.num_parts != kParts) return sum_of<T, Out, kParts + 1>(args, stream);
    reciprocal_is_exact(args.divisor) ? sum<T, Out, kParts, false>(args, stream)
                                      : sum<T, Out, kParts, true>(args, stream);
  }
}

}  // namespace

cudaError_t sum_parts(const SumPartsArgs& args, cudaStream_t stream) {
  if (args.num_parts < 1 || args.num_parts > kMaxParts || args.max_blocks < 1 ||
      !(args.divisor > 0)) {
    return cudaErrorInvalidValue;
  }
  if (args.count == 0) return cudaSuccess;
  const bool wide_out = args.out_type == ElementType::kFloat32;
  if (args.type == ElementType::kFloat32) {
    if (!wide_out) return cudaErrorInvalidValue;
    sum_of<float, float, 1>(args, stream);
  } else if (wide_out) {
    sum_of<__nv_bfloat16, float, 1>(args, stream);
  } else {
    sum_of<__nv_bfloat16, __nv_bfloat16, 1>(args, stream);
  }
  return cudaGetLastError();
}

}  // namespace longship::kernels
